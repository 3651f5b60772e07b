"""What sinks refuse, other clients of their targets do not store or do not read either."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from tests.values.forms import batch_of
from tests.values.table import (
    BAD,
    NO_UTF8,
    NONE,
    SINKS,
    SOURCES,
    VALUES,
)

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize("value", NO_UTF8.examples[T.StringType()])
def test_bytes_that_are_no_text_are_read_by_nobody(tmp_path: Path, value: bytes) -> None:
    """From Parquet, as in Delta and exchanges, from text such as JSON and CSV, and from Avro."""
    _, batch = batch_of(T.StringType(), [value])
    rows = pa.Table.from_batches([batch])
    pq.write_table(rows, tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):
        pq.read_table(tmp_path / "x.parquet")["v"].to_pylist()
    with pytest.raises(pa.ArrowException):
        pd.read_parquet(tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):  # as json and csv are given them
        io.TextIOWrapper(io.BytesIO(value), "utf-8").read()
    with pytest.raises(UnicodeDecodeError):
        fastavro.schemaless_reader(io.BytesIO(bytes([2 * len(value)]) + value), "string", None)


def test_what_postgres_2pc_refuses_of_a_value_the_server_refuses_of_psycopg() -> None:
    """Which is what the test of the source's cells has found, as it fills its tables by psycopg."""
    assert {row for row, word in SINKS["postgres_2pc"].items() if word == BAD} == {
        row for row in VALUES if SOURCES["postgres"].get(row) == NONE and row.type in ("string", "date", *TIMES)
    }


TIMES: Final = ("timestamp", "timestamp_ntz")


@pytest.mark.parametrize("day", [-719_529, -719_528, 2_932_897])
def test_delta_rs_does_not_read_the_bounds_of_far_dates_that_it_writes(tmp_path: Path, day: int) -> None:
    """Of the years -1, 0 and 10000: why `delta_2pc` refuses them where delta-rs rewrites files."""
    rows = pa.table({"id": [1], "v": pa.array([day], pa.int32()).cast(pa.date32())})
    write_deltalake(tmp_path, rows)
    with pytest.raises(ValueError, match=r"year 0 is out of range|Invalid isoformat string"):
        DeltaTable(tmp_path).to_pyarrow_table()
