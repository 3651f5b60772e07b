"""What pyarrow does not say of an ORC file: the rows of each stripe, its calendar, and the time zone of its writer.

They are in messages of Protocol Buffers in the file's tail and in its stripes' footers, compressed in chunks (ORC v1).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessages

_TAIL = 16 * 1024  # bytes of the end of a file that are read first; the tail is rarely longer
_UNKNOWN, _PROLEPTIC = 0, 2  # calendars: not named, and Gregorian throughout. The third is Julian before 1582
_JAVA = 0  # the writer that uses the Julian calendar if it does not name one, as Hive and Spark do; others never use it
_LARGEST = 256 * 1024 * 1024  # maximum size of a footer, bytes: a larger one is a damaged length
_FIELDS: Final[Mapping[str, Mapping[str, int]]] = {  # field numbers in ORC's messages
    "PostScript": {"footer_length": 1, "compression": 2, "block": 3, "magic": 8000},
    "Stripe": {"offset": 1, "index_length": 2, "data_length": 3, "footer_length": 4, "rows": 5},
    "Footer": {"stripes": 3, "rows": 6, "writer": 9, "calendar": 11},
    "StripeFooter": {"zone": 3},
}
_BYTES: Final = {"magic", "zone"}


def _messages() -> Mapping[str, Any]:
    file, kinds = FileDescriptorProto(name="orc.proto"), FieldDescriptorProto
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number in fields.items():
            made.field.add(name=name, number=number, type=kinds.TYPE_BYTES if name in _BYTES else kinds.TYPE_UINT64)
            if name == "stripes":
                stripes = kinds(type=kinds.TYPE_MESSAGE, type_name="Stripe", label=kinds.LABEL_REPEATED)
                made.field[-1].MergeFrom(stripes)
    found: Mapping[str, Any] = GetMessages([file])
    return found


_MESSAGES: Final = _messages()


def _message(name: str, data: bytes) -> Any:
    try:
        return _MESSAGES[name].FromString(data)
    except DecodeError:
        raise ValueError("its footer is damaged") from None


@dataclass(frozen=True, slots=True)
class Stripe:
    """A stripe, as the tail describes it."""

    rows: int
    size: int  # of its indexes and data, bytes
    footer: tuple[int, int]  # first byte, and number of bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of an ORC file."""

    stripes: tuple[Stripe, ...]
    rows: int
    compression: int
    block: int  # of a chunk before its compression, bytes
    gregorian: bool  # throughout, not Julian before 1582


def read_tail(raw: pa.NativeFile, size: int) -> Tail:
    """Read the tail of a file of `size` bytes."""
    data = _at(raw, max(0, size - _TAIL), min(size, _TAIL))
    length = data[-1] if data else 0
    post = _message("PostScript", data[-1 - length : -1])
    if post.magic != b"ORC":
        raise ValueError("it does not end as an ORC file does")
    compression, block = post.compression, post.block if post.HasField("block") else 256 * 1024
    begin = size - 1 - length - post.footer_length
    if begin < 0 or post.footer_length > _LARGEST:
        raise ValueError("its footer has an impossible length")
    found = _message("Footer", _plain(_at(raw, begin, post.footer_length), compression, block))
    stripes = []
    for one in found.stripes:
        content = one.index_length + one.data_length
        if one.offset + content + one.footer_length > size or one.footer_length > _LARGEST:
            raise ValueError("a stripe ends behind the end of the file")
        stripes.append(Stripe(one.rows, content, (one.offset + content, one.footer_length)))
    if sum(stripe.rows for stripe in stripes) != found.rows:
        raise ValueError("its stripes do not have as many rows as the file")
    gregorian = found.calendar == _PROLEPTIC or (found.calendar == _UNKNOWN and found.writer != _JAVA)
    return Tail(tuple(stripes), found.rows, compression, block, gregorian)


def time_zones(raw: pa.NativeFile, tail: Tail) -> set[str]:
    """The time zones in which the stripes were written; the empty text stands for one that is not named."""
    zones = set()
    for stripe in tail.stripes:
        found = _message("StripeFooter", _plain(_at(raw, *stripe.footer), tail.compression, tail.block))
        zones.add(found.zone.decode("ascii", "replace"))
    return zones


def _at(raw: pa.NativeFile, begin: int, length: int) -> bytes:
    raw.seek(begin)
    data = raw.read(length)
    if len(data) != length:
        raise ValueError(f"it ends within the {length} bytes from byte {begin}")
    return bytes(data)


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
    size = shift = 0
    for byte in chunk[:5]:
        size, shift = size | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            break
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
