"""The listener `smtp` against a real SMTP server, with STARTTLS and a login."""

import smtplib
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from spark_ext.errors import ConfigurationError
from spark_ext.incidents.dispatch import Deliveries, Dispatcher, Outlet
from spark_ext.incidents.registry import ListenerEntry
from spark_ext.incidents.types import MetricsContext, Severity
from spark_ext.listeners.smtp import MOST_SHOWN, SmtpListener, composed
from tests.incidents.made import OPEN, RESOLVED, change, event
from tests.servers.ports import free_ports

CONTEXT = MetricsContext(job="shop", epoch=7)
ADDRESSES = {"sender": "spark@shop.invalid", "to": ["ops@shop.invalid", "dev@shop.invalid"]}


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        self.recipients.append(envelope.rcpt_tos)
        return "250 OK"

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, given: LoginPassword) -> AuthResult:
        self.logins.append((given.login, given.password))
        return AuthResult(success=given.password == b"hunter2-hunter2", handled=False)


@contextmanager
def serving(tls: ssl.SSLContext | None = None, *, login: bool = False) -> Iterator[tuple[Mailbox, int]]:
    mailbox = Mailbox()
    more: dict[str, Any] = {"authenticator": mailbox.login, "auth_required": True} if login else {}
    (port,) = free_ports(1)
    controller = Controller(
        mailbox, hostname="127.0.0.1", port=port, tls_context=tls, require_starttls=tls is not None, **more
    )
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*made, "-days", "1", *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


def test_a_change_is_a_mail() -> None:
    with serving() as (mailbox, port):
        listener = SmtpListener(host="127.0.0.1", port=port, encryption="none", **ADDRESSES)
        listener.changed(change("abcdef0123", severity=Severity.ERROR, what="it failed\nwith a stack"), CONTEXT)
    (mail,) = mailbox.mails
    assert mail["Subject"] == "[ERROR] shop: late: it failed"
    assert mailbox.recipients == [["ops@shop.invalid", "dev@shop.invalid"]] and mail["From"] == "spark@shop.invalid"
    body = mail.get_content()
    assert "[ERROR] late abcdef01 open: job 'shop', query 'q': it failed; epoch 7" in body
    assert "with a stack" not in body


def test_with_starttls_and_a_login(certificate: tuple[Path, ssl.SSLContext]) -> None:
    trusted, context = certificate
    with serving(context, login=True) as (mailbox, port):
        given = {"host": "127.0.0.1", "port": port, "user": "spark", "ca_file": str(trusted), **ADDRESSES}
        SmtpListener(password="hunter2-hunter2", **given).changed(change(), CONTEXT)
        with pytest.raises(smtplib.SMTPAuthenticationError):
            SmtpListener(password="wrong-wrong", **given).changed(change(), CONTEXT)
        with pytest.raises(ssl.SSLCertVerificationError):
            SmtpListener(password="hunter2-hunter2", **{**given, "ca_file": None}).changed(change(), CONTEXT)
    assert len(mailbox.mails) == 1
    assert mailbox.logins[0] == (b"spark", b"hunter2-hunter2")
    assert {password for _, password in mailbox.logins[1:]} == {b"wrong-wrong"}


def test_a_server_without_starttls_gets_no_password_and_no_mail() -> None:
    with serving() as (mailbox, port):
        listener = SmtpListener(host="127.0.0.1", port=port, user="spark", password="hunter2-hunter2", **ADDRESSES)
        with pytest.raises(smtplib.SMTPNotSupportedError):
            listener.changed(change(), CONTEXT)
    assert mailbox.mails == [] and mailbox.logins == []


def test_a_storm_is_one_mail() -> None:
    with serving() as (mailbox, port):
        listener = SmtpListener(host="127.0.0.1", port=port, encryption="none", **ADDRESSES)
        entry = ListenerEntry(use="smtp")
        outlet = Outlet("smtp", listener, entry, lambda _: 60.0, lambda _: CONTEXT, SmtpListener.digest_ms)
        dispatcher = Dispatcher([outlet], Deliveries())
        for number in range(500):
            dispatcher.put(change(f"i{number}", severity=Severity.ERROR))
        dispatcher.put(change("i1", RESOLVED, OPEN))
        dispatcher.close(10)
    (mail,) = mailbox.mails
    assert mail["Subject"] == "[ERROR] shop: 500 incidents, 1 resolved"
    lines = mail.get_content().splitlines()
    assert len(lines) == MOST_SHOWN + 1 and lines[-1].startswith("... and 451 further changes")


def test_events_are_lines_of_a_mail() -> None:
    with serving() as (mailbox, port):
        listener = SmtpListener(host="127.0.0.1", port=port, encryption="none", **ADDRESSES)
        listener.happened(event("FINISHED", old="FINISHING"), CONTEXT)
        listener.digest([(event("RESTARTING"), CONTEXT), (change("a", severity=Severity.ERROR), CONTEXT)])
    one, both = mailbox.mails
    assert one["Subject"] == "[event] shop: q: FINISHED"
    assert "[state] job 'shop', query 'q': FINISHING -> FINISHED" in one.get_content()
    assert both["Subject"] == "[ERROR] shop: 1 incidents, 0 resolved"
    assert len(both.get_content().splitlines()) == 2


def test_what_an_incident_says_adds_no_header() -> None:
    mail = composed([(change(what="x\r\nBcc: all@shop.invalid\n\nbody"), CONTEXT)], "a@b", ["c@d"])
    assert "Bcc" not in mail and len(mail.as_string().split("Bcc: ")) == 1
    named = MetricsContext(job="shop\r\nBcc: x@y")
    assert "Bcc" not in composed([(change(), named), (change(), named)], "a@b", ["c@d"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": "u", "password": "hunter2x", "encryption": "none"}, "not sent without encryption"),
        ({"user": "u"}, "belong together"),
        ({"sender": "a@b\nBcc: c@d"}, "one line"),
        ({"to": []}, "option 'to'"),
        ({"encryption": "ssl"}, "option 'encryption'"),
    ],
)
def test_bad_options_are_refused_without_their_values(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        SmtpListener(**{"host": "h", **ADDRESSES, **options})
    assert "hunter2x" not in str(refused.value)
