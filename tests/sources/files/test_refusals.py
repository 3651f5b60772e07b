"""`files` refuses what is not as it was, or not as declared: changed and damaged files, odd columns."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_ext.errors import DataError
from spark_ext.sources.contract import Limit
from tests.sources.files.files_kit import DDL, read_all, source, table, write


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro", "csv", "json"])
@pytest.mark.parametrize("change", ["truncate", "rewrite", "touch", "remove"])
def test_a_file_that_changed_after_discovery_is_refused(tmp_path: Path, kind: str, change: str) -> None:
    path = tmp_path / f"x.{kind}"
    write(path, table(0, 20), kind)
    made = source(tmp_path, DDL)
    (channel,) = made.discover()
    step = made.advance(channel, 0, Limit())
    if change == "truncate":
        path.write_bytes(path.read_bytes()[:-9])
    elif change == "rewrite":
        write(path, table(1, 21), kind)
    elif change == "touch":
        os.utime(path, (1, 1))
    else:
        path.unlink()
    with pytest.raises(DataError, match=rf"x\.{kind}") as refused:
        list(made.read(channel, 0, step.end))
    assert "files-test" in refused.value.operator
    assert refused.value.kept
    assert refused.value.do
    with pytest.raises(DataError):
        source(tmp_path, DDL).advance(channel, 0, Limit(rows=3))


def test_a_changed_file_is_read_when_the_user_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write(path, table(0, 20), "parquet")
    made = source(tmp_path, DDL)
    (channel,) = made.discover()
    write(path, table(100, 20), "parquet")
    accepting = source(tmp_path, DDL, changed_files="accept")
    assert accepting.advance(channel, 10, Limit()).end == 20
    assert [row for b in accepting.read(channel, 10, 20) for row in b["id"].to_pylist()] == list(range(110, 120))
    write(path, table(100, 4), "parquet")
    assert source(tmp_path, DDL, changed_files="accept").advance(channel, 10, Limit()).finished


def test_a_damaged_footer_is_refused_while_planning(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write(path, table(0, 20), "parquet")
    path.write_bytes(path.read_bytes()[:-20])
    made = source(tmp_path, DDL)
    (channel,) = made.discover()
    with pytest.raises(DataError, match=r"x\.parquet"):
        made.advance(channel, 0, Limit())


def test_a_damaged_page_is_refused_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(0, 2000), path, row_group_size=500, compression="snappy", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(data)
    made = source(tmp_path, DDL)
    (channel,) = made.discover()
    step = made.advance(channel, 0, Limit())
    with pytest.raises(DataError, match=r"x\.parquet"):
        list(made.read(channel, 0, step.end))


@pytest.mark.parametrize(
    ("found", "declared", "words"),
    [
        (pa.string(), "bigint", ["'id'", "string", "int64"]),
        (pa.int64(), "int", ["'id'", "int64", "int32"]),
        (pa.float64(), "float", ["'id'", "double", "float"]),
        (pa.uint64(), "bigint", ["'id'", "uint64", "int64"]),
        (pa.timestamp("us", "UTC"), "timestamp_ntz", ["'id'", "timestamp"]),
        (pa.list_(pa.int64()), "array<int>", ["'id'", "list"]),
    ],
)
def test_a_column_of_another_type_is_refused_while_planning(
    tmp_path: Path, found: pa.DataType, declared: str, words: list[str]
) -> None:
    pq.write_table(pa.table({"id": pa.nulls(3, found)}), tmp_path / "x.parquet")
    made = source(tmp_path, f"id {declared}")
    (channel,) = made.discover()
    with pytest.raises(DataError) as refused:
        made.advance(channel, 0, Limit())
    assert all(word in refused.value.what for word in [*words, "x.parquet"])


def test_a_missing_column_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", table(0, 2), "parquet")
    made = source(tmp_path, "id bigint, price double")
    (channel,) = made.discover()
    with pytest.raises(DataError, match=r"no column 'price' \(double\); it has: id, word, at"):
        made.advance(channel, 0, Limit())


@pytest.mark.parametrize(
    ("values", "declared", "read"),
    [
        (pa.array([1, None], pa.int8()), "bigint", [1, None]),
        (pa.array([1], pa.uint32()), "bigint", [1]),
        (pa.array([1], pa.int32()), "double", [1.0]),
        (pa.array([1.5], pa.float32()), "double", [1.5]),
        (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (pa.array([1_000], pa.timestamp("ns")), "timestamp", [datetime(1970, 1, 1, 0, 0, 0, 1, timezone.utc)]),
        (pa.array([[1, None]], pa.list_(pa.int32())), "array<bigint>", [[1, None]]),
        (pa.array([{"a": 1, "b": "x"}]), "struct<b:string,a:bigint>", [{"b": "x", "a": 1}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), "map<string,bigint>", [[("k", 1)]]),
    ],
)
def test_a_type_whose_values_all_fit_is_cast(tmp_path: Path, values: pa.Array, declared: str, read: list[Any]) -> None:
    pq.write_table(pa.table({"ID": values}), tmp_path / "x.parquet")
    assert [row["id"] for row in read_all(source(tmp_path, f"id {declared}"))] == read


def test_a_cast_that_would_lose_digits_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([1_001], pa.timestamp("ns"))}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet.*'at'"):
        read_all(source(tmp_path, "at timestamp"))


def test_a_null_in_a_column_without_nulls_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", table(0, 2), "parquet")
    with pytest.raises(DataError, match="'word' is declared as not nullable"):
        read_all(source(tmp_path, "id bigint, word string not null"))
