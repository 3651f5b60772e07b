"""Under which identity an event was sent, when it happened, and the requests by which senders try an address. Pure.

An identity is what stays the same when a sender sends an event again. Each scheme has it in another place; Shopify's
event id, for one, is shared by several deliveries of different topics, and is not an identity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from spark_ext.ingest.description import InboxDescription
from spark_ext.ingest.records import MOST_IDENTITY, SEPARATOR, Form
from spark_ext.ingest.signatures import Rejected

STRUCTURED: Final = "application/cloudevents+json"
OWN: Final = frozenset({"cloudevents", "pointer"})  # schemes in which each event of a batch can have its own
MOST_NUMBER: Final = 1 << 62  # of the first event of a batch: room is left for the rest

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_FRACTION: Final = re.compile(r"\.([0-9]{1,6})[0-9]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ORIGIN: Final = re.compile(r"[A-Za-z0-9.:_*-]{1,255}")
_RATE: Final = re.compile(r"[1-9][0-9]{0,8}|\*")


class Identity(NamedTuple):
    """Under which identity a request was sent; its parts are "" if it has none."""

    scheme: str = ""
    identity: str = ""
    producer: str = ""
    first: int = 0
    event_time: float | None = None  # when the event happened, s since 1970 UTC, if the sender says so


class Answer(NamedTuple):
    """The answer to a request that brings no event."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


NONE: Final = Identity()


def identified(description: InboxDescription, headers: Mapping[str, str], body: bytes, now: float) -> Identity:
    """The identity of a request, by the scheme of its inbox, or by any that it has.

    That of a batch has a scheme and no identity if each of its events has its own: see `of_event`.

    Raises:
        Rejected: it lacks the identity that its scheme has, or has one that cannot be stored.
    """
    found = _FINDERS.get(description.scheme, _any)(description.pointer, headers, body)
    # A clock that is ahead says nothing about when it happened.
    return found if (found.event_time or 0) <= now else found._replace(event_time=None)


def of_event(scheme: str, pointer: str, event: bytes, which: str = "") -> Identity:
    """The identity that an event of a batch has itself; `which` one it is, for the reason of a refusal."""
    if scheme == "pointer":
        return Identity(scheme, _pointed(_parsed(event, which), pointer, which))
    return _of_cloudevent(_members(event), which)


def media_type(headers: Mapping[str, str]) -> str:
    """The type of a body, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _parsed(body: bytes, which: str = "") -> Any:
    """A body as JSON, numbers as they are written."""
    try:
        return json.loads(body.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as problem:
        raise Rejected(400, f"the body{which} is not JSON: {str(problem)[:100]}") from None


def _standard(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    # The time that is signed is that of the attempt.
    time = _time(_members(body).get("timestamp")) if b'"timestamp"' in body else None
    return Identity("standard", _header(headers, "webhook-id"), event_time=time)


def _github(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    return Identity("github", _header(headers, "x-github-delivery"))


def _shopify(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    time = _time(headers.get("x-shopify-triggered-at"))
    return Identity("shopify", _header(headers, "x-shopify-webhook-id"), event_time=time)


def _stripe(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    event = _members(body)
    return Identity("stripe", _member(event, "id"), event_time=_time(event.get("created")))


def _slack(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    event = _members(body)
    if "event_id" not in event:  # a command or an interaction, which Slack does not send again
        return NONE
    return Identity("slack", _member(event, "event_id"), event_time=_time(event.get("event_time")))


def _idempotency_key(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    return Identity("idempotency-key", _header(headers, "idempotency-key"))


def _sequence(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    producer, number = _header(headers, "x-producer"), headers.get("x-sequence", "")
    if not _NUMBER.fullmatch(number) or int(number) >= MOST_NUMBER:
        raise Rejected(400, f"the header 'x-sequence' is not a number below {MOST_NUMBER}")
    return Identity("sequence", producer=producer, first=int(number))


def _cloudevents(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    kind = media_type(headers)
    if Form.of(kind, body) is Form.CLOUDEVENTS:
        return Identity("cloudevents")
    if kind == STRUCTURED:
        event = _members(body)
    else:
        event = {
            name: unquote(headers.get(f"ce-{name}", ""), errors="surrogateescape") for name in ("source", "id", "time")
        }
    return _of_cloudevent(event)


def _of_cloudevent(event: Mapping[str, Any], which: str = "") -> Identity:
    # No two events of a source have the same id.
    parts = [_checked(_text(event, name), f"the attribute '{name}'{which}", 422) for name in ("source", "id")]
    if len((found := SEPARATOR.join(parts)).encode()) > MOST_IDENTITY:
        raise Rejected(422, f"the attributes 'source' and 'id'{which} have more than {MOST_IDENTITY} bytes")
    return Identity("cloudevents", found, event_time=_time(event.get("time")))


def _at_pointer(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    if Form.of(media_type(headers), body) is not Form.SINGLE:
        return Identity("pointer")
    return Identity("pointer", _pointed(_parsed(body), pointer))


def _pointed(value: Any, pointer: str, which: str = "") -> str:
    """The text or number, as it is written, at which a JSON pointer (RFC 6901) points."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and _NUMBER.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            value = None
    if not isinstance(value, str):
        raise Rejected(422, f"the body{which} has no text or number at '{pointer}'")
    return _checked(value, f"what the body{which} has at '{pointer}'", 422)


