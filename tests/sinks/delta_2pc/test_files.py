"""Phase one of `delta_2pc`: files, row groups, partitions, names."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from spark_ext.datafiles import partition_values as values
from spark_ext.datafiles.partitions import split
from spark_ext.datafiles.writer import MOST_OPEN_FILES, file_name, owner_of
from spark_ext.errors import ConfigurationError, DataError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Task
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, numbered, rows, table

UTC = datetime.timezone.utc


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.~-]{0,30}", fullmatch=True),
    st.integers(0, 10**6),
    st.sampled_from([".snappy.parquet", ".parquet", ".csv.gz"]),
)
def test_a_file_name_tells_whose_it_is(uid: str, incarnation: int, suffix: str) -> None:
    name = file_name(Task(uid, "q", 3, 1, 77, incarnation, 0), suffix)
    assert owner_of("day=2013-01-01/" + name) == (uid, incarnation)


@pytest.mark.parametrize("name", ["part-00000-6a0f.snappy.parquet", "x.parquet", "part-a-i1-e2-p3-a4-zz.parquet"])
def test_other_files_have_no_owner(name: str) -> None:
    assert owner_of(name) is None


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t")
    assert driver.write(0, []) is None
    empty = pa.RecordBatch.from_pylist([], schema=rows(driver.schema, numbered(0, 1))[0].schema)
    task = Task(driver.uid, "q", 0, 0, 0, 1, 0)
    assert driver.sink().write(driver.schema, iter([empty, empty]), task) is None
    assert not (tmp_path / "t").exists()


def test_small_batches_become_large_row_groups(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", options={"row_group_rows": "250"})
    batches = (batch for start in range(0, 600, 10) for batch in rows(driver.schema, numbered(start, start + 10)))
    (file,) = driver.sink().write(driver.schema, batches, Task("out", "q", 0, 0, 0, 1, 0)) or ()
    found = pq.ParquetFile(tmp_path / "t" / file.path).metadata
    assert [found.row_group(number).num_rows for number in range(found.num_row_groups)] == [250, 250, 100]
    assert file.size == (tmp_path / "t" / file.path).stat().st_size
    assert file.rows == 600


def test_a_large_task_is_never_held_whole(tmp_path: Path) -> None:
    """With a small budget, rows are on disk before the task's last batch is asked for."""
    driver = Driver(tmp_path / "t", options={"row_group_size": "64k", "target_file_size": "128k"})
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 100_000, 1_000):
            seen.append(sum(file.stat().st_size for file in (tmp_path / "t").glob("*.parquet")))
            yield from rows(driver.schema, numbered(start, start + 1_000))

    files = driver.sink().write(driver.schema, batches(), Task("out", "q", 0, 0, 0, 1, 0)) or ()
    assert seen[50] > 0
    assert len(files) > 1, "a file is closed when it has reached its size"
    driver.commit(0, files)
    assert table(tmp_path / "t").num_rows == 100_000


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_compression(tmp_path: Path, compression: str) -> None:
    driver = Driver(tmp_path / "t", options={"compression": compression})
    (file,) = driver.write(0, numbered(0, 10)) or ()
    chunk = pq.ParquetFile(tmp_path / "t" / file.path).metadata.row_group(0).column(0)
    assert chunk.compression.lower() == {"none": "uncompressed"}.get(compression, compression)


def test_after_an_error_the_attempts_files_are_gone(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", options={"row_group_rows": "10"})

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(driver.schema, numbered(0, 25))
        raise RuntimeError("the rows end in an error")

    with pytest.raises(RuntimeError, match="end in an error"):
        driver.sink().write(driver.schema, batches(), Task("out", "q", 0, 0, 0, 1, 0))
    assert data_files(tmp_path / "t") == set()


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="could not be written") as caught:
        Driver(tmp_path / "file" / "t").write(3, numbered(0, 1))
    assert "sink 'out'" in caught.value.operator and "epoch 3" in caught.value.operator


