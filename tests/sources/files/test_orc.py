"""`files` and ORC: rows by stripe, calendars and time zones, damage."""

import random
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs, orc
from pyspark.sql.types import BooleanType, StructField, StructType

from spark_ext.errors import DataError
from spark_ext.sources.contract import Limit
from spark_ext.sources.files.orc import _wraps_times
from spark_ext.sources.files.orc_footer import Tail, read_tail, time_zones
from tests.sources.files.files_kit import (
    DDL,
    START,
    fuzzed,
    ids_in,
    opened,
    read_all,
    read_bad,
    source,
    steps,
    table,
    write_orc,
)

COMPRESSIONS = ["uncompressed", "zlib", "snappy", "lz4", "zstd"]
needs_true_times = pytest.mark.skipif(_wraps_times(), reason="this pyarrow reads times of ORC files wrongly")


def tail_of(path: Path) -> Tail:
    with fs.LocalFileSystem().open_input_file(str(path)) as raw:
        return read_tail(raw, raw.size())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_rows_of_stripes_are_known_in_every_compression(tmp_path: Path, compression: str) -> None:
    # Many columns, so that the footers have something to compress; and values that have not.
    pick = np.random.default_rng(1)
    rows = pa.table({f"column {n}": pick.integers(0, 2**60, 60_000) for n in range(4)})
    orc.write_table(rows, tmp_path / "x.orc", stripe_size=64 * 1024, compression=compression)
    found, file = tail_of(tmp_path / "x.orc"), orc.ORCFile(tmp_path / "x.orc")
    assert len(found.stripes) > 1
    assert [one.rows for one in found.stripes] == [file.read_stripe(n).num_rows for n in range(file.nstripes)]
    with fs.LocalFileSystem().open_input_file(str(tmp_path / "x.orc")) as raw:
        assert time_zones(raw, found) == {"GMT"}


def test_steps_and_parts_within_and_across_stripes(tmp_path: Path) -> None:
    write_orc(tmp_path / "x.orc", table(0, 5000))
    assert len(tail_of(tmp_path / "x.orc").stripes) == 5
    made, channel = opened(tmp_path)
    assert steps(made, 700) == [list(range(n, min(5000, n + 700))) for n in range(0, 5000, 700)]
    assert 2000 < made.advance(channel, 0, Limit(bytes=(tmp_path / "x.orc").stat().st_size // 2)).end < 3000
    parts = made.split(channel, 100, 5000, 3)
    assert len(parts) == 3
    assert [n for low, high in parts for n in ids_in(made, channel, low, high)] == list(range(100, 5000))


@needs_true_times
def test_types(tmp_path: Path) -> None:
    row: dict[str, Any] = {"t": START, "n": datetime(2020, 1, 2), "d": date(1, 1, 1), "l": [1, None], "m": [("a", 1)]}
    row |= {"s": {"x": 1.5, "y": b"b"}, "c": None, "a.b": True}
    kinds = {"t": pa.timestamp("us", "UTC"), "m": pa.map_(pa.string(), pa.int32()), "c": pa.decimal128(10, 2)}
    rows = {name: pa.array([value], kinds.get(name)) for name, value in row.items()}
    orc.write_table(pa.table(rows), tmp_path / "x.orc")
    assert source(tmp_path).schema().simpleString() == (
        "struct<t:timestamp,n:timestamp_ntz,d:date,l:array<bigint>,m:map<string,int>,s:struct<x:double,y:binary>,"
        "c:decimal(10,2),a.b:boolean>"
    )
    assert read_all(source(tmp_path)) == [row]
    assert read_all(source(tmp_path, StructType([StructField("a.b", BooleanType())]))) == [{"a.b": True}]
    with pytest.raises(DataError, match=r"x\.orc.*'d' has the type date32.* where string is declared"):
        read_all(source(tmp_path, "d string"))


@needs_true_times
def test_times_of_day_in_another_zone_are_no_instants(tmp_path: Path) -> None:
    """ORC stores what a clock in the writer's zone has shown; Arrow leaves the zone out."""
    path = tmp_path / "x.orc"
    times = pa.array([datetime(2020, 7, 1, 12)], pa.timestamp("us"))
    orc.write_table(pa.table({"t": times, "s": pa.StructArray.from_arrays([times], ["t"])}), path)
    assert [row["t"] for row in read_all(source(path, "t timestamp"))] == [
        datetime(2020, 7, 1, 12, tzinfo=timezone.utc)
    ]
    data = path.read_bytes()
    assert data.count(b"GMT") == 1
    path.write_bytes(data.replace(b"GMT", b"EST"))
    made, channel = opened(path, "t timestamp")
    with pytest.raises(DataError, match=r"x\.orc.*times of day in the time zone EST, and declared as instants"):
        made.advance(channel, 0, Limit())
    with pytest.raises(DataError, match="EST"):
        read_all(source(path, "s struct<t timestamp>"))
    assert read_all(source(path, "t timestamp_ntz")) == [{"t": datetime(2020, 7, 1, 12)}]


@needs_true_times
def test_old_dates_of_java_are_in_the_julian_calendar(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"d": [date(1000, 1, 6)], "t": [datetime(1700, 1, 1)]}), path)
    assert read_all(source(path)) == [{"d": date(1000, 1, 6), "t": datetime(1700, 1, 1)}]
    data = path.read_bytes()
    # In the footer: the writer (field 9) is C++ (1) and becomes Java (0), which names no calendar.
    at = data.rindex(b"\x48\x01")
    path.write_bytes(data[:at] + b"\x48\x00" + data[at + 2 :])
    assert not tail_of(path).gregorian
    assert read_all(source(path)) == [{"d": date(1000, 1, 1), "t": datetime(1700, 1, 1)}]