def _any(pointer: str, headers: Mapping[str, str], body: bytes) -> Identity:
    """By whatever a sender gives: the first in this order."""
    kind = media_type(headers)
    if "ce-id" in headers or kind == STRUCTURED or Form.of(kind, body) is Form.CLOUDEVENTS:
        return _cloudevents(pointer, headers, body)
    for header, find in _BY_HEADER.items():
        if header in headers:
            return find(pointer, headers, body)
    return NONE


_FINDERS: Final = {
    "standard": _standard,
    "stripe": _stripe,
    "github": _github,
    "shopify": _shopify,
    "slack": _slack,
    "cloudevents": _cloudevents,
    "idempotency-key": _idempotency_key,
    "pointer": _at_pointer,
    "sequence": _sequence,
}
_BY_HEADER: Final = {
    "webhook-id": _standard,
    "x-github-delivery": _github,
    "x-shopify-webhook-id": _shopify,
    "idempotency-key": _idempotency_key,
    "x-producer": _sequence,
}


def handshake(description: InboxDescription, method: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
    """The answer to a request by which a sender tries an address; None: it is none. A POST is to be verified first.

    Raises:
        Rejected: it asks for something else than the protocol has.
    """
    if method == "OPTIONS":
        return _allowed(headers) if description.scheme in ("", "cloudevents") else None
    if method != "POST":
        return None
    if description.scheme == "github" and headers.get("x-github-event") == "ping":
        return Answer(200, {"content-type": "text/plain"}, b"pong")
    if description.scheme == "slack" and b"url_verification" in body:
        asked = _members(body)
        if asked.get("type") == "url_verification":
            return Answer(200, {"content-type": "text/plain"}, _member(asked, "challenge").encode())
    return None


def _allowed(headers: Mapping[str, str]) -> Answer | None:
    """The permission to send CloudEvents, which a sender asks for."""
    origin, rate = headers.get("webhook-request-origin"), headers.get("webhook-request-rate", "*")
    if origin is None:
        return None
    if not _ORIGIN.fullmatch(origin) or not _RATE.fullmatch(rate):
        raise Rejected(400, "'webhook-request-origin' is not a name, or 'webhook-request-rate' is not a number")
    return Answer(200, {"allow": "POST, OPTIONS", "webhook-allowed-origin": origin, "webhook-allowed-rate": rate})


def _checked(identity: str, where: str, status: int = 400) -> str:
    """An identity that can be stored and told apart from others."""
    if not identity:
        raise Rejected(status, f"{where} is missing or empty")
    if _CONTROL.search(identity):
        raise Rejected(status, f"{where} contains a control character, or half of a character")
    if len(identity.encode()) > MOST_IDENTITY:
        raise Rejected(status, f"{where} has more than {MOST_IDENTITY} bytes")
    return identity


def _header(headers: Mapping[str, str], name: str) -> str:
    return _checked(headers.get(name, ""), f"the header '{name}'")


def _member(event: Mapping[str, Any], name: str) -> str:
    return _checked(_text(event, name), f"the member '{name}' of the body", 422)


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _members(body: bytes) -> Mapping[str, Any]:
    """The members of a JSON object; empty for another body."""
    try:
        found = _parsed(body)
    except Rejected:
        return {}
    return found if isinstance(found, dict) else {}


def _time(value: Any) -> float | None:
    """A time in seconds since 1970 or in the form of RFC 3339; None if it is neither."""
    if not isinstance(value, str):
        return None
    if _NUMBER.fullmatch(value):
        return float(value)
    # Python 3.10 knows fractions of six digits, and no Z.
    text = _FRACTION.sub(lambda found: f".{found[1]:0<6}", value.upper().replace("Z", "+00:00"))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def pointed(body: bytes, pointer: str) -> str | None:
    """The text or number at which a JSON pointer points in a body; None if it has none."""
    try:
        return _pointed(_parsed(body), pointer)
    except Rejected:
        return None
