"""The addresses of a gateway. Pure.

    POST    /v1/inboxes/<inbox>[/<rest>]                  events; `rest` is kept with them
    OPTIONS /v1/inboxes/<inbox>[/<rest>]                  the permission to send, of CloudEvents
    GET     /v1/inboxes/<inbox>/producers/<producer>      up to which number its events are known
    GET     /v1/inboxes/<inbox>/receipts/<receipt>        whether events are in the table
    GET     /v1/inboxes/<inbox>/ws                        WebSocket
    GET     /health

Behind the name of the inbox may stand `/t/<token>`, for senders that cannot send a header with a token. Such a token is
a secret in an address: it is part of no log line, error or event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from spark_ext.masking import HIDDEN

PREFIX: Final = "/v1/inboxes/"
HEALTH: Final = b"/health"

_TOKEN: Final = re.compile(r"(/t/|%2ft%2f|/t%2f|%2ft/)[^/?#\s\"]+", re.IGNORECASE)


class Kind(str, Enum):
    """What is at an address."""

    HEALTH = "health"
    EVENTS = "events"
    PRODUCER = "producer"
    RECEIPT = "receipt"
    WEBSOCKET = "websocket"
    NONE = "none"


ALLOWED: Final = {
    Kind.HEALTH: "GET, HEAD",
    Kind.EVENTS: "POST, OPTIONS",
    Kind.PRODUCER: "GET, HEAD, POST, OPTIONS",
    Kind.RECEIPT: "GET, HEAD, POST, OPTIONS",
    Kind.WEBSOCKET: "GET, POST, OPTIONS",
}
"""The methods of an address; events may be sent to any below that of the inbox."""


@dataclass(frozen=True, slots=True)
class Route:
    """What an address stands for."""

    kind: Kind
    rest: str = ""  # behind the address of the inbox and the token
    token: str | None = None
    name: str = ""  # of the producer or receipt


NOWHERE: Final = Route(Kind.NONE)


class Routes:
    """The addresses of one inbox."""

    def __init__(self, inbox: str) -> None:
        self._inbox = inbox
        self._own = f"{PREFIX}{quote(inbox, safe='')}".encode()
        self._events = Route(Kind.EVENTS)

    def find(self, path: bytes) -> Route:
        """The route of a path as it was sent, with its escapes."""
        if path == self._own:
            return self._events
        if path == HEALTH:
            return Route(Kind.HEALTH)
        parts = [unquote(part) for part in path.decode("latin-1").split("/")]
        if "/".join(parts[:3]) + "/" != PREFIX or len(parts) < 4 or parts[3] != self._inbox:
            return NOWHERE
        rest, token = parts[4:], None
        if len(rest) > 1 and rest[0] == "t":
            token, rest = rest[1], rest[2:]
        match rest:
            case ["ws"]:
                kind = Kind.WEBSOCKET
            case ["producers", _]:
                kind = Kind.PRODUCER
            case ["receipts", _]:
                kind = Kind.RECEIPT
            case _:
                kind = Kind.EVENTS
        return Route(kind, "/".join(rest), token, rest[-1] if rest else "")


def shown(path: bytes) -> str:
    """A path for a log line: without a token, whether it is valid or not."""
    return _TOKEN.sub(rf"\1{HIDDEN}", path.decode("latin-1"))[:300]
