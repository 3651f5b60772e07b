"""The sink's own certificate: checked before the start, shown to a real receiver, renewed while the job runs."""

import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from spark_ext.errors import ConfigurationError
from spark_ext.sinks.http_2pc import client, credentials
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.http_2pc.tls import Tls, is_refused_client
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered
from tests.servers.token_endpoint import CLIENT, SECRET, TokenEndpoint
from tests.sinks.http_2pc.hostile import close_connections
from tests.sinks.http_2pc.test_oauth import OAuthTarget

PASSWORD = "the-key5-passw0rd"


@dataclass
class Papers:
    folder: Path
    authority: trustme.CA

    def file(self, name: str, *parts: bytes) -> str:
        path = self.folder / name
        path.write_bytes(b"".join(parts))
        return str(path)

    def issue(self, name: str, authority: trustme.CA | None = None) -> tuple[str, str]:
        made = (authority or self.authority).issue_cert(f"{name}@shop.example", common_name=name)
        chain = [blob.bytes() for blob in made.cert_chain_pems]
        return self.file(f"{name}.pem", *chain), self.file(f"{name}.key", made.private_key_pem.bytes())

    @property
    def ca_file(self) -> str:
        return self.file("ca.pem", self.authority.cert_pem.bytes())

    def encrypted(self, key: str) -> str:
        loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        how = serialization.BestAvailableEncryption(PASSWORD.encode())
        return self.file("encrypted.key", loaded.private_bytes(serialization.Encoding.PEM, form, how))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def papers(tmp_path: Path, authority: trustme.CA) -> Papers:
    (tmp_path / "papers").mkdir()
    return Papers(tmp_path / "papers", authority)


