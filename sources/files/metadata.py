"""The column `_metadata`: from which file a row is, as in Spark's own readers of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import refused
from spark_ext.schemas.columns import spark_schema
from spark_ext.sources.contract import BadRow
from spark_ext.sources.files.row_groups import OnBadRow

NAME: Final = "_metadata"
_FIELDS: dict[str, pa.DataType] = {
    "file_path": pa.string(),
    "file_name": pa.string(),
    "file_size": pa.int64(),
    "file_modification_time": pa.timestamp("us", "UTC"),
    "row_index": pa.int64(),
}

ROW_INDEX: Final = "row_index"  # only of formats whose positions are rows


def spark_type(*, by_row: bool) -> StructType:
    """The type of the column, with the number of the row if positions are rows."""
    wanted = [(name, kind) for name, kind in _FIELDS.items() if by_row or name != ROW_INDEX]
    return spark_schema(pa.schema(wanted))


def check(declared: pa.Schema, operator: str) -> None:
    """Refuse a declared schema whose column `_metadata` has other fields, or that does not have the column."""
    wanted = spark_type(by_row=True).simpleString()
    if NAME not in declared.names:
        raise refused(
            f"metadata=true adds the column '{NAME}', which the declared schema does not have",
            operator,
            f"declare it in .schema(...), as {NAME} {wanted} or with fewer fields",
        )
    kind = declared.field(NAME).type
    fields = list(kind) if types.is_struct(kind) else []
    for field in fields:
        if _FIELDS.get(field.name) != field.type:
            what = f"the column '{NAME}' is declared with the field '{field.name}' of the type {field.type}"
            raise refused(what, operator, f"declare fields of {wanted}")
    if not fields:
        do = f"declare it as {wanted}, or with some of these fields"
        raise refused(f"the column '{NAME}' is declared as {kind}", operator, do)


def with_metadata(
    read: Callable[[OnBadRow], Iterator[pa.RecordBatch]],
    declared: pa.Schema,
    file: InputFile,
    place: str,
    start: int,
    bad: OnBadRow,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file with the column; `read` reads them without it, and `start` is the first one's position."""
    kind = declared.field(NAME).type
    passed = 0

    def count(row: BadRow) -> None:
        nonlocal passed
        passed += 1
        assert bad is not None
        bad(row)

    values = {
        "file_path": uri(file, place),
        "file_name": file.path.rpartition("/")[2],
        "file_size": file.size,
        "file_modification_time": None if file.modified is None else file.modified // 1000,
    }
    row = start
    for batch in read(None if bad is None else count):
        # Bad rows are reported before the rows behind them are returned.
        first, rows = row + passed, batch.num_rows
        row += rows
        fields = [
            pa.array(range(first, first + rows), field.type)
            if field.name == ROW_INDEX
            else pa.repeat(pa.scalar(values[field.name], field.type), rows)
            for field in kind
        ]
        columns = iter(batch.columns)
        yield pa.RecordBatch.from_arrays(
            [
                pa.StructArray.from_arrays(fields, fields=list(kind)) if name == NAME else next(columns)
                for name in declared.names
            ],
            schema=declared,
        )


def uri(file: InputFile, place: str) -> str:
    """The address of a file, without credentials."""
    if file.local:
        return Path(file.path).as_uri()
    found = urlsplit(place)
    host = found.netloc.rpartition("@")[2]
    path = file.path.lstrip("/")
    # Of an object store the path begins with the bucket.
    return f"{found.scheme}://{path}" if not host or path.split("/")[0] == host else f"{found.scheme}://{host}/{path}"