PARTITIONS: list[tuple[str, spark.DataType, list[Any], list[str | None]]] = [
    ("text", spark.StringType(), ["a", "z/=:%ü ~", None], ["a", "z/=:%ü ~", None]),
    ("long", spark.LongType(), [-5, 7, None], ["-5", "7", None]),
    ("bool", spark.BooleanType(), [True, False], ["true", "false"]),
    ("date", spark.DateType(), [datetime.date(2013, 1, 31), None], ["2013-01-31", None]),
    ("decimal", spark.DecimalType(12, 2), [Decimal("1.50"), Decimal("100.00")], ["1.50", "100.00"]),
    ("double", spark.DoubleType(), [0.1, float("inf")], ["0.1", "Infinity"]),
    (
        "timestamp",
        spark.TimestampType(),
        [datetime.datetime(2013, 1, 1, 5, 15, 0, 7, UTC)],
        ["2013-01-01T05:15:00.000007Z"],
    ),
    ("ntz", spark.TimestampNTZType(), [datetime.datetime(2013, 1, 1, 5, 15)], ["2013-01-01 05:15:00.000000"]),
]


@pytest.mark.parametrize(("name", "kind", "given_", "spelled"), PARTITIONS, ids=[row[0] for row in PARTITIONS])
def test_partition_values(
    tmp_path: Path, name: str, kind: spark.DataType, given_: list[Any], spelled: list[str | None]
) -> None:
    schema = spark.StructType([spark.StructField("p", kind), spark.StructField("id", spark.LongType())])
    driver = Driver(tmp_path / "t", schema, options={"partition_by": "p"})
    files = driver.write(0, [{"p": value, "id": number} for number, value in enumerate(given_)]) or ()
    assert {file.partition["p"] for file in files} == set(spelled)
    driver.commit(0, files)
    found = {row["id"]: row["p"] for row in table(tmp_path / "t").to_pylist()}
    assert found == dict(enumerate(given_))
    assert set(DeltaTable(tmp_path / "t").file_uris()) == {str(tmp_path / "t" / file.path) for file in files}


def test_two_partition_columns_in_the_order_of_the_option(tmp_path: Path) -> None:
    schema = ddl("id long, day date, carrier string")
    driver = Driver(tmp_path / "t", schema, options={"partition_by": "carrier,day"})
    days = [datetime.date(2013, 1, 1), datetime.date(2013, 1, 2)]
    given_ = [{"id": n, "day": days[n % 2], "carrier": "ABC"[n % 3]} for n in range(60)]
    files = driver.write(0, given_) or ()
    assert len(files) == 6
    assert all(file.path.startswith(f"carrier={file.partition['carrier']}/day=2013-01-0") for file in files)
    driver.commit(0, files)
    assert sorted(table(tmp_path / "t").to_pylist(), key=lambda row: row["id"]) == given_


def test_many_partition_values_keep_few_files_open(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", ddl("id long, p long"), options={"partition_by": "p", "row_group_rows": "2"})
    count = 3 * MOST_OPEN_FILES
    files = driver.write(0, [{"id": n, "p": n % count} for n in range(5 * count)]) or ()
    assert sum(file.rows for file in files) == 5 * count
    driver.commit(0, files)
    assert sorted(table(tmp_path / "t").column("id").to_pylist()) == list(range(5 * count))


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["a", "b"])), min_size=1))
def test_split_keeps_each_row_once_and_in_order(pairs: list[tuple[int | None, str | None]]) -> None:
    keys = ddl("a long, b string").fields
    batch = pa.record_batch(
        {
            "a": pa.array([a for a, _ in pairs], pa.int64()),
            "b": pa.array([b for _, b in pairs], pa.string()),
            "n": pa.array(range(len(pairs))),
        }
    )
    expected: dict[tuple[str | None, ...], list[int]] = {}
    for number, (a, b) in enumerate(pairs):
        expected.setdefault((None if a is None else str(a), b), []).append(number)
    parts = list(split(batch, keys, "me"))
    assert {texts: part.column("n").to_pylist() for texts, part in parts} == expected
    assert len(parts) == len(expected)