@pytest.fixture
def endpoint(authority: trustme.CA) -> Iterator[TokenEndpoint]:
    """Behind TLS, and only for those who show a certificate of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    with TokenEndpoint(context) as there:
        yield there


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(credentials, "_tokens", {})
    yield
    close_connections()


def test_both_servers_are_shown_the_certificate(endpoint: TokenEndpoint, papers: Papers, tmp_path: Path) -> None:
    certificate, key = papers.issue("sender")
    given = {"ca_file": papers.ca_file, "tls_client_cert": certificate, "tls_client_key": papers.encrypted(key)}
    driver = Driver(OAuthTarget(endpoint, tmp_path), options={**given, "tls_client_key_password": PASSWORD}).claim()
    driver.run(0, numbered(0, 2))
    assert len(endpoint.taken) == 2 and len(endpoint.given) == 1


def test_renewed_files_are_used_without_a_restart(endpoint: TokenEndpoint, papers: Papers, tmp_path: Path) -> None:
    certificate, key = papers.issue("sender")
    given = {"ca_file": papers.ca_file, "tls_client_cert": certificate, "tls_client_key": key}
    driver = Driver(OAuthTarget(endpoint, tmp_path), options=given).claim()
    driver.run(0, numbered(0, 1))
    (before,) = client._pools
    papers.issue("sender")
    os.utime(certificate, ns=(1, 1))
    driver.run(1, numbered(1, 2))
    (after,) = client._pools
    assert before != after and len(endpoint.taken) == 2


@pytest.mark.parametrize("shown", ["none", "of another authority"])
def test_a_certificate_is_not_taken(endpoint: TokenEndpoint, papers: Papers, tmp_path: Path, shown: str) -> None:
    """At the start if it gives tokens too, as here: what is wrong is not to be found in an epoch."""
    given = {"ca_file": papers.ca_file}
    if shown != "none":
        given["tls_client_cert"], given["tls_client_key"] = papers.issue("stranger", trustme.CA())
    sink = OAuthTarget(endpoint, tmp_path).sink(**given)
    with pytest.raises(ConfigurationError, match="did not accept the sink's certificate, or wants one") as refused:
        sink.validate(NUMBERS)
    assert "tls_client_cert" in refused.value.do and endpoint.given == []


def test_files_that_cannot_be_used_are_refused_before_the_start(papers: Papers) -> None:
    certificate, key = papers.issue("sender")
    other = papers.issue("other")[1]
    missing, text = str(papers.folder / "missing.pem"), papers.file("text.pem", b"hello")
    locked = papers.encrypted(key)
    cases = [
        (Tls(None, missing, key), f"file '{missing}' of 'tls_client_cert' could not be read: No such file"),
        (Tls(None, certificate, missing), f"file '{missing}' of 'tls_client_key' could not be read"),
        (Tls(None, str(papers.folder), key), "could not be read: Is a directory"),
        (Tls(None, certificate, other), f"the key in '{other}' is not that of the certificate"),
        (Tls(None, text, key), "are not a certificate and its key in PEM form"),
        (Tls(None, certificate, text), "are not a certificate and its key in PEM form"),
        (Tls(None, certificate), "not a certificate and its key in PEM form"),
        (Tls(None, certificate, locked), "is encrypted, and its password is missing"),
        (Tls(None, certificate, locked, "wrong-" + PASSWORD), "is encrypted, and its password is wrong"),
        (Tls(missing), "the certificates of 'ca_file' could not be read"),
        (Tls(text), "the certificates of 'ca_file' could not be read"),
    ]
    for tls, words in cases:
        with pytest.raises(ConfigurationError) as refused:
            tls.context("sink 'out'")
        assert words in str(refused.value) and PASSWORD not in str(refused.value), words
    assert Tls(None, certificate, locked, PASSWORD).context("sink 'out'") is not None
    assert Tls().context("sink 'out'") is None


def test_a_bad_file_is_refused_by_the_sink(papers: Papers, tmp_path: Path) -> None:
    sink = HttpTwoPhaseCommit(
        {"uid": "a", "url": "https://h/x", "outbox": str(tmp_path / "o"), "tls_client_cert": papers.issue("sender")[0]}
    )
    with pytest.raises(ConfigurationError, match="PEM form"):
        sink.validate(NUMBERS)


def test_words_of_openssl() -> None:
    assert is_refused_client("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)")
    assert is_refused_client("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca")
    assert not is_refused_client("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert not is_refused_client("[SSL: WRONG_VERSION_NUMBER] wrong version number")


BASE = {"url": "https://h/x"}
OAUTH = {"oauth2_token_url": "https://h/token", "oauth2_client_id": CLIENT, "oauth2_client_secret": SECRET}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "ftp://host/x"}, "not an address"),
        ({"url": "https://me:pass-word@host/x"}, "credentials do not belong"),
        ({"token": "a-secret", "token_env": "B"}, "exclude each other"),
        ({"headers": "a-secret"}, "JSON object of strings"),
        ({"batch_rows": "0"}, "greater than 0"),
        ({"token": "a-secret "}, "the token begins or ends with a blank"),
        ({"token": "a-secret\n"}, "the token contains characters"),
        ({"token": "a-s\u00e9cret"}, "the token contains characters"),
        ({"headers": '{"X-Key": "a-secret "}'}, "the header 'X-Key' begins or ends with a blank"),
        ({"headers": '{"X-Key": "a-secret\\r\\nX: y"}'}, "the header 'X-Key' contains characters"),
        ({"headers": '{"X Key": "a-secret"}'}, "not the name of a header"),
        ({"headers": '{"X-Key": "a-secret", "x-key": "b"}'}, "given twice"),
        ({"headers": '{"IDEMPOTENCY-key": "a-secret"}'}, "'IDEMPOTENCY-key' is the idempotency key"),
        ({"headers": '{"x-OWN": "a-secret"}', "key_header": "X-Own"}, "'x-OWN' is the idempotency key"),
        ({"headers": '{"spark-ext-epoch": "7"}'}, "'spark-ext-epoch' is set by the sink"),
        ({"headers": '{"content-LENGTH": "7"}'}, "'content-LENGTH' is set by the sink"),
        ({"key_header": "Content-Type"}, "cannot be the header of the idempotency key"),
        ({"token": "a-secret", "headers": '{"authorization": "b"}'}, "exclude each other"),
        ({"token_env": "A", "headers": '{"authorization": "b"}'}, "exclude each other"),
        ({"url": "https://h/{"}, "a brace has no other half"),
        ({"url": "https://h/{a}", "url_column": "b"}, "use one of them"),
        ({"allowed_hosts": "other"}, "allowed_hosts needs url_column"),
        ({"url_column": ""}, "at least 1 character"),
        ({"url_column": "u", "allowed_hosts": "https://other"}, "is not a host such as"),
        ({"url_column": "u", "allowed_hosts": "*"}, "is not a host such as"),
        ({"url_column": "u", "allowed_hosts": "a:b"}, "is not a host such as"),
        ({"url_column": "u", "allowed_hosts": "a/b"}, "is not a host such as"),
        ({"body": "object", "batch_rows": "5"}, "batch_rows cannot be another number"),
        ({"body": "objects"}, "'lines', 'array' or 'object'"),
        ({"max_requests_per_second": "0"}, "greater than 0"),
        ({"max_requests_per_second": "inf"}, "finite number"),
        ({"oauth2_client_id": "a"}, "oauth2_client_id needs oauth2_token_url"),
        ({"oauth2_auth": "body"}, "oauth2_auth needs oauth2_token_url"),
        ({**OAUTH, "oauth2_token_url": "h/token"}, "not an address"),
        ({**OAUTH, "oauth2_token_url": "https://me:pass-word@h/token"}, "credentials do not belong"),
        ({"oauth2_token_url": "https://h/token", "oauth2_client_secret": SECRET}, "needs oauth2_client_id"),
        ({"oauth2_token_url": "https://h/token", "oauth2_client_id": "a"}, "needs oauth2_client_secret or"),
        ({**OAUTH, "oauth2_client_secret_env": "A"}, "exclude each other"),
        ({**OAUTH, "token": "a-secret"}, "token and oauth2_token_url exclude each other"),
        ({**OAUTH, "token_env": "A"}, "token_env and oauth2_token_url exclude each other"),
        ({**OAUTH, "headers": '{"authorization": "a-secret"}'}, "exclude each other"),
        ({**OAUTH, "oauth2_auth": "header"}, "'basic' or 'body'"),
        ({"tls_client_key": "k"}, "tls_client_key needs tls_client_cert"),
        ({"tls_client_key_password": PASSWORD}, "tls_client_key_password needs tls_client_cert"),
        ({"url": "http://h/x", "tls_client_cert": "c"}, "needs an url that is https"),
        ({"tls_client_cert": "c", "tls_client_key_password": PASSWORD, "tls_client_key_password_env": "A"}, "exclude"),
        ({"tls_client_certificate": "c"}, "did you mean 'tls_client_cert'"),
    ],
)
def test_bad_options_are_refused_by_name_and_show_no_secret(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        HttpTwoPhaseCommit({"uid": "a", "outbox": "out", **BASE, **options})
    text = str(refused.value)
    assert not any(secret in text for secret in (SECRET, PASSWORD, "a-secret", "pass-word"))


def test_where_rows_go_is_part_of_the_identity_and_how_is_not() -> None:
    plain = {"uid": "a", "outbox": "/out", **BASE}
    assert HttpTwoPhaseCommit(plain).options.identity() == {"outbox": "/out", "url": "https://h/x"}
    more = {"url": "https://h/{id}", "max_requests_per_second": "5", **OAUTH}
    assert HttpTwoPhaseCommit({**plain, **more}).options.identity() == {"outbox": "/out", "url": "https://h/{id}"}
    by_column = HttpTwoPhaseCommit({**plain, "url_column": "to"}).options.identity()
    assert by_column == {"outbox": "/out", "url": "https://h/x", "url_column": "to"}