@needs_true_times
def test_a_time_beyond_nanoseconds_is_refused(tmp_path: Path) -> None:
    orc.write_table(pa.table({"t": [datetime(9999, 12, 31)]}), tmp_path / "x.orc")
    with pytest.raises(DataError, match=r"x\.orc.*out of range"):
        read_all(source(tmp_path))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "contains no file to take the schema from|"), (b"ORC", "damaged"), (b"PAR1" * 9, "its footer is damaged"),
        (b"\x00" * 300, "does not end as an ORC file"),
    ],
)  # fmt: skip
def test_what_is_no_orc_file_is_named(tmp_path: Path, data: bytes, match: str) -> None:
    (tmp_path / "x.orc").write_bytes(data)
    if not data:
        assert read_all(source(tmp_path, DDL)) == []
        return
    with pytest.raises(DataError, match=rf"x\.orc.*{match}"):
        read_all(source(tmp_path, DDL))


def test_any_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_orc(tmp_path / "x.orc", table(0, 1500), random.Random(0).choice(COMPRESSIONS))
    assert fuzzed(tmp_path / "x.orc", DDL) > 20


def test_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    """Hive writes whatever bytes there are; the other rows of the stripe are read."""
    raw = pa.array([b"ok", b"M\xf6hre", b"x", None])
    texts = pa.Array.from_buffers(pa.string(), 4, raw.buffers(), 1)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), texts)
    orc.write_table(pa.table({"n": range(4), "t": texts, "l": lists}), tmp_path / "x.orc")
    with pytest.raises(DataError, match=r"x\.orc.*row 1 does not fit.*column 't' has a text that is not UTF-8"):
        read_all(source(tmp_path, "n bigint, t string"))
    for column, wrong in (("t string", [1]), ("l array<string>", [2])):
        good, bad = read_bad(source(tmp_path, f"n bigint, {column}", on_bad_row="quarantine"))
        assert [row["n"] for row in good] == [n for n in range(4) if n not in wrong]
        assert [row.position["row"] for row in bad] == wrong
