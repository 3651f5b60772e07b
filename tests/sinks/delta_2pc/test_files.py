"""Phase one of `delta_2pc`: files, row groups, partitions, names, and statistics whose bounds hold every value."""

import datetime
import json
import math
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from spark_ext.datafiles import partition_values as values
from spark_ext.datafiles.partition_values import STRING_PREFIX, greatest_text, least_text
from spark_ext.datafiles.partitions import split
from spark_ext.datafiles.writer import MOST_OPEN_FILES, DataFile, DataFileWriter, Layout, file_name, owner_of
from spark_ext.errors import ConfigurationError, DataError, StorageError
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Task
from spark_ext.storage import Location
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
    assert driver.sink().write(driver.schema, iter([empty, empty]), Task(driver.uid, "q", 0, 0, 0, 1, 0)) is None
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
    (file,) = Driver(tmp_path / "t", options={"compression": compression}).write(0, numbered(0, 10)) or ()
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


def test_two_partition_columns_in_the_order_of_the_option(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", ddl("id long, day date, carrier string"), options={"partition_by": "carrier,day"})
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
    text = values.float_text(value, single=True).replace("Infinity", "inf")
    assert struct.pack("f", float(text) + 0.0) == struct.pack("f", value + 0.0) or value != value


REFUSED: list[tuple[spark.DataType, str]] = [
    (spark.NullType(), "'v' has the type void"),
    (spark.VariantType(), "variantType"),
    (spark.DayTimeIntervalType(), "interval day to second"),
    (spark.YearMonthIntervalType(), "interval year to month"),
    *([(spark.TimeType(), "time")] if hasattr(spark, "TimeType") else []),
    (spark.StringType("UTF8_LCASE"), "collation"),
    (spark.StructType(), "no fields"),
    (spark.ArrayType(spark.NullType()), "'v.element' has the type void"),
    (spark.MapType(spark.StringType(), spark.VariantType()), "'v.value'"),
    (spark.StructType([spark.StructField("x", spark.NullType())]), "'v.x' has the type void"),
    (spark.StructType([spark.StructField("a b", spark.LongType())]), "'v.a b' contains ' '"),
]


@pytest.mark.parametrize(("kind", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_types_that_delta_does_not_store_are_refused(tmp_path: Path, kind: spark.DataType, message: str) -> None:
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
        ("id long, m map<string, struct<a: long, A: long>>", "", r"'m\.value\.a' and 'm\.value\.A' differ in case"),
        ("a long", "b", "partition column 'b' is not a column"),
        ("a long", "a", "no column is left"),
        ("a long, b binary", "b", "'b' has the type binary"),
    ],
)
def test_layouts_that_cannot_be_are_refused(tmp_path: Path, text: str, partition_by: str, message: str) -> None:
    schema = columns(text)
    with pytest.raises(ConfigurationError, match=message):
        Driver(tmp_path / "t", schema, options={"partition_by": partition_by}).sink().validate(schema)


def test_a_partition_column_unfit_to_name_a_folder_is_bad_data(tmp_path: Path) -> None:
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
    Driver(tmp_path / name).run(0, numbered(0, 3))
    assert table(tmp_path / name).num_rows == 3


TASK = Task("out", "q", 0, 0, 0, 1, 0)


def finished(schema: spark.StructType, *batches: pa.RecordBatch, **layout: Any) -> tuple[DataFile, pq.FileMetaData]:
    """The only file of some rows, and what is in it about them."""
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(**layout), TASK)
        for batch in batches:
            files.add(batch)
        (file,) = files.finish()
        return file, pq.ParquetFile(f"{folder}/{file.path}").metadata


def write(schema: spark.StructType, rows: list[dict[str, Any]], **layout: Any) -> DataFile:
    batches = pa.Table.from_pylist(rows, schema=arrow_schema(schema)).to_batches(max_chunksize=7)
    return finished(schema, *batches, **layout)[0]


def one(kind: spark.DataType, values: Iterable[Any], **layout: Any) -> dict[str, Any]:
    return parsed(write(spark.StructType([spark.StructField("v", kind)]), [{"v": value} for value in values], **layout))


def parsed(file: DataFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.statistics, parse_float=Decimal)
    return found


