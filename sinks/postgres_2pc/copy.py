"""Arrow batches as the stream of `COPY ... WITH (FORMAT binary)`, without a Python object per value.

A row is the number of its fields, then each field's length (-1: null) and bytes. Columns of fixed width without nulls
are one numpy array of records; other columns become an Arrow array of (length, bytes) each, and Arrow joins them row by
row. The format is that of PostgreSQL's documentation of COPY, and of the `send` and `recv` functions of its types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_ext.sinks.postgres_2pc.types import Column

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_DAYS = 10_957  # From 1970 to 2000, PostgreSQL's epoch
_MICROS = _DAYS * 86_400_000_000
_PIECE_BYTES = 32 * 1024**2  # A larger batch is divided: an Arrow array of binaries is limited to 2 GiB
# Days or microseconds since 1970 that a column can hold: from, to (inclusive); and these as text.
_RANGES = {
    # As the server's documentation has them; beyond them are its `infinity` and `-infinity`.
    "date": (-2_451_545 + _DAYS, 2_145_031_948 + _DAYS, "between the years 4713 BC and 5874897"),
    "timestamp": (-211_813_488_000_000_000 + _MICROS, 2**63 - 1, "between the years 4713 BC and 294276"),
}
Bytes = npt.NDArray[np.uint8]


class ValueMisfit(ValueError):
    """A value that does not fit its column, found before it is sent to the server."""

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(reason)
        self.row, self.column, self.reason = row, column, reason


def encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[memoryview | bytes]:
    """The rows of a batch with these columns, in their order; without header and trailer."""
    if batch.num_rows > 1 and batch.nbytes > _PIECE_BYTES:
        half = batch.num_rows // 2
        for start, piece in ((0, batch.slice(0, half)), (half, batch.slice(half))):
            try:
                yield from encode(piece, columns)
            except ValueMisfit as misfit:
                raise ValueMisfit(start + misfit.row, misfit.column, misfit.reason) from None
    elif batch.num_rows:
        yield _rows(batch, columns)


def _rows(batch: pa.RecordBatch, columns: Sequence[Column]) -> memoryview | bytes:
    count = np.frombuffer(struct.pack(">h", len(columns)), np.uint8)
    run: list[Bytes] = [np.broadcast_to(count, (batch.num_rows, 2))]
    parts: list[pa.Array] = []
    for array, column in zip(batch.columns, columns, strict=True):
        fixed = _fixed(array, column)
        if fixed is not None and not array.null_count:
            run += [_length(fixed.shape[1], batch.num_rows), fixed]
            continue
        if run:
            parts.append(_binary(np.hstack(run)))
            run = []
        parts.append(_field(array, column, fixed))
    if not parts:
        return np.hstack(run).tobytes()
    if run:
        parts.append(_binary(np.hstack(run)))
    joined = pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0]
    return _data(joined)


def _data(array: pa.Array) -> memoryview:
    """The bytes of all values, one after the other."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return memoryview(array.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def _length(width: int, rows: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(struct.pack(">i", width), np.uint8), (rows, 4))


def _binary(matrix: Bytes) -> pa.Array:
    """Rows of bytes as an Arrow array."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32) if width else np.zeros(rows + 1, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _field(array: pa.Array, column: Column, fixed: Bytes | None = None) -> pa.Array:
    """Each value preceded by its length; a null is the length -1."""
    if fixed is not None:
        value = _binary(np.hstack([_length(fixed.shape[1], len(array)), fixed]))
        return pc.if_else(array.is_valid(), value, _NULL) if array.null_count else value
    payload = _payload(array, column)
    lengths = pc.binary_length(payload).fill_null(0).to_numpy(zero_copy_only=False).astype(">i4")
    value = pc.binary_join_element_wise(_binary(lengths.view(np.uint8).reshape(-1, 4)), payload, b"")
    return pc.coalesce(value, _NULL)


# -- values of fixed width -----------------------------------------------------------------------------------------


def _fixed(array: pa.Array, column: Column) -> Bytes | None:
    """The bytes of all values, of the same width; arbitrary for a null. None: the type has no fixed width."""
    kind = column.kind if column.element is None else "array"
    if kind in _NUMBERS:
        wire, shift = _NUMBERS[kind]
        numbers = _numbers(array)
        if shift:
            _check_range(numbers, column)
            _check_precision(numbers, column)
        return _big_endian(numbers - shift if shift else numbers, wire)
    if kind == "interval":
        # Microseconds, then days and months.
        return np.hstack([_big_endian(_numbers(array), ">i8"), np.zeros((len(array), 8), np.uint8)])
    if kind == "numeric":
        return _numeric(array)
    if kind == "uuid":
        return _uuid(array, column)
    return None


_NUMBERS: dict[str, tuple[str, int]] = {
    "bool": (">u1", 0),
    "int2": (">i2", 0),
    "int4": (">i4", 0),
    "int8": (">i8", 0),
    "float4": (">f4", 0),
    "float8": (">f8", 0),
    "date": (">i4", _DAYS),
    "timestamp": (">i8", _MICROS),
    "timestamptz": (">i8", _MICROS),
}


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    if types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    elif types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    return np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False))


def _check_range(numbers: npt.NDArray[Any], column: Column) -> None:
    """Refuse what would wrap, or become one of the server's infinities."""
    first, last, years = _RANGES["date" if (column.element or column.kind) == "date" else "timestamp"]
    wrong = (numbers < first) | (numbers > last)
    if wrong.any():
        raise ValueMisfit(int(wrong.argmax()), column.name, f"PostgreSQL has no date or time that is not {years}")


