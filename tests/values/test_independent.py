"""What sinks refuse, other clients do not store or read either, or it is a limit; and the page says so."""

import csv
import io
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyarrow import csv as arrow_csv
from pyarrow import dataset
from pyspark.sql import types as T

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource
from spark_ext.spark.session import formats
from tests.support import pages
from tests.values import table as kinds
from tests.values.forms import batch_of, plain
from tests.values.page import written
from tests.values.table import SINKS, SOURCES


def test_a_limit_is_of_values_that_the_sink_refuses() -> None:
    cells = {kinds.SINKS[name].get(row) for one in kinds.LIMITS for name in one.sinks for row in one.rows}
    assert cells == {kinds.BAD, kinds.START}


@pytest.mark.parametrize("value", kinds.NO_UTF8.examples[T.StringType()])
def test_bytes_that_are_no_text_are_read_by_nobody(tmp_path: Path, value: bytes) -> None:
    _, batch = batch_of(T.StringType(), [value])
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):
        pq.read_table(tmp_path / "x.parquet")["v"].to_pylist()
    with pytest.raises(pa.ArrowException):
        pd.read_parquet(tmp_path / "x.parquet")
    with pytest.raises(UnicodeDecodeError):  # as json and csv are given them
        io.TextIOWrapper(io.BytesIO(value), "utf-8").read()
    with pytest.raises(UnicodeDecodeError):
        fastavro.schemaless_reader(io.BytesIO(bytes([2 * len(value)]) + value), "string", None)


def test_what_postgres_2pc_refuses_the_server_refuses_of_psycopg() -> None:
    """Which is what the test of the source's cells has found, as it fills its tables by psycopg."""
    assert {row for row, word in kinds.SINKS["postgres_2pc"].items() if word == kinds.BAD} == {
        row
        for row in kinds.VALUES
        if kinds.SOURCES["postgres"].get(row) == kinds.NONE and row.type in ("string", "date", *TIMES)
    }


TIMES: Final = ("timestamp", "timestamp_ntz")


@pytest.mark.parametrize("value", [1, True, 1.5, date(2024, 1, 1), {}, []])
def test_a_message_of_kafka_is_bytes(value: Any) -> None:
    with pytest.raises(TypeError):
        Producer({}).produce("t", value)


def test_an_avro_map_has_strings_as_keys() -> None:
    with pytest.raises(TypeError):
        fastavro.schemaless_writer(io.BytesIO(), {"type": "map", "values": "string"}, {1: "a"})


def by_delta_rs(path: Path, rows: pa.Table) -> pa.Table:
    write_deltalake(path, rows, partition_by=["v"])
    return pa.table(DeltaTable(path).scan())


def by_pyarrow(path: Path, rows: pa.Table) -> pa.Table:
    pq.write_to_dataset(rows, path, partition_cols=["v"])
    hive = dataset.partitioning(pa.schema([rows.schema.field("v")]), flavor="hive")
    return dataset.dataset(path, partitioning=hive).to_table()


def as_csv(path: Path, rows: pa.Table) -> pa.Table:
    arrow_csv.write_csv(rows, path)
    convert = arrow_csv.ConvertOptions(column_types=rows.schema, quoted_strings_can_be_null=False)
    lines = arrow_csv.ParseOptions(newlines_in_values=True)
    return arrow_csv.read_csv(path, parse_options=lines, convert_options=convert)


@pytest.mark.parametrize(
    ("client", "name", "put"),
    [
        ("delta-rs", "delta_2pc, partition", by_delta_rs),
        ("pyarrow", "files_2pc, folder", by_pyarrow),
        ("pyarrow", "files_2pc, CSV", as_csv),
    ],
)
def test_values_that_only_a_client_stores_are_among_the_limits(
    tmp_path: Path, client: str, name: str, put: Callable[[Path, pa.Table], pa.Table]
) -> None:
    found = set[str]()
    for n, row in enumerate(
        row for row in (*kinds.VALUES, *kinds.TYPES) if kinds.SINKS[name].get(row) in (kinds.BAD, kinds.START)
    ):
        kind, values = next(iter(row.examples.items()))
        _, batch = batch_of(kind, values[:1])
        if batch.num_columns and row not in (kinds.NO_UTF8, kinds.COLLATED):
            with suppress(Exception):  # it stores no such value
                read = put(tmp_path / str(n), pa.Table.from_batches([batch]))["v"]
                if [plain(value) for value in read.combine_chunks().cast(batch["v"].type)] == values[:1]:
                    found.add(f"{row.type} {row.what}")
    limits = [one for one in kinds.LIMITS if client in one.clients and name in one.sinks]
    assert found == {f"{row.type} {row.what}" for one in limits for row in one.rows}


