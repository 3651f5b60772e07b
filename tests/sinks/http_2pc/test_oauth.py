"""Tokens of OAuth 2, from a real endpoint in a thread; and the rate of requests."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ext import masking
from spark_ext.errors import CommitError, ConfigurationError
from spark_ext.sinks.http_2pc import credentials, sink
from spark_ext.sinks.http_2pc.credentials import Grant, Token, reason_of, token_of
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered
from tests.conformance.test_commit_http import HttpTarget
from tests.servers.token_endpoint import CLIENT, SECRET, TokenEndpoint
from tests.support.folders import folder_snapshot

QUICK = {"commit_attempts": "3", "commit_backoff": "1 ms"}


@pytest.mark.parametrize(
    ("life", "renew"), [(3600, 3540.0), ("3600", 3540.0), (600, 540.0), (100, 90.0), (0.5, 0.45), (None, None)]
)
def test_a_token_is_renewed_before_it_ends(life: Any, renew: float | None) -> None:
    given = {"access_token": "abcdef", "token_type": "BEARER", **({} if life is None else {"expires_in": life})}
    found = token_of(json.dumps(given), 0.0)
    assert found == Token("abcdef", renew)
    assert renew is None or (found.fresh(renew - 0.01) and not found.fresh(renew))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("no JSON s3cr3t", "no access_token"),
        ('["s3cr3t"]', "no access_token"),
        ('{"token": "s3cr3t"}', "no access_token"),
        ('{"access_token": ""}', "no access_token"),
        ('{"access_token": 7}', "no access_token"),
        ('{"access_token": "s3cr3t", "token_type": "mac"}', "token_type is not Bearer"),
        ('{"access_token": "s3cr3t", "token_type": 7}', "token_type is not Bearer"),
        ('{"access_token": "s3cr3t\\r\\nX: y"}', "characters that are not allowed"),
        ('{"access_token": "s3cr3t", "expires_in": "soon"}', "expires_in is not a number"),
        ('{"access_token": "s3cr3t", "expires_in": -1}', "expires_in is not a number"),
        ('{"access_token": "s3cr3t", "expires_in": true}', "expires_in is not a number"),
        ('{"access_token": "s3cr3t", "expires_in": 1e300}', "expires_in is not a number"),
    ],
)
def test_answers_without_a_token_that_can_be_used(answer: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        token_of(answer, 0.0)
    assert "s3cr3t" not in str(refused.value)


def test_what_is_sent_for_a_token() -> None:
    headers, body = Grant("https://h/token", "a", "b:c", scope="x y", audience="z").request()
    assert headers["Authorization"] == "Basic YTpiJTNBYw=="
    assert body == b"grant_type=client_credentials&scope=x+y&audience=z"
    headers, body = Grant("https://h/token", "a", "b:c", auth="body").request()
    assert "Authorization" not in headers
    assert body == b"grant_type=client_credentials&client_id=a&client_secret=b%3Ac"
    assert reason_of('{"error": "invalid_scope", "error_description": 7}') == "invalid_scope"
    assert "b:c" not in repr(Grant("https://h/token", "a", "b:c"))


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_tokens", {})
    monkeypatch.setattr(sink, "_paces", {})
    monkeypatch.setattr(masking, "_known", frozenset())


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as there:
        yield there


class OAuthTarget(HttpTarget):
    def __init__(self, endpoint: TokenEndpoint, folder: Path) -> None:
        super().__init__(f"{endpoint.base}/rows", folder, folder / "outbox")
        self.given = {"oauth2_token_url": endpoint.url, "oauth2_client_id": CLIENT, "oauth2_client_secret": SECRET}

    def sink(self, uid: str = "out", **options: str) -> HttpTwoPhaseCommit:
        given = {"uid": uid, "url": self.url, "outbox": str(self.outbox), "batch_rows": "1", **QUICK, **self.given}
        return HttpTwoPhaseCommit({**given, **options})


def started(endpoint: TokenEndpoint, folder: Path, **options: str) -> Driver:
    return Driver(OAuthTarget(endpoint, folder), options=options).claim()


@pytest.mark.parametrize("auth", ["basic", "body"])
def test_one_token_serves_many_requests(endpoint: TokenEndpoint, tmp_path: Path, auth: str) -> None:
    driver = started(endpoint, tmp_path, oauth2_auth=auth, oauth2_scope="rows:write", oauth2_audience="shop")
    driver.run(0, numbered(0, 3))
    driver.run(1, numbered(3, 5))
    scheme = "Basic" if auth == "basic" else "body"
    asked = {"grant_type": "client_credentials", "scope": "rows:write", "audience": "shop", "scheme": scheme}
    assert endpoint.forms == [asked]
    assert [token for _, token, _ in endpoint.taken] == endpoint.given * 5


def test_an_old_token_is_renewed(endpoint: TokenEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = started(endpoint, tmp_path)
    driver.run(0, numbered(0, 2))
    (grant,) = credentials._tokens
    credentials.keep(grant, Token(endpoint.given[0], 0.0))
    driver.run(1, numbered(2, 4))
    assert [token for _, token, _ in endpoint.taken] == [endpoint.given[0]] * 2 + [endpoint.given[1]] * 2
    assert endpoint.refused == 0


def test_a_token_that_the_receiver_refuses_is_renewed_once(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    driver = started(endpoint, tmp_path)
    driver.run(0, numbered(0, 1))
    endpoint.revoke()
    driver.run(1, numbered(1, 3))
    assert len(endpoint.given) == 2 and endpoint.refused == 1 and len(endpoint.taken) == 3
    assert driver.attempts == 2, "one for each epoch"


def test_a_receiver_that_refuses_every_token_stops_the_query(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    driver = started(endpoint, tmp_path)
    credentials._tokens.clear()
    endpoint.give = lambda headers, form: (200, {"access_token": "unknown-t0ken", "token_type": "Bearer"}, {})  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"status 401: \*\*\* is not valid"):
        driver.run(0, numbered(0, 1))
    assert endpoint.refused == 2


def test_wrong_credentials_are_refused_at_the_start(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    sink = OAuthTarget(endpoint, tmp_path).sink(oauth2_client_secret="an0ther-secret")
    with pytest.raises(ConfigurationError, match="gave no token: status 401: invalid_client") as refused:
        sink.validate(NUMBERS)
    assert "an0ther-secret" not in str(refused.value) and "oauth2_client_id" in refused.value.do


def test_a_start_without_endpoint(endpoint: TokenEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.refuse(503, "soon")
    with caplog.at_level(logging.WARNING, "spark_ext"):
        OAuthTarget(endpoint, tmp_path).sink().validate(NUMBERS)
    assert "gave no token: status 503" in caplog.text


def test_an_endpoint_that_is_down_is_asked_again(endpoint: TokenEndpoint, tmp_path: Path, waits: list[float]) -> None:
    driver = started(endpoint, tmp_path)
    credentials._tokens.clear()
    endpoint.refuse(429, "later", Retry_After="7")
    endpoint.refuse(500, "broken")
    driver.run(0, numbered(0, 1))
    assert waits[0] == 7.0 and len(endpoint.taken) == 1 and driver.attempts == 2
    for _ in range(3):
        endpoint.refuse(503)
    endpoint.revoke()
    credentials._tokens.clear()
    with pytest.raises(CommitError, match=r"token endpoint .* gave no token: status 503"):
        driver.run(1, numbered(1, 2))


def test_an_answer_without_a_token_is_refused_by_name(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    endpoint.refuse(200, "<html>sign in</html>")
    with pytest.raises(ConfigurationError, match="has no token that can be used: it has no access_token"):
        OAuthTarget(endpoint, tmp_path).sink().validate(NUMBERS)


def test_a_secret_in_the_environment(endpoint: TokenEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = OAuthTarget(endpoint, tmp_path)
    del target.given["oauth2_client_secret"]
    sink = target.sink(oauth2_client_secret_env="OF_THE_CLIENT")
    with pytest.raises(ConfigurationError, match="variable 'OF_THE_CLIENT' is not set"):
        sink.validate(NUMBERS)
    monkeypatch.setenv("OF_THE_CLIENT", SECRET)
    sink.validate(NUMBERS)
    assert len(endpoint.given) == 1


def test_no_token_and_no_secret_is_left_anywhere(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    driver = started(endpoint, tmp_path)
    endpoint.take = lambda headers, path, body: (503, f"{headers['Authorization']} and {SECRET}", {})  # type: ignore[method-assign]
    with pytest.raises(CommitError) as failure:
        driver.run(0, numbered(0, 2))
    assert driver.target.leftovers()
    text = (
        f"{failure.value!r} {failure.value.__cause__!r} {folder_snapshot(tmp_path)()} {driver.target.sink().options!r}"
    )
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode(errors="replace")
    for secret in (*endpoint.given, SECRET):
        assert secret not in text and secret not in stored
    assert driver.target.sink().options.public()["oauth2_client_secret"] == "***"


def test_requests_keep_their_distance(endpoint: TokenEndpoint, tmp_path: Path, waits: list[float]) -> None:
    """Requests for tokens do not count, and what the receiver asks for comes on top."""
    driver = started(endpoint, tmp_path, max_requests_per_second="0.001", patience="10 h")
    driver.run(0, numbered(0, 2))
    endpoint.revoke()
    driver.run(1, numbered(2, 3))
    # Each is a thousand seconds behind the one before; nobody really waited.
    assert [round(wait, -3) for wait in waits] == [1000.0, 2000.0, 3000.0]
    assert len(endpoint.taken) == 3 and endpoint.refused == 1
