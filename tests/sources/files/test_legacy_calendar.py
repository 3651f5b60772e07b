"""Parquet files in the calendar of Spark 2 and Hive: the rule alone, on nested columns, and beside Spark's reader."""

from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_ext.errors import DataError
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.files.legacy_calendar import FIRST_DAY, LAST_SWITCH, Calendar, UnknownZoneError, gregorian
from tests.sources.files.files_kit import read_all, source

KEY, DATES, INT96 = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
ZONE = b"org.apache.spark.timeZone"


@pytest.mark.parametrize(
    ("footer", "calendar"),
    [
        (None, Calendar()),
        ({b"writer.model.name": b"example"}, Calendar()),
        ({KEY: b"4.2.0"}, Calendar()),
        ({KEY: b"3.0.1"}, Calendar(int96=True)),
        ({KEY: b"3.0.1", DATES: b"", ZONE: b"UTC"}, Calendar(True, True, True, "UTC")),
        ({KEY: b"4.0.0", INT96: b"", ZONE: b"Asia/Tokyo"}, Calendar(int96=True, zone="Asia/Tokyo")),
        ({KEY: b"2.4.8"}, Calendar(True, True, True)),
        ({b"org.apache.spark.sql.parquet.row.metadata": b"{}"}, Calendar(True, True, True)),
        ({b"writer.date.proleptic": b"false", b"writer.time.zone": b"UTC"}, Calendar(True, True, True)),
        ({b"writer.date.proleptic": b"true"}, Calendar()),
    ],
)
def test_the_footer_says_the_calendar(footer: dict[bytes, bytes] | None, calendar: Calendar) -> None:
    assert Calendar.of(footer) == calendar