def _check_precision(numbers: npt.NDArray[Any], column: Column) -> None:
    """Refuse what the server would round: times with more digits than those of a `timestamp(p)`."""
    if (column.element or column.kind) != "date" and column.modifier >= 0:
        rounded = numbers % 10 ** (6 - column.modifier) != 0
        if rounded.any():
            reason = f"the column has {column.modifier} digits of a second's fraction ({column.shown})"
            raise ValueMisfit(int(rounded.argmax()), column.name, reason)


def _big_endian(numbers: npt.NDArray[Any], wire: str) -> Bytes:
    made = np.ascontiguousarray(numbers.astype(wire))
    return made.view(np.uint8).reshape(len(made), made.itemsize)


def _numeric(array: pa.Array) -> Bytes:
    """Groups of four decimal digits; the server accepts leading and trailing zeros, so all values have one width."""
    kind = array.type if types.is_decimal(array.type) else None
    scale = kind.scale if kind is not None else 0
    after = -(-scale // 4)
    before = max(1, -(-((kind.precision if kind is not None else 19) - scale) // 4))
    unscaled = _unscaled(array)
    negative, left = unscaled < 0, np.abs(unscaled)
    fraction, left = left % 10**scale, left // 10**scale
    groups = _groups(left, before) + _groups(fraction * 10 ** (after * 4 - scale), after)
    width = 8 + 2 * len(groups)
    out = np.zeros((len(array), width // 2), ">u2")
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = len(groups), before - 1, np.where(negative, 0x4000, 0), scale
    for place, group in enumerate(groups):
        out[:, 4 + place] = group
    return out.view(np.uint8).reshape(len(array), width)


def _groups(numbers: npt.NDArray[Any], count: int) -> list[npt.NDArray[Any]]:
    out = []
    for _ in range(count):
        out.append((numbers % 10_000).astype(np.uint16))
        numbers = numbers // 10_000
    return out[::-1]


def _unscaled(array: pa.Array) -> npt.NDArray[Any]:
    """Decimals as integers: 64 bits if these suffice, also for a further factor of 1,000; else Python's integers."""
    if not types.is_decimal(array.type):
        # The least 64-bit integer has no positive counterpart.
        numbers = np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False))
        return numbers.astype(object) if numbers.dtype == np.int64 else numbers.astype(np.int64)
    halves = np.frombuffer(array.cast(pa.decimal128(array.type.precision, array.type.scale)).buffers()[1], "<i8")
    halves = halves.reshape(-1, 2)[array.offset : array.offset + len(array)]
    if array.type.precision <= 15:
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), halves[:, 0], 0)
    low, high = halves[:, 0].view(np.uint64).astype(object), halves[:, 1].astype(object)
    return np.asarray(np.where(array.is_valid().to_numpy(zero_copy_only=False), (high << 64) | low, 0), dtype=object)


_UUID = r"^(_|\{_\})$".replace("_", "([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")  # The server's forms


def _raise_misfit(wrong: pa.Array, column: Column, reason: str) -> None:
    """Refuse a value; null: it is not wrong."""
    if pc.any(wrong).as_py():
        raise ValueMisfit(pc.index(wrong, True).as_py(), column.name, reason)


def _uuid(array: pa.Array, column: Column) -> Bytes:
    _raise_misfit(pc.invert(pc.match_substring_regex(array, _UUID)), column, "it is not a UUID")
    plain = pc.replace_substring_regex(pc.utf8_lower(array), "[-{}]", "")
    text = "".join(plain.fill_null("0" * 32).to_pylist())
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(len(array), 16)


# -- values of any length ------------------------------------------------------------------------------------------


def _payload(array: pa.Array, column: Column) -> pa.Array:
    """Each value's bytes; null for a null."""
    if column.element is not None:
        return _array(array, column)
    if column.kind in ("json", "jsonb"):
        texts = array if types.is_string(array.type) else _json(array, column)
        if column.kind == "json":
            return texts.cast(pa.binary())
        # The format of jsonb has a version before the text.
        return pc.binary_join_element_wise(b"\x01", texts.cast(pa.binary()), b"")
    length = column.modifier - 4
    if column.kind == "varchar" and length > 0:
        # The server refuses a longer text itself, unless it can cut off blanks.
        fits = pc.less_equal(pc.utf8_length(pc.utf8_rtrim(array, " ")), length)
        wrong = pc.and_(fits, pc.greater(pc.utf8_length(array), length))
        _raise_misfit(wrong, column, f"value too long for type character varying({length})")
    if column.kind == "xml":
        # The server would convert the text, which is UTF-8, once more.
        declared = pc.match_substring_regex(array, r"^<\?xml\s[^>]*encoding")
        other = pc.invert(pc.match_substring_regex(array, r"""^<[^>]*encoding\s*=\s*["'](?i:utf-?8)["']"""))
        wrong = pc.and_(pc.and_(declared, other), pc.invert(pc.string_is_ascii(array)))
        _raise_misfit(wrong, column, "its XML declares another encoding than UTF-8")
    return array.cast(pa.binary())


def _array(array: pa.Array, column: Column) -> pa.Array:
    """Dimensions, whether there are nulls, the element's type; the length, the first index; then the elements."""
    inner = Column(column.name, column.element or "", column.shown, modifier=column.modifier)
    child = array.flatten()
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    try:
        elements = _field(child, inner, _fixed(child, inner))
    except ValueMisfit as misfit:
        # The number of the element; asked for is that of the row.
        row = int(np.searchsorted(ends, misfit.row, side="right"))
        raise ValueMisfit(row, misfit.column, misfit.reason) from None
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    bodies = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), b"")
    head = np.zeros((len(array), 5), ">u4")
    head[:, 0], head[:, 1], head[:, 2], head[:, 3], head[:, 4] = 1, child.null_count > 0, column.element_oid, lengths, 1
    none = struct.pack(">iiI", 0, 0, column.element_oid)
    heads = pc.if_else(pa.array(lengths == 0), none, _binary(head.view(np.uint8).reshape(len(array), 20)))
    joined = pc.binary_join_element_wise(heads, bodies, b"")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.binary()))


