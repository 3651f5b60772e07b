"""From a request to the events in it, and from these to typed rows. Pure.

Events are told apart without a change of their bytes: a number that no type of Python or Arrow can hold reaches the
column `body` as it was sent.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.ingest.arrow_bodies import rows_as_json
from spark_ext.ingest.description import InboxDescription
from spark_ext.ingest.identity import OWN, identified, media_type, of_event
from spark_ext.ingest.records import BLANK, SEPARATOR, Form, Request, body_hash, events_schema, identity_hash
from spark_ext.ingest.signatures import Rejected
from spark_ext.ingest.typed_rows import Fit, certain, rows_of
from spark_ext.masking import HIDDEN

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

_SECRET: Final = re.compile(
    r"auth(?!ors?\b)|cookie|signature|hmac|token|secret|password|credential|(api|access)[-_]?key"
)
_PARAMETER: Final = re.compile(r"([^&=]+)=([^&]+)")
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?([^\s\";]+)")
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


def request_of(
    description: InboxDescription, headers: Mapping[str, str], body: bytes, path: str, query: str, at: int
) -> Request:
    """What is kept of a request whose sender is known.

    Args:
        headers: by their names in lower case.
        body: decompressed.
        at: when it was received, us since 1970 UTC.

    Raises:
        Rejected: it has no event, no identity, or a body that cannot be divided or does not fit the declared columns.
    """
    if not body:
        raise Rejected(400, "the body is empty")
    content_type, now = headers.get("content-type", ""), at / 1e6
    form = Form.of(media_type(headers), body)
    if form is not Form.SINGLE or description.columns is not None:
        _check_charset(content_type)
    found = identified(description, headers, body, now)
    event_time, bodies, pointer = found.event_time, [body], ""
    if form is not Form.SINGLE:
        bodies = divided(form, body, description.max_body)
        if not bodies:
            raise Rejected(422, "the body contains no event")
        if found.scheme in OWN and not found.identity:
            pointer = description.pointer
            each = [of_event(found.scheme, pointer, one, f" of event {n}") for n, one in enumerate(bodies, 1)]
            event_time = min((one.event_time for one in each if one.event_time is not None), default=None)
    if description.columns is not None and description.on_bad_row == "reject":
        reason = check(bodies, form, description.columns_text)
        if reason is not None:
            raise Rejected(422, reason)
    return Request(
        at=at,
        body=body,
        form=form,
        scheme=found.scheme,
        identity=found.identity,
        producer=found.producer,
        first=found.first,
        old=event_time is not None and event_time < now - description.dedup_window / 1e3,
        content_type=_storable(content_type),
        path=_storable(path),
        query=_storable(_PARAMETER.sub(_without_secret, query)),
        headers=tuple((name, _storable(value)) for name, value in headers.items() if not _is_secret(name)),
        events=len(bodies),
        pointer=pointer,
    )


def _check_charset(content_type: str) -> None:
    given = _CHARSET.search(content_type.lower())
    if given and given[1] not in _UTF8:
        raise Rejected(415, f"bodies in '{given[1][:40]}' are not supported: send them in UTF-8")


def _storable(text: str) -> str:
    """A text in UTF-8: what is accepted must not fail later."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def _without_secret(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}={HIDDEN}" if _SECRET.search(unquote(parameter[1]).lower()) else parameter[0]


@lru_cache(maxsize=16)
def _columns(text: str) -> tuple[StructType, Fit]:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(text))
    return schema, certain(schema)


def divided(form: Form, body: bytes, most: int) -> list[bytes]:
    """The events in a body, each as it was sent.

    Raises:
        Rejected: it is not of this form, or its rows have more than `most` bytes as JSON.
    """
    if form is Form.NDJSON:
        return [line.rstrip(b"\r") for line in body.split(b"\n") if line.strip(BLANK)]
    if form is Form.ARROW:
        return rows_as_json(body, most)
    return [body] if form is Form.SINGLE else _elements(body)