def test_delta_rs_does_not_find_timestamp_ntz_in_a_map(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.timestamp("us"))
    with pytest.raises(DeltaError, match="does not have the required 'timestampNtz' feature"):
        DeltaTable.create(tmp_path, Schema.from_arrow(pa.schema({"v": kind})))


FAR_TEXTS: Final = [
    (pa.date32(), "+10000-01-01"), (pa.date32(), "0000-01-01"), (pa.date32(), "-0001-12-31"),
    (pa.timestamp("us", "UTC"), "+10000-01-01 00:00:00"), (pa.timestamp("us"), "+10000-01-01 00:00:00"),
    (pa.timestamp("us"), "-4713-01-01 00:00:00"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), FAR_TEXTS)
def test_a_table_with_such_a_partition_is_not_read_into_arrow(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    table = DeltaTable.create(tmp_path, Schema.from_arrow(pa.schema({"id": pa.int64(), "v": kind})), partition_by=["v"])
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    add = AddAction("x.parquet", (tmp_path / "x.parquet").stat().st_size, {"v": text}, 0, True, "{}")
    table.create_write_transaction([add], "append", table.schema(), ["v"])
    with pytest.raises(ValueError, match=r"year 0 is out of range|Invalid isoformat string|Failed to parse string"):
        DeltaTable(tmp_path).to_pyarrow_table()


def test_delta_rs_changes_the_bytes_of_a_partition(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "v": [b"\xff"]}), partition_by=["v"])
    assert DeltaTable(tmp_path).to_pyarrow_table()["v"].to_pylist() == [b"\\u00FF"]


@pytest.mark.parametrize("text", ["+10000-01-01", "-0001-12-31"])
def test_python_and_arrow_do_not_read_a_far_date(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid isoformat string"):
        date.fromisoformat(text)
    with pytest.raises(pa.ArrowInvalid, match="Failed to parse string"):
        pa.array([text]).cast(pa.date32())


def test_python_reads_nul_in_csv() -> None:
    assert list(csv.reader(io.StringIO('"a\0b"\n', newline=""))) == [["a\0b"]]


def test_an_interval_in_parquet_is_a_number_to_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array([1], pa.duration("us"))}), tmp_path / "x.parquet", store_schema=False)
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"v": [1]}


@pytest.mark.parametrize("day", [-719_529, -719_528, 2_932_897])
def test_delta_rs_does_not_read_its_own_bounds_of_far_dates(tmp_path: Path, day: int) -> None:
    """Of the years -1, 0 and 10000: why `delta_2pc` refuses them with `optimize_interval`."""
    write_deltalake(tmp_path, pa.table({"id": [1], "v": pa.array([day], pa.int32()).cast(pa.date32())}))
    with pytest.raises(ValueError, match=r"year 0 is out of range|Invalid isoformat string"):
        DeltaTable(tmp_path).to_pyarrow_table()


INSIDE = {"control_stamp", "end_of_input", "control", "datagen", "hybrid"}
"""Sources that read nothing from outside, and `hybrid`, whose stages are other sources."""


def test_the_page_has_the_tables_of_the_tests() -> None:
    assert pages.read("values") == written(pages.read("values")), "run python -m tests.values.page docs/values.md"


def test_each_source_and_sink_is_in_a_table() -> None:
    shipped = {one.name() for one in formats.load() if issubclass(one, (ChannelSource, TwoPhaseCommitSink))}
    assert {name.split(",")[0] for name in (*SOURCES, *SINKS)} == shipped - INSIDE
