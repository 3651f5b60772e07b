"""Rows that a file format cannot hold, and values that no folder can be named by."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.files_2pc.formats import json_lines, refuse_unreadable
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import Driver
from tests.sinks.files_2pc.files_target import FilesTarget

pytestmark = pytest.mark.usefixtures("states")

FAR = 253_402_300_800_000_000  # The first microsecond of the year 10000, since 1970


def batch(schema: T.StructType, moments: Sequence[int | None]) -> pa.RecordBatch:
    """Rows with an id and a time, which Python need not have."""
    ids = pa.array(range(len(moments)), pa.int64())
    at = pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC"))
    if isinstance(schema["at"].dataType, T.ArrayType):
        at = pa.ListArray.from_arrays(pa.array(range(len(moments) + 1), pa.int32()), at)
    return pa.RecordBatch.from_arrays([ids, at], schema=arrow_schema(schema))


@pytest.mark.parametrize(
    ("kind", "ddl"), [("csv", "id bigint, at timestamp"), ("json", "id bigint, at timestamp"),
                      ("json", "id bigint, at array<timestamp>")]
)  # fmt: skip
def test_times_that_have_no_text_form(tmp_path: Path, kind: str, ddl: str) -> None:
    schema = columns(ddl)
    kit = BadRowsKit(FilesTarget(tmp_path / "t", kind), schema, partition_by="")
    one = kit.driver().claim()
    moments = [FAR if n in (0, 1_500, 2_999) else n for n in range(3_000)]
    one.commit([one.write_batches(0, iter([batch(schema, moments)]))], 0)
    kit.settle(0)
    assert kit.table() == [0, 1_500, 2_999]
    assert len(kit.target.rows()) == 2_997
    assert all("years 1 to 9999" in row["reason"] for row in kit.found())
    assert kit.found()[0]["position"] == '{"partition": 0, "row": 0}'


# Spark reads a"b, and null: that is the option `nullValue` of `read_options`.
@pytest.mark.parametrize("texts", [["a", 'a\0"b'], [None, "\0null\0"]])
def test_texts_that_are_not_read_back(tmp_path: Path, texts: list[str | None]) -> None:
    rows, words = pa.record_batch({"id": [0, 1], "text": texts}), "'text' has a text with the character NUL"
    refuse_unreadable(rows.slice(0, 1), "csv")
    with pytest.raises(ValueError, match=words):
        refuse_unreadable(rows, "csv")
    one = Driver(FilesTarget(tmp_path / "t", "csv"), schema=columns("id bigint, text string")).claim()
    with pytest.raises(DataError, match=words):
        one.write_batches(0, iter([rows]))


def test_a_negative_zero_keeps_its_sign_in_json() -> None:
    table = pa.table({"x": pa.array([-0.0, 0.0, -1.0, None])})
    assert json_lines(table, columns("x double")) == b'{"x":-0.0}\n{"x":0}\n{"x":-1}\n{"x":null}\n'


def test_partitions_by_values_that_no_folder_can_have(tmp_path: Path) -> None:
    schema = columns("id bigint, name string, day date")
    kit = BadRowsKit(FilesTarget(tmp_path / "t", "parquet"), schema, partition_by="name,day")
    one = kit.driver().claim()
    days = pa.array([0, 2_932_897, 1, 2], pa.int32()).cast(pa.date32())
    names = pa.array(["a", "b", "x" * 300, None], pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array(range(4), pa.int64()), names, days], schema=arrow_schema(schema))
    one.commit([one.write_batches(0, iter([rows]))], 0)
    kit.settle(0)
    assert (kit.target.ids(), kit.table()) == ([0, 3], [1, 2])