def julian(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date of the Julian calendar, by the usual formula for the Julian day number."""
    shift = (14 - month) // 12
    years, months = year + 4800 - shift, month + 12 * shift - 3
    return day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083 - 2_440_588


@given(st.dates(date(1, 1, 1), date(1582, 10, 4)))
def test_a_julian_day_has_the_same_gregorian_date(day: date) -> None:
    found = gregorian(np.array([julian(day.year, day.month, day.day)]))[0]
    assert date(1970, 1, 1) + timedelta(days=int(found)) == day


def test_the_ends_of_the_julian_calendar() -> None:
    assert julian(1582, 10, 5) == FIRST_DAY
    assert gregorian(np.array([julian(1500, 2, 29)])) == gregorian(np.array([julian(1500, 3, 1)]))


days = st.none() | st.integers(-800_000, 20_000)


@given(rows=st.lists(st.none() | st.lists(days, max_size=4), max_size=8), cut=st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_values_are_moved_at_any_depth(rows: list[list[int | None] | None], cut: int) -> None:

    def moved(day: int | None) -> int | None:
        return day if day is None or day >= FIRST_DAY else int(gregorian(np.array([day]))[0])

    moment = pa.timestamp("us", "UTC")
    per_day = 86_400_000_000
    dates = pa.array(rows, pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    times = pa.array([row and [day and day * per_day + 5 for day in row] for row in rows], pa.list_(pa.int64()))
    structs = [None if row is None else {"at": row[0] if row else None} for row in rows]
    struct = pa.array(structs, pa.struct([("at", pa.int32())])).cast(pa.struct([("at", pa.date32())]))
    pairs: list[Any] = [None if row is None else list(enumerate(row)) for row in rows]
    maps = pa.array(pairs, pa.map_(pa.int64(), pa.int32()))
    batch = pa.RecordBatch.from_arrays(
        [dates, times.cast(pa.list_(moment)), struct, maps.cast(pa.map_(pa.int64(), pa.date32()))],
        names=["dates", "times", "struct", "map"],
    ).slice(cut)
    found = Calendar(True, True, True, "UTC").rebased(batch, {})
    found.validate(full=True)
    assert found.schema == batch.schema
    left = rows[cut:]
    assert found["dates"].cast(pa.list_(pa.int32())).to_pylist() == [
        row and [moved(day) for day in row] for row in left
    ]
    assert found["times"].cast(pa.list_(pa.int64())).to_pylist() == [
        row and [day and (moved(day) or 0) * per_day + 5 for day in row] for row in left
    ]
    assert found["struct"].cast(pa.struct([("at", pa.int32())])).to_pylist() == [
        None if row is None else {"at": moved(row[0]) if row else None} for row in left
    ]
    assert found["map"].cast(pa.map_(pa.int64(), pa.int32())).to_pylist() == [
        None if row is None else [(n, moved(day)) for n, day in enumerate(row)] for row in left
    ]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_timestamp_whose_zone_matters_is_refused(unit: str, zone: str | None) -> None:
    second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    calendar = Calendar(True, True, True, zone)
    fine = pa.record_batch({"at": pa.array([LAST_SWITCH * second, None], pa.timestamp(unit, "UTC"))})
    assert calendar.rebased(fine, {}) == fine
    early = pa.record_batch({"at": pa.array([LAST_SWITCH * second - 1], pa.timestamp(unit, "UTC"))})
    with pytest.raises(UnknownZoneError, match=f"'at' .*{zone or 'does not name'}"):
        calendar.rebased(early, {})
    local = pa.record_batch({"at": pa.array([LAST_SWITCH * second - 1], pa.timestamp(unit))})
    assert calendar.rebased(local, {"at": [False]}) == local


def test_a_file_is_refused_by_name_only_if_it_has_such_a_value(tmp_path: Path) -> None:
    for name, year in (("old", 1800), ("new", 1950)):
        rows = pa.table({"at": pa.array([datetime(year, 1, 1)], pa.timestamp("us"))})
        path = tmp_path / f"{name}.parquet"
        with pq.ParquetWriter(path, rows.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({KEY: b"2.4.8"})
    assert read_all(source(tmp_path / "new.parquet")) == [{"at": datetime(1950, 1, 1, tzinfo=timezone.utc)}]
    with pytest.raises(DataError, match=r"file 'old\.parquet': column 'at' has a timestamp before 1900") as refused:
        read_all(source(tmp_path / "old.parquet"))
    assert "CORRECTED" in refused.value.do


def test_int96_is_a_timestamp_at_any_depth(tmp_path: Path) -> None:
    at = pa.timestamp("us")
    rows = {
        "l": pa.array([[0]], pa.list_(at)),
        "n": pa.array([1], pa.int64()),
        "s": pa.array([{"a": 1, "at": [0]}], pa.struct([("a", pa.int64()), ("at", pa.list_(at))])),
        "m": pa.array([[("k", 0)]], pa.map_(pa.string(), at)),
    }
    pq.write_table(pa.table(rows), tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    found = source(tmp_path)
    types = "l:array<timestamp>,n:bigint,s:struct<a:bigint,at:array<timestamp>>,m:map<string,timestamp>"
    assert found.schema().simpleString() == f"struct<{types}>"
    zero = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert read_all(found) == [{"l": [zero], "n": 1, "s": {"a": 1, "at": [zero]}, "m": [("k", zero)]}]


OLD = """
select date'1500-02-28' d, timestamp'1500-03-01 01:02:03.004' t, array(date'1000-01-01', null, date'2000-01-01') a,
  named_struct('x', timestamp'0200-01-01 00:00:00', 'd', date'0001-01-01') s, map('k', timestamp'1582-10-03 23:59:59') m
union all select date'1582-10-15', timestamp'1900-01-01', null, null, map()"""


@pytest.mark.slow(12, "writes a table with Spark")
def test_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite"):
        spark.conf.set(f"spark.sql.parquet.{name}", "LEGACY")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    path = str(tmp_path)
    spark.sql(OLD).coalesce(1).write.format("delta").save(path)
    theirs = sorted(map(str, spark.read.parquet(path).toArrow().to_pylist()))
    assert "datetime.date(1500, 2, 28)" in theirs[0]
    assert sorted(map(str, read_all(source(tmp_path)))) == theirs
    made = DeltaSnapshot({"uid": "t", "path": path})
    made.declared = made.schema()
    assert sorted(map(str, read_all(made))) == theirs