def test_a_partition_date_beyond_9999_is_refused_by_name() -> None:
    batch = pa.record_batch({"day": pa.array([10_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(DataError, match="'day' has a date outside the years"):
        list(split(batch, ddl("day date").fields, "me"))


def test_folder_names_are_plain_whatever_the_value() -> None:
    assert values.folder("day", "2013-01-31") == "day=2013-01-31"
    assert values.folder("p", None) == "p=__HIVE_DEFAULT_PARTITION__"
    assert values.folder("p", "a/b ü%") == "p=a%2Fb%20%C3%BC%25"
    assert values.folder("p", "a/b", "_") == "p=a_2Fb"
    assert len(values.folder("p", "ü" * 1000)) < 255


@given(st.floats(width=32))
def test_single_floats_are_spelled_so_that_they_read_back(value: float) -> None:
    import struct

    text = values.float_text(value, single=True).replace("Infinity", "inf")
    assert struct.pack("f", float(text) + 0.0) == struct.pack("f", value + 0.0) or value != value


REFUSED: list[tuple[spark.DataType, str]] = [
    (spark.NullType(), "'v' has the type void"),
    (spark.VariantType(), "variantType"),
    (spark.DayTimeIntervalType(), "interval day to second"),
    (spark.YearMonthIntervalType(), "interval year to month"),
    (spark.TimeType(), "time"),
    (spark.StringType("UTF8_LCASE"), "collation"),
    (spark.StructType(), "no fields"),
    (spark.ArrayType(spark.NullType()), "'v.element' has the type void"),
    (spark.MapType(spark.StringType(), spark.VariantType()), "'v.value'"),
    (spark.StructType([spark.StructField("x", spark.NullType())]), "'v.x' has the type void"),
    (spark.StructType([spark.StructField("a b", spark.LongType())]), "'v.a b' contains ' '"),
]


@pytest.mark.parametrize(("kind", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_types_that_delta_does_not_store_are_refused_by_name(
    tmp_path: Path, kind: spark.DataType, message: str
) -> None:
    schema = spark.StructType([spark.StructField("v", kind)])
    sink = Driver(tmp_path / "t", schema).sink()
    for refuse in (
        lambda: sink.validate(schema),
        lambda: sink.write(schema, iter(()), Task("out", "q", 0, 0, 0, 1, 0)),
    ):
        with pytest.raises(ConfigurationError) as caught:
            refuse()
        assert message in str(caught.value) and "sink 'out'" in caught.value.operator
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("text", "partition_by", "message"),
    [
        ("a long, A long", "", "differ in case only"),
        (
            "id long, m map<string, struct<a: long, A: long>>",
            "",
            r"'m\.value\.a' and 'm\.value\.A' differ in case only",
        ),
        ("a long", "b", "partition column 'b' is not a column"),
        ("a long", "a", "no column is left"),
        ("a long, b binary", "b", "'b' has the type binary"),
    ],
)
def test_layouts_that_cannot_be_are_refused(tmp_path: Path, text: str, partition_by: str, message: str) -> None:
    schema = columns(text)
    with pytest.raises(ConfigurationError, match=message):
        Driver(tmp_path / "t", schema, options={"partition_by": partition_by}).sink().validate(schema)


def test_a_partition_column_that_no_folder_can_have_as_its_name_is_bad_data(tmp_path: Path) -> None:
    """Values are cut in folders' names, the names of columns are not. It was retried as an outage."""
    name = "ä" * 60
    driver = Driver(tmp_path / "t", ddl(f"id long, {name} string"), options={"partition_by": name})
    with pytest.raises(DataError, match=r"makes the name of a folder \d+ bytes long"):
        driver.write(0, [{"id": 1, name: "x"}])


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a[b]", "a|b", "a^b", "a\tb"])
def test_paths_that_delta_rs_takes_for_others_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="takes for something else"):
        Driver(tmp_path / name).sink()


@pytest.mark.parametrize("name", ["a%b 20%", "a{b}?#", "ä~日本", "a'b\"c;&$!,()+*:<>`@="])
def test_other_paths_work(tmp_path: Path, name: str) -> None:
    driver = Driver(tmp_path / name)
    driver.run(0, numbered(0, 3))
    assert table(tmp_path / name).num_rows == 3