_BEGIN: Final = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_COMMA: Final = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_END: Final = re.compile(r"[ \t\r\n]*\][ \t\r\n]*\Z")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


# Numbers stay text: Python refuses long ones.
_ELEMENT: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_number)


def _elements(body: bytes) -> list[bytes]:
    """The elements of a JSON array, byte for byte."""
    found: list[bytes] = []
    try:
        text = body.decode()
        between = _BEGIN.match(text)
        if between and _END.match(text, between.end()):
            return found
        while between:
            _, end = _ELEMENT.raw_decode(text, between.end())
            found.append(text[between.end() : end].encode())
            if _END.match(text, end):
                return found
            between = _COMMA.match(text, end)
        raise ValueError(f"a bracket or comma is missing behind {len(found)} elements")
    except (ValueError, RecursionError) as problem:
        raise Rejected(400, f"the body is not a JSON array: {str(problem)[:100]}") from None


def explode(requests: Sequence[Request], inbox: str, first: int) -> pa.RecordBatch:
    """The events of requests, one row each, numbered from `first`.

    What all events of a batch have in common is in it once: as a dictionary, one value for each request.
    """
    bodies, counts = _bodies(requests)
    total = len(bodies)
    request = np.repeat(np.arange(len(requests)), counts)
    position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    ids, hashes, body_hashes = _identities(requests, bodies, counts, inbox)
    numbered = np.array([bool(one.producer) for one in requests], np.bool_)[request]
    numbers = np.array([one.first for one in requests], np.int64)[request] + position
    place = pa.array(request, pa.int32())
    schema = events_schema()

    def repeated(column: str, values: list[Any]) -> pa.Array:
        found = pa.array(values, schema.field(column).type)
        return found if total == len(requests) else found.take(place)

    def common(column: str, values: list[Any]) -> pa.Array:
        found = pa.array(values, schema.field(column).type)
        return found if total == len(requests) else pa.DictionaryArray.from_arrays(place, found)

    columns = [
        pa.array(np.arange(first, first + total)),
        repeated("received_at", [one.at for one in requests]),
        pa.array(ids, pa.string()),
        pa.array(hashes, schema.field("identity").type),
        pa.array(body_hashes, pa.uint32()),
        repeated("producer", [one.producer or None for one in requests]),
        pa.array(numbers, mask=~numbered),
        repeated("old", [one.old for one in requests]),
        bodies,
        common("content_type", [one.content_type for one in requests]),
        common("headers", [one.headers for one in requests]),
        common("path", [one.path for one in requests]),
        common("query", [one.query for one in requests]),
    ]
    fields = [field.with_type(column.type) for field, column in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _bodies(requests: Sequence[Request]) -> tuple[pa.Array, NDArray[np.int64]]:
    """The bodies of all events, and how many each request has."""
    counts = np.ones(len(requests), np.int64)
    if all(one.form is Form.SINGLE for one in requests):
        return pa.array([one.body for one in requests], pa.binary()), counts
    lined = np.array([one.form is Form.NDJSON for one in requests], np.bool_)
    lines, counts[lined] = _lines([one.body for one in requests if one.form is Form.NDJSON])
    if lined.all() and len(requests):
        return lines, counts
    # Its rows as JSON were within the limit when it was accepted.
    others = [divided(one.form, one.body, 1 << 62) for one in requests if one.form is not Form.NDJSON]
    counts[~lined] = [len(one) for one in others]
    rest = pa.array([event for one in others for event in one], pa.binary())
    if not lined.any():
        return rest, counts
    of_lines = np.repeat(lined, counts)
    order = np.empty(len(of_lines), np.int64)
    order[of_lines] = np.arange(len(lines))
    order[~of_lines] = np.arange(len(lines), len(of_lines))
    return pa.concat_arrays([lines, rest]).take(pa.array(order)), counts


def _lines(bodies: list[bytes]) -> tuple[pa.Array, NDArray[np.int64]]:
    """The lines that are not blank, as `divided` has them, and how many are in each body."""
    split = pc.split_pattern(pa.array(bodies, pa.binary()), "\n")
    lines = split.flatten()
    # As texts, for their functions; these do not look whether it is UTF-8.
    texts = pa.StringArray.from_buffers(len(lines), *lines.buffers()[1:], offset=lines.offset)
    filled = pc.greater(pc.binary_length(pc.ascii_trim(texts, " \t\r\n")), 0)
    found = pc.ascii_rtrim(texts, "\r").filter(filled)
    before = np.concatenate([[0], np.cumsum(filled.to_numpy(zero_copy_only=False))])
    buffers = [None, *found.buffers()[1:]]
    binary = pa.BinaryArray.from_buffers(pa.binary(), len(found), buffers, offset=found.offset)
    return binary, np.diff(before[split.offsets.to_numpy()])


def _identities(
    requests: Sequence[Request], bodies: pa.Array, counts: NDArray[np.int64], inbox: str
) -> tuple[list[str | None], list[Any], list[Any]]:
    """The identity of each event, and the hashes of it and of the body; None without one."""
    events: list[bytes] = bodies.to_pylist()
    ids: list[str | None] = []
    schemes: list[str] = []
    for one, count in zip(requests, counts.tolist(), strict=True):
        schemes += [one.scheme] * count
        if one.scheme in OWN and not one.identity:
            ids += [of_event(one.scheme, one.pointer, event).identity for event in events[len(ids) : len(ids) + count]]
        elif one.identity and one.form is not Form.SINGLE:
            ids += [f"{one.identity}{SEPARATOR}{position}" for position in range(count)]
        else:
            ids += [one.identity or None] * count
    hashes = [id and identity_hash(inbox, scheme, id) for id, scheme in zip(ids, schemes, strict=True)]
    return ids, hashes, [id and body_hash(event) for id, event in zip(ids, events, strict=True)]


def typed(batch: pa.RecordBatch, schema: StructType, bad: Callable[[int, str], None]) -> pa.RecordBatch:
    """The bodies of events as the declared columns, without those that do not fit: `bad` gets their rows and why."""
    return rows_of(batch.column("body").to_pylist(), schema, bad)


def check(bodies: Sequence[bytes], form: Form, columns: str) -> str | None:
    """Why the first event that does not fit the declared columns, as Spark's JSON, does not; None: all do."""
    schema, fit = _columns(columns)
    if fit(bodies):
        return None
    why: dict[int, str] = {}
    rows_of(bodies, schema, why.__setitem__)
    if not why:
        return None
    first = min(why)
    return why[first] if form is Form.SINGLE else f"event {first + 1} of {len(bodies)}: {why[first]}"


def decompress(body: bytes, encoding: str, most: int) -> bytes:
    """A body without its content encoding.

    Raises:
        Rejected: it becomes larger than `most` bytes, is damaged, or has an encoding that is not supported.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        found = body
    elif encoding in ("gzip", "x-gzip"):
        found = _gunzipped(body, most + 1)
    elif encoding == "zstd":
        found = _unzstd(body, most + 1)
    else:
        raise Rejected(415, f"the content encoding '{encoding[:40]}' is not supported; gzip and zstd are")
    if len(found) > most:
        raise Rejected(413, f"the body has more than {most} bytes")
    return found


def _gunzipped(body: bytes, most: int) -> bytes:
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(body)).read(most)
    except (OSError, EOFError, zlib.error) as problem:
        raise Rejected(400, f"the body is not gzip: {str(problem)[:100]}") from None


def _unzstd(body: bytes, most: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            return bytes(stream.read(most))
    except OSError as problem:
        raise Rejected(400, f"the body is not zstd: {str(problem)[:100]}") from None