def _json(array: pa.Array, column: Column) -> pa.Array:
    """Nested values as JSON, one Python object per value: slower than the other types."""
    plain = _plain(array.type)
    try:
        values = array.to_pylist()
    except (OverflowError, ValueError):
        row = next(row for row in range(len(array)) if not _has_texts(array.slice(row, 1)))
        raise ValueMisfit(row, column.name, "a date or time in it is outside the years 1 to 9999") from None
    return pa.array(
        [None if value is None else json.dumps(plain(value), ensure_ascii=False) for value in values], pa.string()
    )


def _has_texts(one: pa.Array) -> bool:
    try:
        one.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """Converts a value of Arrow's to JSON; NaN, infinities and types that JSON does not support become strings."""
    if types.is_struct(kind):
        fields = {field.name: _plain(field.type) for field in kind}
        return lambda value: value and {name: plain(value[name]) for name, plain in fields.items()}
    if types.is_map(kind):
        key, item = _plain(kind.key_type), _plain(kind.item_type)
        return lambda value: None if value is None else {_text(key(name)): item(one) for name, one in value}
    if types.is_list(kind) or types.is_large_list(kind):
        element = _plain(kind.value_type)
        return lambda value: None if value is None else [element(one) for one in value]
    if types.is_floating(kind):
        return lambda value: str(value) if value is not None and not np.isfinite(value) else value
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind):
        return lambda value: value
    return lambda value: None if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
