"""Bodies in Arrow's streaming format: each row becomes an event, as JSON that has all of its digits. Pure.

Only types that JSON can hold exactly are accepted, and nothing in a body that makes it larger than it is: dictionaries,
runs and compressed buffers, which Arrow expands before anybody can say how large they become.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from spark_ext.ingest.signatures import Rejected
from spark_ext.schemas.casts import cast, replaced

STEP: Final = 1024  # rows that are converted before their size is looked at

_HEADER: Final = 2  # the field of a message with the description of its buffers
_COMPRESSION: Final = 3  # the field of that description with their compression


def rows_as_json(body: bytes, most: int) -> list[bytes]:
    """The rows of a stream.

    Raises:
        Rejected: it is damaged, has a type that JSON cannot hold, or more than `most` bytes as JSON.
    """
    rows: list[bytes] = []
    size = 0
    try:
        for row in _rows(body):
            rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
            size += len(rows[-1])
            if size > most:
                raise Rejected(413, f"the rows of the body have more than {most} bytes as JSON")
    except (pa.ArrowException, OSError, ValueError, struct.error) as problem:
        raise Rejected(400, f"the body is not a readable Arrow IPC stream: {str(problem)[:200]}") from None
    return rows


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type == "record batch" and _is_compressed(bytes(message.metadata)):
            raise Rejected(415, "the buffers in the body are compressed: compress the body as a whole instead")
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        for field in stream.schema:
            _check_type(field.type, field.name)
        if not len(stream.schema) or len(set(stream.schema.names)) < len(stream.schema):
            raise Rejected(422, "the rows of the body have no columns, or two of one name")
        texts = pa.schema([field.with_type(replaced(field.type, _text)) for field in stream.schema])
        for batch in stream:
            batch.validate(full=True)
            for start in range(0, batch.num_rows, STEP):
                part = batch.slice(start, STEP)
                columns = [cast(column, field.type) for column, field in zip(part.columns, texts, strict=True)]
                yield from pa.RecordBatch.from_arrays(columns, schema=texts).to_pylist()


def _check_type(kind: pa.DataType, path: str) -> None:
    if types.is_struct(kind) and kind.num_fields:
        for field in kind:
            _check_type(field.type, f"{path}.{field.name}")
    elif types.is_list(kind):
        _check_type(kind.value_type, f"{path}.element")
    elif not (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or _text(kind) == pa.string()
    ):
        raise Rejected(422, f"column '{path}' has the type {kind}, which has no form in JSON")


def _text(kind: pa.DataType) -> pa.DataType:
    """As which type a value becomes JSON: dates, times and decimals are texts, which Arrow reads back exactly."""
    textual = types.is_string(kind) or types.is_large_string(kind)
    exact = types.is_decimal(kind) or types.is_date32(kind) or types.is_timestamp(kind)
    return pa.string() if textual or exact else kind


def _is_compressed(metadata: bytes) -> bool:
    """Whether the metadata of a record batch (a table of Flatbuffers) says that its buffers are compressed."""
    root = _uint(metadata, 0)
    header = _field(metadata, root, _HEADER)
    if header is None:
        raise ValueError("a message has no header")
    return _field(metadata, header + _uint(metadata, header), _COMPRESSION) is not None


def _field(content: bytes, table: int, number: int) -> int | None:
    """Where a field of a table is, if the table has it."""
    names = table - struct.unpack_from("<i", content, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", content, names)[0]:
        return None
    offset = struct.unpack_from("<H", content, names + at)[0]
    return table + offset if offset else None


def _uint(content: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", content, at)[0])
