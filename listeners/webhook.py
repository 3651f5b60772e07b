"""Incident listener `webhook`: sends changes and events to an HTTP endpoint, as JSON or as a message of a chat service.

Requests that fail with a network error, 408, 429 or 5xx are repeated with back-off. Each attempt of one has the same
`Spark-Ext-Delivery`, by which the receiver knows a repetition. If there is a secret, JSON is signed, with its time:

    Spark-Ext-Signature: t=1767225600,v1=HEX      HEX = HMAC-SHA256(secret, "1767225600." + body)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from spark_ext import masking
from spark_ext.clients.library import load
from spark_ext.listeners.contract import (
    IncidentChange,
    IncidentListener,
    IncidentState,
    LifecycleEvent,
    ListenerOptions,
    MetricsContext,
)
from spark_ext.listeners.log import event_line
from spark_ext.options import Milliseconds
from spark_ext.sinks.http_2pc.tls import proxy_for

if TYPE_CHECKING:
    import httpcore

_AGAIN: Final = frozenset({408, 425, 429})  # statuses below 500 that are worth a further attempt
WHO: Final = "listener 'webhook'"
LONGEST: Final = 2_000  # characters of a text in a chat: Teams takes 28 KB with everything around it
_CARD: Final = "application/vnd.microsoft.card.adaptive"
_SHOWN: Final = 200  # characters of a receiver's answer that an error shows


class WebhookFormat(str, Enum):
    """What the body of a request is."""

    JSON = "json"  # all that is known, for programs
    SLACK = "slack"  # a message of an incoming webhook of Slack
    TEAMS = "teams"  # a message with an adaptive card, for the workflow of a channel of Microsoft Teams


class WebhookOptions(ListenerOptions):
    """Options of the listener `webhook`."""

    url: str  # `http://` for this machine only, unless `insecure`. A long path or query is taken for a secret
    secret: SecretStr | None = None  # signs each request; none: they are not signed
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)  # further ones; values are secrets
    request_timeout: Milliseconds = 5_000  # how long one attempt may take with its whole answer, ms
    give_up_after: Milliseconds = 20_000  # when no further attempt is made, ms; below the listener's `timeout`
    insecure: bool = False  # whether `http://` is allowed for other machines
    format: WebhookFormat = WebhookFormat.JSON  # what the body is

    @model_validator(mode="after")
    def _address(self) -> WebhookOptions:
        if self.secret is not None and self.format is not WebhookFormat.JSON:
            raise ValueError(f"{self.format.value} checks no signature: leave 'secret' out; its url is the secret")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the url does not begin with https:// or http:// and a host")
        if parts.scheme == "http" and not self.insecure and not _is_loopback(parts.hostname):
            raise ValueError(
                "http:// to another machine shows the incidents on the way: use https://, or insecure: true"
            )
        return self


class WebhookListener(IncidentListener):
    """Sends each change and event to an HTTP endpoint."""

    def __init__(self, **options: object) -> None:
        self._options = WebhookOptions.of("webhook", options)
        secret = self._options.secret
        parts = urlsplit(self._options.url)
        secrets = [*self._options.headers.values(), "" if secret is None else secret.get_secret_value()]
        secrets += [part for part in (parts.path.strip("/"), parts.query, parts.password or "") if len(part) >= _LONG]
        masking.remember(*filter(None, secrets))
        self._client = load("httpcore", "webhook", WHO)
        self._pool: httpcore.ConnectionPool | None = None

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Send a change.

        Raises:
            RuntimeError: it was not accepted; the text names the host and the last answer.
        """
        delivery = f"{change.incident.incident_id}-{int(change.at.timestamp() * 1000)}-{change.new.value.lower()}"
        self._deliver(payload(change, context, self._options.format), delivery)

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Send an event; the delivery is its id.

        Raises:
            RuntimeError: it was not accepted; the text names the host and the last answer.
        """
        self._deliver(payload(event, context, self._options.format), event.event_id)

    def _deliver(self, content: Mapping[str, Any], delivery: str) -> None:
        body = json.dumps(content, separators=(",", ":")).encode()
        attempts = Retrying(
            retry=retry_if_exception_type(TemporaryFailure),
            wait=wait_exponential(multiplier=0.2, max=5) + wait_random(0, 0.2),
            stop=stop_after_delay(self._options.give_up_after / 1000),
            reraise=True,
        )
        attempts(self._send, body, delivery)

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close()

    def _send(self, body: bytes, delivery: str) -> None:
        from spark_ext.sinks.http_2pc.exchange import connections, exchange

        url, client = self._options.url, self._client
        if self._pool is None:
            self._pool = connections(None, proxy_for(url, WHO))
        host, seconds = urlsplit(url).hostname, self._options.request_timeout / 1000
        try:
            # It follows no redirects: a signed request goes where the configuration says.
            answer = exchange(self._pool, "POST", url, self._headers(body, delivery), body, seconds)
        except (client.TimeoutException, client.NetworkError, client.ProtocolError, client.ProxyError) as problem:
            raise TemporaryFailure(f"{host} cannot be reached: {type(problem).__name__}") from None
        if 200 <= answer.status < 300:
            return
        said = masking.mask(" ".join(answer.text[:_SHOWN].split()))
        kind = TemporaryFailure if answer.status in _AGAIN or answer.status >= 500 else RuntimeError
        raise kind(f"{host} has answered {answer.status}: {said}")

    def _headers(self, body: bytes, delivery: str) -> dict[str, str]:
        found = {"Content-Type": "application/json", "Spark-Ext-Delivery": delivery, **self._options.headers}
        parts = urlsplit(self._options.url)
        if parts.username:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            found.setdefault("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        if self._options.secret is not None:
            found["Spark-Ext-Signature"] = signature(self._options.secret.get_secret_value(), int(time.time()), body)
        return found


_LONG: Final = 16  # characters from which a path may be a secret, as those of chat services are


class TemporaryFailure(RuntimeError):
    """Worth a further attempt."""


def signature(secret: str, at: int, body: bytes) -> str:
    """The signature of a request at a time, s since 1970 UTC; a receiver refuses one that is old."""
    code = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={code}"


def payload(notice: IncidentChange | LifecycleEvent, context: MetricsContext, form: WebhookFormat) -> dict[str, Any]:
    """The body of a request.

    As JSON a change is `incident`, `old`, `new`, `cause`, `at`, `count`, and `context` with what is known; an event is
    `event` and `context`.
    """
    if form is not WebhookFormat.JSON:
        return _message(notice, context, form)
    if isinstance(notice, LifecycleEvent):
        return {"event": _plain(notice.to_json()), "context": context.known}
    found: dict[str, Any] = _plain(asdict(notice))
    return {**found, "context": context.known}


def _message(notice: IncidentChange | LifecycleEvent, context: MetricsContext, form: WebhookFormat) -> dict[str, Any]:
    """The body of a request to a chat service."""
    title, text, facts = _parts(notice, context)
    return _slack(title, text, facts) if form is WebhookFormat.SLACK else _teams(title, text, facts)


def _parts(notice: IncidentChange | LifecycleEvent, context: MetricsContext) -> tuple[str, str, dict[str, str]]:
    """A title, the text, and facts by name."""
    if isinstance(notice, LifecycleEvent):
        return f"{context.job or 'job'}: {notice.kind.value} {notice.new}", event_line(notice, context), {}
    one = notice.incident
    # Some incidents are only told of once they are over: their first message is news.
    resolved = notice.new is IncidentState.RESOLVED and notice.old is not None
    title = f"[{'resolved' if resolved else one.severity.value}] {context.job or one.operator}: {one.type}"
    facts = {
        "where": one.operator,
        "done": one.action,
        "why": notice.cause if notice.old is not None else "",
        "times": str(notice.count) if notice.count > 1 else "",
        "at": f"{notice.at:%Y-%m-%d %H:%M:%S} UTC",
        "id": one.incident_id,
    }
    return title, one.what.partition("\n")[0], {name: value for name, value in facts.items() if value}


def _slack(title: str, text: str, facts: Mapping[str, str]) -> dict[str, Any]:
    lines = [f"*{_escaped(title)}*", *([_escaped(text[:LONGEST])] if text else [])]
    return {"text": "\n".join([*lines, *(f"{name}: {_escaped(value[:LONGEST])}" for name, value in facts.items())])}


def _escaped(text: str) -> str:
    """Without what Slack takes for a link, a mention or markup of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(title: str, text: str, facts: Mapping[str, str]) -> dict[str, Any]:
    body: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": title, "weight": "Bolder", "size": "Medium", "wrap": True},
        {"type": "TextBlock", "text": text[:LONGEST], "wrap": True},
    ]
    if facts:
        shown = [{"title": name, "value": value[:LONGEST]} for name, value in facts.items()]
        body.append({"type": "FactSet", "facts": shown})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    return {"type": "message", "attachments": [{"contentType": _CARD, "contentUrl": None, "content": card}]}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
