"""Statistics of data files: every value within its bounds, whatever the values; spelled as Delta spells them."""

from __future__ import annotations

import datetime
import json
import math
import tempfile
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from spark_ext.datafiles.partition_values import STRING_PREFIX, greatest_text, least_text
from spark_ext.datafiles.writer import DataFile, DataFileWriter, Layout
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.sinks.contract import Task
from spark_ext.storage import Location

TASK = Task("out", "q", 0, 0, 0, 1, 0)


def write(schema: spark.StructType, rows: list[dict[str, Any]], **layout: Any) -> tuple[DataFile, ...]:
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(**layout), TASK)
        for batch in pa.Table.from_pylist(rows, schema=arrow_schema(schema)).to_batches(max_chunksize=7):
            files.add(batch)
        return files.finish()


def one(kind: spark.DataType, values: Iterable[Any], **layout: Any) -> dict[str, Any]:
    """The statistics of one column `v`."""
    schema = spark.StructType([spark.StructField("v", kind)])
    (file,) = write(schema, [{"v": value} for value in values], **layout)
    return parsed(file)


def parsed(file: DataFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.statistics, parse_float=Decimal)
    return found


UTC = datetime.timezone.utc

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
def test_bounds_of_floats_hold_with_nan_and_infinity(
    kind: spark.DataType, values: list[float | None], rows: int
) -> None:
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


def test_a_long_text_is_cut_and_its_bounds_hold() -> None:
    found = one(spark.StringType(), ["x" * 100, "y" * 100])
    assert found["minValues"]["v"] == "x" * 32
    assert found["maxValues"]["v"] == "y" * 32 + "\U0010ffff"


def test_texts_too_long_for_parquets_statistics_have_no_bounds() -> None:
    found = one(spark.StringType(), ["x" * 10_000, "y"])
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"v": 0}


def test_a_text_that_is_not_utf8_has_no_bound() -> None:
    schema = spark.StructType([spark.StructField("v", spark.StringType())])
    raw = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(), TASK)
        files.add(pa.record_batch([raw], schema=arrow_schema(schema)))
        (file,) = files.finish()
    assert parsed(file)["minValues"] == {"v": "a"}
    assert parsed(file)["maxValues"] == {}


def test_no_bounds_for_booleans_and_bytes_but_nulls_are_counted() -> None:
    for kind, value in ((spark.BooleanType(), True), (spark.BinaryType(), b"a")):
        found = one(kind, [value, None])
        assert found["minValues"] == found["maxValues"] == {}
        assert found["nullCount"] == {"v": 1}


def test_a_year_beyond_9999_has_no_bound() -> None:
    schema = spark.StructType([spark.StructField("v", spark.DateType())])
    batch = pa.record_batch([pa.array([0, 10_000_000], pa.int32()).cast(pa.date32())], schema=arrow_schema(schema))
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(), TASK)
        files.add(batch)
        (file,) = files.finish()
    assert parsed(file)["minValues"] == {"v": "1970-01-01"}
    assert parsed(file)["maxValues"] == {}


NESTED = spark.StructType(
    [
        spark.StructField(
            "s",
            spark.StructType(
                [
                    spark.StructField("a", spark.IntegerType()),
                    spark.StructField("list", spark.ArrayType(spark.DoubleType())),
                    spark.StructField("t", spark.StructType([spark.StructField("f", spark.DoubleType())])),
                ]
            ),
        ),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.IntegerType())),
        spark.StructField("last", spark.LongType()),
    ]
)


def test_nested_columns_are_covered_leaf_by_leaf() -> None:
    values: list[dict[str, Any]] = [
        {"s": {"a": 1, "list": [1.0, 2.0], "t": {"f": 0.5}}, "m": [("k", 1), ("l", 2)], "last": 7},
        {"s": {"a": None, "list": None, "t": {"f": 2.5}}, "m": None, "last": 9},
        {"s": None, "m": [], "last": 8},
        {"s": {"a": 5, "list": [], "t": None}, "m": [("k", None)], "last": 8},
    ]
    (file,) = write(NESTED, values)
    assert parsed(file) == {
        "numRecords": 4,
        "minValues": {"s": {"a": 1, "t": {"f": Decimal("0.5")}}, "last": 7},
        "maxValues": {"s": {"a": 5, "t": {"f": Decimal("2.5")}}, "last": 9},
        "nullCount": {"s": {"a": 2, "list": 2, "t": {"f": 2}}, "m": 1, "last": 0},
    }


def test_floats_have_no_statistics_inside_the_file() -> None:
    """Spark would pass over row groups with a NaN that it looks for: Parquet leaves NaN out of its bounds."""
    schema = spark.StructType([spark.StructField("i", spark.IntegerType()), *NESTED.fields])
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(), TASK)
        files.add(pa.RecordBatch.from_pylist([{"i": 1, "last": 2}], schema=arrow_schema(schema)))
        (file,) = files.finish()
        group = pq.ParquetFile(f"{folder}/{file.path}").metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.statistics} == {"i", "s.a", "last"}


def test_a_column_with_a_dot_does_not_give_a_float_inside_a_struct_statistics() -> None:
    """Parquet's writer is given names, and both have the same."""
    inner = spark.StructType([spark.StructField("b", spark.DoubleType())])
    schema = spark.StructType([spark.StructField("a", inner), spark.StructField("a.b", spark.IntegerType())])
    with tempfile.TemporaryDirectory() as folder:
        files = DataFileWriter(Location(folder), schema, Layout(), TASK)
        files.add(pa.RecordBatch.from_pylist([{"a": {"b": math.nan}, "a.b": 1}], schema=arrow_schema(schema)))
        (file,) = files.finish()
        group = pq.ParquetFile(f"{folder}/{file.path}").metadata.row_group(0)
    assert group.column(0).physical_type == "DOUBLE"
    assert not group.column(0).is_stats_set


def test_nan_inside_a_struct_takes_the_bound_away() -> None:
    values = [{"s": {"a": 1, "list": None, "t": {"f": value}}, "m": None, "last": 1} for value in (1.0, math.nan)]
    (file,) = write(NESTED, values)
    assert "t" not in parsed(file)["maxValues"]["s"]
    assert parsed(file)["minValues"]["s"]["t"] == {"f": Decimal("1.0")}


@pytest.mark.parametrize(("limit", "covered"), [(32, 32), (3, 3), (0, 0), (-1, 40)])
def test_the_first_columns_are_covered(limit: int, covered: int) -> None:
    schema = spark.StructType([spark.StructField(f"c{n}", spark.IntegerType()) for n in range(40)])
    (file,) = write(schema, [{f"c{n}": n for n in range(40)}], statistics_columns=limit)
    expected = {f"c{n}": n for n in range(covered)}
    assert parsed(file)["minValues"] == parsed(file)["maxValues"] == expected
    assert parsed(file)["nullCount"] == dict.fromkeys(expected, 0)


def test_partition_columns_are_not_counted_and_not_covered() -> None:
    schema = spark.StructType([spark.StructField(f"c{n}", spark.IntegerType()) for n in range(3)])
    (file,) = write(schema, [{"c0": 0, "c1": 1, "c2": 2}], statistics_columns=1, partition_by=("c0",))
    assert parsed(file)["minValues"] == {"c1": 1}
    assert file.partition == {"c0": "0"}
