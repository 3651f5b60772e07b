"""Incident listener `smtp`: mails. Changes and events are collected, so that a storm of incidents is one mail."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from enum import Enum
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from spark_ext import masking
from spark_ext.listeners.contract import (
    IncidentChange,
    IncidentListener,
    IncidentState,
    LifecycleEvent,
    ListenerOptions,
    MetricsContext,
    Notice,
    Severity,
)
from spark_ext.listeners.log import event_line, line
from spark_ext.options import Milliseconds, several

MOST_SHOWN: Final = 50  # changes that one mail lists; of further ones it gives the number


class Encryption(str, Enum):
    """How a connection is encrypted."""

    STARTTLS = "starttls"  # from the server's answer on; a server that does not offer it is refused
    TLS = "tls"  # from the beginning
    NONE = "none"  # not at all


class SmtpOptions(ListenerOptions):
    """Options of the listener `smtp`."""

    host: str = Field(min_length=1)
    port: int = Field(default=587, ge=1, le=65535)
    sender: str = Field(min_length=3)  # address from which mails come
    to: Annotated[tuple[str, ...], BeforeValidator(several), Field(min_length=1)]  # addresses to which they go
    user: str = ""  # for the login; "" means no login
    password: SecretStr | None = None
    encryption: Encryption = Encryption.STARTTLS
    ca_file: str | None = None  # certificates that are trusted; none: those of the system
    connect_timeout: Milliseconds = 10_000  # how long the server may take for an answer, ms

    @model_validator(mode="after")
    def _login(self) -> SmtpOptions:
        if bool(self.user) != (self.password is not None):
            raise ValueError("'user' and 'password' belong together")
        if self.user and self.encryption is Encryption.NONE:
            raise ValueError("a password is not sent without encryption: use encryption 'starttls' or 'tls'")
        for address in (self.sender, *self.to):
            if any(character in address for character in "\r\n"):
                raise ValueError("an address has one line")
        return self


class SmtpListener(IncidentListener):
    """Sends one mail for all changes of half a minute."""

    digest_ms: ClassVar[int] = 30_000

    def __init__(self, **options: object) -> None:
        self._options = SmtpOptions.of("smtp", options)
        if self._options.password is not None:
            masking.remember(self._options.password.get_secret_value())

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Send a mail about one change."""
        self.digest([(change, context)])

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Send a mail about one event."""
        self.digest([(event, context)])

    def digest(self, notices: Sequence[Notice]) -> None:
        """Send one mail about several changes and events.

        Raises:
            OSError, smtplib.SMTPException: the server cannot be reached, or has not taken the mail.
        """
        mail = composed(notices, self._options.sender, self._options.to)
        with self._connected() as server:
            server.send_message(mail)

    def _connected(self) -> smtplib.SMTP:
        given = self._options
        seconds = given.connect_timeout / 1000
        trusted = None
        if given.encryption is not Encryption.NONE:
            trusted = ssl.create_default_context(cafile=given.ca_file)
        if given.encryption is Encryption.TLS:
            server: smtplib.SMTP = smtplib.SMTP_SSL(given.host, given.port, timeout=seconds, context=trusted)
        else:
            server = smtplib.SMTP(given.host, given.port, timeout=seconds)
        try:
            if given.encryption is Encryption.STARTTLS:
                server.starttls(context=trusted)  # raises if the server does not offer it
            if given.password is not None:
                server.login(given.user, given.password.get_secret_value())
        except BaseException:
            server.close()
            raise
        return server


def composed(notices: Sequence[Notice], sender: str, to: Sequence[str]) -> EmailMessage:
    """The mail about some changes and events."""
    first, context = notices[0]
    changes = [one for one, _ in notices if isinstance(one, IncidentChange)]
    opened = [change for change in changes if change.new is IncidentState.OPEN]
    worst = max((change.incident.severity for change in opened), key=lambda one: one.rank, default=Severity.INFO)
    job = context.job or (first.incident.operator if isinstance(first, IncidentChange) else "")
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, ", ".join(to)
    if len(notices) == 1 and isinstance(first, IncidentChange):
        what = " ".join(first.incident.what.partition("\n")[0].split())[:120]
        state = "resolved" if first.new is IncidentState.RESOLVED else first.incident.severity.value
        mail["Subject"] = _one_line(f"[{state}] {job}: {first.incident.type}: {what}")
    elif not changes:
        of = f"{first.query or 'job'}: {first.new}" if len(notices) == 1 else f"{len(notices)} events"
        mail["Subject"] = _one_line(f"[event] {job}: {of}")
    else:
        resolved = len(changes) - len(opened)
        state = worst.value if opened else "resolved"
        mail["Subject"] = _one_line(f"[{state}] {job}: {len(opened)} incidents, {resolved} resolved")
    mail["Date"] = format_datetime(notices[-1][0].at)
    number = first.event_id if isinstance(first, LifecycleEvent) else first.incident.incident_id
    mail["Message-ID"] = make_msgid(idstring=number[:8], domain="spark-ext.invalid")
    lines = [f"{one.at:%Y-%m-%d %H:%M:%S} UTC  {_line(one, context)}" for one, context in notices[:MOST_SHOWN]]
    if len(notices) > MOST_SHOWN:
        further = len(notices) - MOST_SHOWN
        lines.append(f"... and {further} further changes: spark-ext incidents STATE lists all of them")
    mail.set_content("\n".join(lines) + "\n")
    return mail


def _line(one: IncidentChange | LifecycleEvent, context: MetricsContext) -> str:
    return event_line(one, context) if isinstance(one, LifecycleEvent) else line(one, context)


def _one_line(text: str) -> str:
    return " ".join(text.split())