FIELDS: dict[str, tuple[spark.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "byte": (spark.ByteType(), st.integers(-(2**7), 2**7 - 1), int),
    "short": (spark.ShortType(), st.integers(-(2**15), 2**15 - 1), int),
    "int": (spark.IntegerType(), st.integers(-(2**31), 2**31 - 1), int),
    "long": (spark.LongType(), st.integers(-(2**63), 2**63 - 1), int),
    "decimal9": (spark.DecimalType(9, 3), st.decimals(-(10**6) + 1, 10**6 - 1, places=3), Decimal),
    "decimal18": (spark.DecimalType(18, 0), st.decimals(-(10**18) + 1, 10**18 - 1, places=0), Decimal),
    "decimal38": (spark.DecimalType(38, 10), st.decimals(-(10**28) + 1, 10**28 - 1, places=10), Decimal),
    "string": (spark.StringType(), st.text(max_size=80), str),
    "date": (spark.DateType(), st.dates(), datetime.date.fromisoformat),
    "timestamp": (
        spark.TimestampType(),
        st.datetimes(timezones=st.just(UTC)),
        lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00")),
    ),
    "timestamp_ntz": (spark.TimestampNTZType(), st.datetimes(), datetime.datetime.fromisoformat),
}


@pytest.mark.parametrize("name", FIELDS)
@given(data=st.data())
@settings(deadline=None, max_examples=3 * settings().max_examples // 5)
def test_every_value_is_within_the_bounds(name: str, data: st.DataObject) -> None:
    kind, strategy, read = FIELDS[name]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=25))
    found = one(kind, values, row_group_rows=data.draw(st.integers(1, 30)))
    present = [value for value in values if value is not None]
    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"v": len(values) - len(present)}
    if not present:
        assert found["minValues"] == found["maxValues"] == {}
        return
    low, high = read(found["minValues"]["v"]), read(found["maxValues"]["v"])
    if name == "string":
        # Texts compare by their UTF-8 bytes, as in Spark.
        assert low.encode() <= min(value.encode() for value in present)
        assert max(value.encode() for value in present) <= high.encode()
        assert len(low) <= STRING_PREFIX
    else:
        assert (low, high) == (min(present), max(present))


@pytest.mark.parametrize("kind", [spark.FloatType(), spark.DoubleType()], ids=["float", "double"])
@given(values=st.lists(st.none() | st.floats(width=32), min_size=1, max_size=25), rows=st.integers(1, 30))
@settings(deadline=None, max_examples=3 * settings().max_examples // 2)
def test_bounds_of_floats_hold(kind: spark.DataType, values: list[float | None], rows: int) -> None:
    found = one(kind, values, row_group_rows=rows)
    present = [value for value in values if value is not None]
    low, high = found["minValues"].get("v"), found["maxValues"].get("v")
    assert found["nullCount"] == {"v": len(values) - len(present)}
    numbers = [value for value in present if not math.isnan(value)]
    if low is not None:
        assert all(float(low) <= value for value in numbers)
    if high is not None:
        assert len(numbers) == len(present), "Spark takes NaN as greater than any number"
        assert all(value <= float(high) for value in numbers)
    if numbers and len(numbers) == len(present) and all(map(math.isfinite, numbers)):
        assert low is not None and high is not None, "a plain column is skipped by both bounds"


@given(st.text(min_size=1, max_size=100) | st.text(alphabet="a\U0010ffff", min_size=30, max_size=40))
@settings(max_examples=3 * settings().max_examples)
def test_cut_texts_stay_bounds(text: str) -> None:
    assert least_text(text).encode() <= text.encode() <= greatest_text(text).encode()


@pytest.mark.parametrize(
    ("kind", "value"),
    [(spark.StringType(), "x" * 10_000), (spark.BooleanType(), True), (spark.BinaryType(), b"a")],
    ids=["a text too long for Parquet's statistics", "boolean", "binary"],
)
def test_without_bounds_nulls_are_counted(kind: spark.DataType, value: Any) -> None:
    found = one(kind, [value, None])
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"v": 1}


