"""What a sender has sent: requests, as the write-ahead log keeps them, and events, as segments store them. Pure.

A request is kept whole, with its body as it was sent, so that nothing has to be parsed before the answer that parsing
could refuse later. One request has one event, or a batch of them, which are told apart when the log is rolled into a
segment.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_json

if TYPE_CHECKING:
    import pyarrow as pa

IDENTITY_BYTES: Final = 16
MOST_IDENTITY: Final = 1024  # bytes of an event's identity, as it was sent
BLANK: Final = b" \t\r\n"  # the white space of JSON
SEPARATOR: Final = "\x1f"  # between the parts of what is hashed: no header can contain it


class Form(str, Enum):
    """How the body of a request is divided into events."""

    __str__ = str.__str__

    SINGLE = "single"  # the body is one event, whatever it is
    NDJSON = "ndjson"  # each line that is not blank is an event
    ARRAY = "array"  # a JSON array: each element is an event
    CLOUDEVENTS = "cloudevents"  # a JSON array of CloudEvents, in the structured form
    ARROW = "arrow"  # an Arrow IPC stream: each row is an event

    @classmethod
    def of(cls, media_type: str, body: bytes) -> Form:
        """The form of a body, by its type; a JSON array is a batch."""
        if media_type == "application/json" and body.lstrip(BLANK)[:1] == b"[":
            return cls.ARRAY
        return cls(_FORMS.get(media_type, cls.SINGLE))


_FORMS: Final[Mapping[str, Form]] = {
    "application/x-ndjson": Form.NDJSON,
    "application/ndjson": Form.NDJSON,
    "application/jsonl": Form.NDJSON,
    "application/x-jsonlines": Form.NDJSON,
    "application/cloudevents-batch+json": Form.CLOUDEVENTS,
    "application/vnd.apache.arrow.stream": Form.ARROW,
}


class Request(NamedTuple):
    """A request that was accepted: its signature was valid, and its body is within the limits."""

    at: int  # when its last byte was received, us since 1970 UTC, by the gateway's clock
    body: bytes  # decompressed
    form: Form = Form.SINGLE
    scheme: str = ""  # how its identity was found; "": it has none, so delivery is at least once
    identity: str = ""  # of the event; of a batch, to which the position of each event is added
    producer: str = ""  # a producer that numbers its events
    first: int = 0  # the number of its first event, by its producer
    old: bool = False  # whether its own time is before the window in which repeats are known
    content_type: str = ""
    path: str = ""  # behind the inbox's own address
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # in lower case, without those that hold secrets
    events: int = 1  # how many the body has; counted when the request was accepted
    pointer: str = ""  # of a batch: a JSON pointer to the identity in each event

    def encode(self) -> bytes:
        """The form that the write-ahead log keeps."""
        about = {name: value for name, value in zip(self._fields, self, strict=True) if value != _LEFT_OUT.get(name)}
        del about["body"]
        head = to_json(about)
        return len(head).to_bytes(4, "big") + head + self.body

    @classmethod
    def decode(cls, content: bytes | memoryview) -> Request:
        """Read what `encode` has made.

        Raises:
            ValueError: it was made by something else.
        """
        content = bytes(content)
        end = 4 + int.from_bytes(content[:4], "big")
        about: dict[str, Any] = json.loads(content[4:end])
        about["headers"] = tuple((name, value) for name, value in about.get("headers", ()))
        about["form"] = Form(about.get("form", Form.SINGLE))
        return cls(body=content[end:], **about)


_LEFT_OUT: Final[dict[str, Any]] = Request._field_defaults


def identity_hash(inbox: str, scheme: str, identity: str) -> bytes:
    """What is remembered of an event's identity: 16 bytes, other ones for each inbox and scheme."""
    digest = _begun(inbox, scheme).copy()
    digest.update(identity.encode("utf-8", "surrogatepass"))
    return digest.digest()


@lru_cache(maxsize=64)
def _begun(inbox: str, scheme: str) -> hashlib.blake2b:
    text = SEPARATOR.join((inbox, scheme, ""))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=IDENTITY_BYTES)


def body_hash(body: bytes | memoryview) -> int:
    """What is remembered of an event's body, to tell a repeat from another event of the same identity."""
    return zlib.crc32(body)


def events_schema() -> pa.Schema:
    """The columns of a segment, one row per event, in the order of arrival."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),  # number of the event in its gateway, from 0
            pa.field("received_at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("event_id", pa.string()),  # as it was sent; null without one
            pa.field("identity", pa.binary(IDENTITY_BYTES)),  # `identity_hash`; null without one
            pa.field("body_hash", pa.uint32()),  # null without an identity
            pa.field("producer", pa.string()),
            pa.field("producer_sequence", pa.int64()),
            pa.field("old", pa.bool_(), nullable=False),
            pa.field("body", pa.binary()),
            pa.field("content_type", pa.string()),
            pa.field("headers", pa.map_(pa.string(), pa.string())),
            pa.field("path", pa.string()),
            pa.field("query", pa.string()),
        ]
    )


class Receipt(NamedTuple):
    """What became of a request whose events are as safe as was asked for."""

    level: str  # what was met: `disk`, `store`, `table` or `none`
    events: int = 1
    repeats: int = 0  # how many of them the gateway knows to be repeats; the job decides
    token: str = ""  # with which a client asks later whether the events are in the table
    exactly_once: bool = True  # False: an event has no identity, so it may be in the table twice
