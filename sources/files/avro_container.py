"""The container of Avro: a header, then blocks: the numbers of rows and bytes, the rows, and the file's marker."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

MAGIC = b"Obj\x01"

_FIRST = 64 * 1024  # bytes that are read for the header first
_WINDOW = 1024 * 1024  # bytes in which a marker is searched at a time
_MARKER = 16
_NUMBERS = 20  # most bytes of the two numbers with which a block begins


@dataclass(frozen=True)
class Header:
    """The beginning of a file."""

    schema: Any
    codec: str
    marker: bytes
    end: int  # the byte after the header, at which the first block begins


@dataclass(frozen=True, slots=True)
class Block:
    """A block."""

    begin: int
    rows: int
    end: int  # the byte after its marker


def read_header(raw: pa.NativeFile, size: int) -> Header:
    """Read the header of a file of `size` bytes."""
    length = min(_FIRST, size)
    while True:
        raw.seek(0)
        data = bytes(raw.read(length))
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as an Avro file does")
        try:
            return _header(data)
        except EOFError:
            if length >= size:
                raise ValueError("it ends within its header") from None
            length = min(length * 8, size)


def _header(data: bytes) -> Header:
    stream = io.BytesIO(data)
    stream.seek(len(MAGIC))
    notes: dict[bytes, bytes] = {}
    while count := _long(stream):
        if count < 0:
            count = -count
            _long(stream)  # the size of this part, for those who skip it
        for _ in range(count):
            name = _take(stream, _long(stream))
            notes[name] = _take(stream, _long(stream))
    marker = _take(stream, _MARKER)
    try:
        schema = json.loads(notes[b"avro.schema"])
    except (KeyError, ValueError, RecursionError):
        raise ValueError("its header has no schema, or one that is nested too deeply") from None
    return Header(schema, notes.get(b"avro.codec", b"null").decode("utf-8", "replace"), marker, stream.tell())


def made_header(header: Header, schema: Any) -> bytes:
    """A header with another schema."""
    out = bytearray(MAGIC)
    notes = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": header.codec.encode()}
    out += _as_long(len(notes))
    for name, value in notes.items():
        out += _as_long(len(name)) + name + _as_long(len(value)) + value
    return bytes(out + _as_long(0) + header.marker)


def _as_long(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _long(stream: io.BytesIO) -> int:
    value = shift = 0
    while shift < 64:
        byte = _take(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number in it is too large")


def _take(stream: io.BytesIO, length: int) -> bytes:
    if length < 0:
        raise ValueError("a length in it is negative")
    data = stream.read(length)
    if len(data) != length:
        raise EOFError
    return data


def block_at(raw: pa.NativeFile, header: Header, begin: int, size: int) -> Block:
    """The block that begins at a byte."""
    raw.seek(begin)
    stream = io.BytesIO(bytes(raw.read(min(_NUMBERS, size - begin))))
    try:
        rows, length = _long(stream), _long(stream)
    except EOFError:
        raise ValueError(f"it ends within the block at byte {begin}") from None
    end = begin + stream.tell() + length + _MARKER
    if rows < 0 or length < 0 or end > size:
        raise ValueError(f"no complete block begins at byte {begin}")
    raw.seek(end - _MARKER)
    if bytes(raw.read(_MARKER)) != header.marker:
        raise ValueError(f"the block at byte {begin} does not end with the file's marker")
    return Block(begin, rows, end)


def blocks(raw: pa.NativeFile, header: Header, begin: int, size: int) -> Iterator[Block]:
    """The blocks from a byte on; their rows are not read."""
    while begin < size:
        found = block_at(raw, header, begin, size)
        yield found
        begin = found.end


def begins_at(raw: pa.NativeFile, header: Header, at: int, size: int) -> bool:
    """Whether a block begins, or the file ends, at a byte behind the header."""
    if at in (header.end, size):
        return True
    if not header.end < at - _MARKER + 1 or at > size:
        return False
    raw.seek(at - _MARKER)
    if bytes(raw.read(_MARKER)) != header.marker:
        return False
    try:
        block_at(raw, header, at, size)
    except ValueError:
        return False
    return True


def next_begin(raw: pa.NativeFile, header: Header, at: int, end: int, size: int) -> int:
    """The beginning of the first block from byte `at` on, found by the marker before it; at most `end`."""
    # One that begins at `at` itself has its marker before it.
    at = max(at, header.end) - _MARKER
    while at < end:
        raw.seek(at)
        data = bytes(raw.read(min(_WINDOW + _MARKER, size - at)))
        place = data.find(header.marker)
        while place >= 0:
            begin = at + place + _MARKER
            if begin >= end:
                return end
            # Rows may contain the marker, however unlikely that is.
            if begins_at(raw, header, begin, size):
                return begin
            place = data.find(header.marker, place + 1)
        at += _WINDOW
    return end