def test_texts_that_are_not_utf8_and_years_beyond_9999_have_no_bound() -> None:
    raw, days = pa.array([b"\xff\xfe", b"a"], pa.binary()), pa.array([0, 10_000_000], pa.int32())
    schema = spark.StructType([spark.StructField("v", spark.StringType()), spark.StructField("d", spark.DateType())])
    batch = pa.record_batch([raw.view(pa.string()), days.cast(pa.date32())], schema=arrow_schema(schema))
    found = parsed(finished(schema, batch)[0])
    assert (found["minValues"], found["maxValues"]) == ({"v": "a", "d": "1970-01-01"}, {})


NESTED = columns("s struct<a: int, list: array<double>, t: struct<f: double>>, m map<string, int>, last bigint")


def test_nested_columns_are_covered_leaf_by_leaf() -> None:
    values: list[dict[str, Any]] = [
        {"s": {"a": 1, "list": [1.0, 2.0], "t": {"f": 0.5}}, "m": [("k", 1), ("l", 2)], "last": 7},
        {"s": {"a": None, "list": None, "t": {"f": 2.5}}, "m": None, "last": 9},
        {"s": None, "m": [], "last": 8},
        {"s": {"a": 5, "list": [], "t": None}, "m": [("k", None)], "last": 8},
    ]
    assert parsed(write(NESTED, values)) == {
        "numRecords": 4,
        "minValues": {"s": {"a": 1, "t": {"f": Decimal("0.5")}}, "last": 7},
        "maxValues": {"s": {"a": 5, "t": {"f": Decimal("2.5")}}, "last": 9},
        "nullCount": {"s": {"a": 2, "list": 2, "t": {"f": 2}}, "m": 1, "last": 0},
    }


def test_floats_have_no_statistics_inside_the_file() -> None:
    """Spark would pass over row groups with a NaN that it looks for: Parquet leaves NaN out of its bounds."""
    schema = spark.StructType([spark.StructField("i", spark.IntegerType()), *NESTED.fields])
    group = finished(schema, pa.RecordBatch.from_pylist([{"i": 1, "last": 2}], arrow_schema(schema)))[1].row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.statistics} == {"i", "s.a", "last"}


def test_a_dotted_column_gives_no_statistics_to_a_nested_float() -> None:
    """Parquet's writer is given names, and both have the same."""
    inner = spark.StructType([spark.StructField("b", spark.DoubleType())])
    schema = spark.StructType([spark.StructField("a", inner), spark.StructField("a.b", spark.IntegerType())])
    batch = pa.RecordBatch.from_pylist([{"a": {"b": math.nan}, "a.b": 1}], arrow_schema(schema))
    group = finished(schema, batch)[1].row_group(0)
    assert group.column(0).physical_type == "DOUBLE"
    assert not group.column(0).is_stats_set


def test_nan_inside_a_struct_takes_the_bound_away() -> None:
    values = [{"s": {"a": 1, "list": None, "t": {"f": value}}, "m": None, "last": 1} for value in (1.0, math.nan)]
    file = write(NESTED, values)
    assert "t" not in parsed(file)["maxValues"]["s"]
    assert parsed(file)["minValues"]["s"]["t"] == {"f": Decimal("1.0")}


@pytest.mark.parametrize(("limit", "covered"), [(32, 32), (3, 3), (0, 0), (-1, 40)])
def test_the_first_columns_are_covered(limit: int, covered: int) -> None:
    schema = spark.StructType([spark.StructField(f"c{n}", spark.IntegerType()) for n in range(40)])
    file = write(schema, [{f"c{n}": n for n in range(40)}], statistics_columns=limit)
    expected = {f"c{n}": n for n in range(covered)}
    assert parsed(file)["minValues"] == parsed(file)["maxValues"] == expected
    assert parsed(file)["nullCount"] == dict.fromkeys(expected, 0)


def test_partition_columns_are_not_counted_and_not_covered() -> None:
    schema = spark.StructType([spark.StructField(f"c{n}", spark.IntegerType()) for n in range(3)])
    file = write(schema, [{"c0": 0, "c1": 1, "c2": 2}], statistics_columns=1, partition_by=("c0",))
    assert parsed(file)["minValues"] == {"c1": 1}
    assert file.partition == {"c0": "0"}
