"""What pyarrow does not say of an ORC file: the rows of each stripe, its calendar, and the time zone of its writer.

They are in the file's tail and in the footers of its stripes: messages of Protocol Buffers, compressed in chunks as the
ORC specification (version 1) describes. Only the fields that are needed are decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

_TAIL = 16 * 1024
"""Bytes of the end of a file that are read first; the tail is rarely longer."""

_UNKNOWN, _PROLEPTIC = 0, 2
"""Calendars: not named, and Gregorian throughout. The third is Julian before 1582."""

_JAVA = 0
"""The writer that uses the Julian calendar if it does not name one, as Hive and Spark do; others never use it."""

_LARGEST = 256 * 1024 * 1024
"""Maximum size of a footer, bytes: a larger one is a damaged length."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """A stripe, as the tail describes it."""

    rows: int
    size: int
    """Bytes of its indexes and data."""
    footer: tuple[int, int]
    """Where its own footer is: the first byte, and the number of bytes."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of an ORC file."""

    stripes: tuple[Stripe, ...]
    rows: int
    compression: int
    block: int
    """Maximum size of a chunk before its compression, bytes."""
    gregorian: bool
    """Whether dates and times count in the Gregorian calendar throughout."""


def read_tail(raw: pa.NativeFile, size: int) -> Tail:
    """Read the tail of a file.

    Args:
        size: of the file, bytes.
    """
    data = _at(raw, max(0, size - _TAIL), min(size, _TAIL))
    length = data[-1] if data else 0
    post = _message(data[-1 - length : -1])
    if post.get(8000, [b""])[-1] != b"ORC":
        raise ValueError("it does not end as an ORC file does")
    footer, compression, block = _number(post, 1), _number(post, 2), _number(post, 3, 256 * 1024)
    begin = size - 1 - length - footer
    if begin < 0 or footer > _LARGEST:
        raise ValueError("its footer has an impossible length")
    found = _message(_plain(_at(raw, begin, footer), compression, block))
    stripes = []
    for one in found.get(3, []):
        stripe = _message(_bytes(one))
        offset, index, body, end = (_number(stripe, field) for field in (1, 2, 3, 4))
        if offset + index + body + end > size or end > _LARGEST:
            raise ValueError("a stripe ends behind the end of the file")
        stripes.append(Stripe(_number(stripe, 5), index + body, (offset + index + body, end)))
    rows = _number(found, 6)
    if sum(stripe.rows for stripe in stripes) != rows:
        raise ValueError("its stripes do not have as many rows as the file")
    calendar, writer = _number(found, 11), _number(found, 9)
    gregorian = calendar == _PROLEPTIC or (calendar == _UNKNOWN and writer != _JAVA)
    return Tail(tuple(stripes), rows, compression, block, gregorian)


def time_zones(raw: pa.NativeFile, tail: Tail) -> set[str]:
    """The time zones in which the stripes were written; the empty text stands for one that is not named."""
    zones = set()
    for stripe in tail.stripes:
        found = _message(_plain(_at(raw, *stripe.footer), tail.compression, tail.block))
        zones.add(_bytes(found.get(3, [b""])[-1]).decode("ascii", "replace"))
    return zones


def _at(raw: pa.NativeFile, begin: int, length: int) -> bytes:
    raw.seek(begin)
    data = raw.read(length)
    if len(data) != length:
        raise ValueError(f"it ends within the {length} bytes from byte {begin}")
    return bytes(data)


# -- Protocol Buffers ---------------------------------------------------------------------------------------------


def _message(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a message by number."""
    out: dict[int, list[int | bytes]] = {}
    for number, value in _fields(data):
        out.setdefault(number, []).append(value)
    return out


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            length, at = _varint(data, at)
        if length is None or at + length > len(data) or not number:
            raise ValueError("its footer is damaged")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("its footer is damaged")


def _number(message: dict[int, list[int | bytes]], field: int, default: int = 0) -> int:
    value = message.get(field, [default])[-1]
    if isinstance(value, bytes):
        raise ValueError("its footer is damaged")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("its footer is damaged")
    return value


# -- compression --------------------------------------------------------------------------------------------------


def _plain(data: bytes, compression: int, block: int) -> bytes:
    """A footer without its compression: chunks, each after its length and whether it is as it was."""
    if not compression:
        return data
    unpack = _CODECS.get(compression)
    if unpack is None:
        raise ValueError(f"its compression has the number {compression}, which is not supported")
    parts, at = [], 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        if len(chunk) != head >> 1:
            raise ValueError("its footer is damaged")
        parts.append(chunk if head & 1 else unpack(chunk, block))
        at += 3 + len(chunk)
    return b"".join(parts)


def _zlib(chunk: bytes, block: int) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(chunk, block)
    except zlib.error as problem:
        raise ValueError(f"its footer is damaged: {problem}") from None


def _snappy(chunk: bytes, block: int) -> bytes:
    size, _ = _varint(chunk, 0)
    if size > block:
        raise ValueError("its footer is damaged")
    return bytes(pa.decompress(chunk, decompressed_size=size, codec="snappy"))


def _zstd(chunk: bytes, block: int) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read(block))


def _lz4(chunk: bytes, block: int) -> bytes:
    """LZ4 without a frame does not say how long the text is, which Arrow's codec has to know."""
    out, at = bytearray(), 0
    try:
        while True:
            token = chunk[at]
            literals, at = _lz4_length(chunk, token >> 4, at + 1)
            out += chunk[at : at + literals]
            at += literals
            if at >= len(chunk):
                return bytes(out)
            back = int.from_bytes(chunk[at : at + 2], "little")
            length, at = _lz4_length(chunk, token & 15, at + 2)
            if not 0 < back <= len(out) or len(out) + length > block:
                raise ValueError("its footer is damaged")
            for _ in range(length + 4):
                out.append(out[-back])
    except IndexError:
        raise ValueError("its footer is damaged") from None


def _lz4_length(chunk: bytes, length: int, at: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = chunk[at]
            length, at = length + more, at + 1
            if more != 255:
                break
    return length, at


_CODECS: dict[int, Callable[[bytes, int], bytes]] = {1: _zlib, 2: _snappy, 4: _lz4, 5: _zstd}
