"""`files` at the level of its contract: every row once, in order, the same on each read; nothing changed unseen."""

from __future__ import annotations

import gzip
import json
import os
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.files import Files
from spark_ext.testing.ddl import columns
from spark_ext.testing.source_kit import Trace, drive

DDL = "id bigint, word string, at timestamp"
SCHEMA = columns(DDL)
START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def table(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "word": pa.array([None if n % 7 == 0 else f"wörd {n}" for n in range(first, first + rows)], pa.string()),
            "at": pa.array(
                [START.replace(microsecond=n % 1_000_000) for n in range(first, first + rows)],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


def write(path: Path, rows: pa.Table, kind: str, header: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=5)
        return
    lines = ["id,word,at"] if header else []
    for row in rows.to_pylist():
        stamp = row["at"].isoformat()
        if kind == "csv":
            lines.append(f"{row['id']},{row['word'] or ''},{stamp}")
        else:
            lines.append(json.dumps({**row, "at": stamp, "more": [1]}))
    # The last line of some files has no end, as editors leave it.
    text = "\n".join(lines) + ("\n" if lines and rows.num_rows % 2 else "")
    path.write_text(text, encoding="utf-8")


def options(path: Path, **more: str) -> dict[str, str]:
    return {"uid": "files-test", "path": str(path), **more}


def source(path: Path, schema: str | StructType | None = None, **more: str) -> Files:
    made = Files(options(path, **more))
    declared = columns(schema) if isinstance(schema, str) else schema
    made.streamReader(declared or made.schema())  # type: ignore[arg-type]
    return made


def read_all(made: Files) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for channel in made.discover():
        at = channel.begin
        step = made.advance(channel, at, Limit())
        assert step.finished
        for batch in made.read(Channel(channel.id, None, channel.data), at, step.end):
            rows += batch.to_pylist()
    return rows


sizes = st.lists(st.sampled_from([0, 1, 4, 5, 6, 23, 60]), min_size=0, max_size=6)


@given(sizes=sizes, seed=st.integers(0, 2**32), kind=st.sampled_from(["parquet", "csv", "json"]), header=st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_row_once_in_order_under_random_limits_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, kind: str, header: bool
) -> None:
    root = tmp_path_factory.mktemp("in")
    header = header and kind == "csv"
    wanted = {}
    for index, rows in enumerate(sizes):
        wanted[f"{index}.{kind}"] = table(index * 1000, rows)
        write(root / f"{index}.{kind}", wanted[f"{index}.{kind}"], kind, header)
    trace = drive(Files, options(root, header=str(header)), schema=SCHEMA, rng=random.Random(seed))
    assert trace.ended
    assert sorted(trace.finished) == sorted(wanted)
    for name, rows_of in wanted.items():
        assert trace.rows(name).to_pylist() == rows_of.to_pylist()


@given(sizes=sizes, seed=st.integers(0, 2**32), kind=st.sampled_from(["parquet", "csv", "json"]))
@settings(max_examples=40, deadline=None)
def test_a_folder_is_one_channel_read_in_the_order_of_names(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, kind: str
) -> None:
    root = tmp_path_factory.mktemp("in")
    for folder in ("a", "b"):
        for index, rows in enumerate(sizes):
            write(root / folder / f"{index}.{kind}", table(index * 1000, rows), kind)
    trace = drive(Files, options(root, group="directory"), schema=SCHEMA, rng=random.Random(seed))
    assert sorted(trace.finished) == (["a", "b"] if sizes else [])
    wanted = [index * 1000 + n for index, rows in enumerate(sizes) for n in range(rows)]
    for folder in trace.finished:
        assert trace.rows(folder)["id"].to_pylist() == wanted


def test_row_limits_are_exact(tmp_path: Path) -> None:
    for kind in ("parquet", "csv", "json"):
        write(tmp_path / kind / f"x.{kind}", table(0, 23), kind)
        made = source(tmp_path / kind, DDL)
        (channel,) = made.discover()
        at, seen = channel.begin, []
        while True:
            step = made.advance(channel, at, Limit(rows=7))
            assert step.rows == min(7, 23 - sum(seen))
            seen.append(sum(batch.num_rows for batch in made.read(channel, at, step.end)))
            assert seen[-1] == step.rows
            at = step.end
            if step.finished:
                break
        assert seen == [7, 7, 7, 2]


def test_byte_limits_hold_to_a_line(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", table(0, 200), "csv")
    made = source(tmp_path, DDL)
    (channel,) = made.discover()
    longest = max(len(line) for line in (tmp_path / "x.csv").read_bytes().splitlines(keepends=True))
    at = 0
    while at < (tmp_path / "x.csv").stat().st_size:
        step = made.advance(channel, at, Limit(bytes=300))
        assert 0 < step.end - at < 300 + longest
        at = step.end
    assert step.finished


def test_one_large_file_feeds_several_tasks(tmp_path: Path) -> None:
    pq.write_table(table(0, 1000), tmp_path / "x.parquet", row_group_size=100)
    made = source(tmp_path)
    (channel,) = made.discover()
    assert made.split(channel, 0, 1000, 4) == [(0, 200), (200, 500), (500, 700), (700, 1000)]
    assert made.split(channel, 950, 1000, 4) == [(950, 1000)]
    assert source(tmp_path, split="false").split(channel, 0, 1000, 4) == [(0, 1000)]


def test_split_of_lines_is_at_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("".join(json.dumps({"id": n, "word": "x" * 100}) + "\n" for n in range(60_000)))
    made = source(tmp_path, "id bigint, word string")
    (channel,) = made.discover()
    parts = made.split(channel, 0, path.stat().st_size, 4)
    assert len(parts) == 4
    ids = [id_ for start, end in parts for b in made.read(channel, start, end) for id_ in b["id"].to_pylist()]
    assert ids == list(range(60_000))


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    for name in ("a.csv", "_b.csv", ".c.csv", "_tmp/d.csv", "e/f.csv", "_k=1/g.csv"):
        write(tmp_path / name, table(0, 1), "csv")
    assert [channel.id for channel in source(tmp_path, DDL).discover()] == ["_k=1/g.csv", "a.csv", "e/f.csv"]
    assert [channel.id for channel in source(tmp_path, DDL, recursive="false").discover()] == ["a.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.csv", ["a1.csv", "b1.csv"]),
        ("[!b]*.csv", ["a1.csv"]),
        ("{a,b}?.csv", ["a1.csv", "b1.csv"]),
        ("day=*", ["day=1/a1.csv", "day=2/a1.csv"]),
        ("day=2/*.csv", ["a1.csv"]),
        ("**/a1.csv", ["a1.csv", "day=1/a1.csv", "day=2/a1.csv"]),
        ("b1.csv", ["b1.csv"]),
    ],
)
def test_glob_patterns(tmp_path: Path, pattern: str, found: list[str]) -> None:
    for name in ("a1.csv", "b1.csv", "c1.txt", "day=1/a1.csv", "day=2/a1.csv"):
        write(tmp_path / name, table(0, 1), "csv")
    ids = [channel.id for channel in source(tmp_path / pattern, DDL).discover()]
    assert ids == found


def test_order_by_modification(tmp_path: Path) -> None:
    for index, name in enumerate(("c.csv", "a.csv", "b.csv")):
        write(tmp_path / name, table(0, 1), "csv")
        os.utime(tmp_path / name, (index, index))
    ids = [channel.id for channel in source(tmp_path, DDL, order="modified").discover()]
    assert ids == ["c.csv", "a.csv", "b.csv"]


def test_values_of_folders_become_columns(tmp_path: Path) -> None:
    pq_rows = table(0, 2)
    for folder in ("year=2013/month=1", "year=2014/month=__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / folder / "x.parquet", pq_rows, "parquet")
    assert source(tmp_path).schema().names == ["id", "word", "at", "year", "month"]
    rows = read_all(source(tmp_path, "id bigint, year int, month string"))
    assert [(row["year"], row["month"]) for row in rows] == [(2013, "1")] * 2 + [(2014, None)] * 2


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
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
    ("found", "declared", "told"),
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
    tmp_path: Path, found: pa.DataType, declared: str, told: list[str]
) -> None:
    pq.write_table(pa.table({"id": pa.nulls(3, found)}), tmp_path / "x.parquet")
    made = source(tmp_path, f"id {declared}")
    (channel,) = made.discover()
    with pytest.raises(DataError) as refused:
        made.advance(channel, 0, Limit())
    assert all(word in refused.value.what for word in [*told, "x.parquet"])


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
    with pytest.raises(DataError, match="'word' is declared without nulls"):
        read_all(source(tmp_path, "id bigint, word string not null"))


def test_schema_of_odd_parquet_types(tmp_path: Path) -> None:
    odd = pa.table(
        {
            "u": pa.array([1], pa.uint32()),
            "d": pa.array(["a"]).dictionary_encode(),
            "n": pa.array([1_000], pa.timestamp("ns")),
            "l": pa.array([[1]], pa.large_list(pa.uint8())),
        }
    )
    pq.write_table(odd, tmp_path / "x.parquet")
    assert source(tmp_path).schema().simpleString() == "struct<u:bigint,d:string,n:timestamp_ntz,l:array<smallint>>"
    assert read_all(source(tmp_path)) == [{"u": 1, "d": "a", "n": datetime(1970, 1, 1, 0, 0, 0, 1), "l": [1]}]


def test_int96_is_an_instant(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"at": pa.array([START], pa.timestamp("us"))}),
        tmp_path / "x.parquet",
        use_deprecated_int96_timestamps=True,
    )
    assert source(tmp_path).schema().simpleString() == "struct<at:timestamp>"
    assert read_all(source(tmp_path)) == [{"at": START}]


def test_bad_line_is_named(tmp_path: Path) -> None:
    lines = [f"{n},w,2024-01-01T00:00:00Z" for n in range(1000)]
    lines[700] = "700,w,yesterday"
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"x\.csv.*line 701 .*'at'"):
        read_all(source(tmp_path, DDL))
    (tmp_path / "x.csv").unlink()
    (tmp_path / "y.json").write_text('{"id":1}\n{"id":2}\n{"id":"x"}\n{"id":3}\n')
    with pytest.raises(DataError, match=r"y\.json.*line 3 .*/id"):
        read_all(source(tmp_path, DDL))


def test_csv_by_header_takes_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfat;other;ID\r\n2024-01-01 00:00:00;zz;7\r\n\r\n;;8\r\n")
    rows = read_all(source(tmp_path, "id int, at timestamp", header="true", sep=";"))
    assert rows == [{"id": 7, "at": START}, {"id": 8, "at": None}]
    with pytest.raises(DataError, match=r"column 'price' not; it has: at, other, ID"):
        read_all(source(tmp_path, "price int", header="true", sep=";"))


def test_csv_dialect(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\t'a\tb\\'c'\t31/12/2023 10:00\nNA\t''\tNA\n")
    rows = read_all(
        source(
            tmp_path,
            "id int, word string, at timestamp_ntz",
            sep="\\t",
            quote="'",
            escape="\\",
            null_value="NA",
            timestamp_format="%d/%m/%Y %H:%M",
        )
    )
    assert rows == [
        {"id": 1, "word": "a\tb'c", "at": datetime(2023, 12, 31, 10)},
        {"id": None, "word": "", "at": None},
    ]


def test_multiline_csv_is_one_step(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('id,word\n1,"two\nlines"\n2,b\n')
    made = source(tmp_path, "id int, word string", header="true", multiline="true")
    (channel,) = made.discover()
    assert made.advance(channel, 0, Limit(rows=1)).finished
    assert read_all(made) == [{"id": 1, "word": "two\nlines"}, {"id": 2, "word": "b"}]
    with pytest.raises(DataError, match=r"x\.csv.*line 2 "):
        read_all(source(tmp_path, "id int, word string", header="true"))


def test_compressed_lines_are_one_step(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"id,word\n1,a\n2,b\n"))
    made = source(tmp_path, "id int, word string", header="true")
    (channel,) = made.discover()
    assert made.advance(channel, 0, Limit(rows=1)).finished
    assert [row["id"] for row in read_all(made)] == [1, 2]


def test_json_over_lines_and_nested(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"id":\n 1, "tags": ["a"], "on": "2024-02-03"}\n\n{"id": 2}')
    rows = read_all(source(tmp_path, "id int, tags array<string>, on date", multiline="true"))
    assert [(row["id"], row["tags"], str(row["on"])) for row in rows] == [(1, ["a"], "2024-02-03"), (2, None, "None")]


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    words = ["x" * 9_000_000, "y", "z" * 17_000_000, "w"]
    (tmp_path / "x.csv").write_text("\n".join(f"{n},{word}" for n, word in enumerate(words)))
    rows = read_all(source(tmp_path, "id int, word string"))
    assert [row["word"] for row in rows] == words


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_without_rows_finish(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"a.{kind}").touch()
    write(tmp_path / f"b.{kind}", table(0, 0), kind)
    if kind != "parquet":
        (tmp_path / f"c.{kind}").write_text("\n\r\n")
    write(tmp_path / f"d.{kind}", table(0, 1), kind)
    assert [row["id"] for row in read_all(source(tmp_path, DDL))] == [0]
    trace = drive(Files, options(tmp_path), schema=SCHEMA)
    assert len(trace.finished) == (3 if kind == "parquet" else 4)


def test_an_empty_folder_ends_at_once(tmp_path: Path) -> None:
    trace: Trace = drive(Files, options(tmp_path), schema=SCHEMA)
    assert trace.ended
    assert trace.epochs == 1


def test_watch_takes_new_files_and_never_ends(tmp_path: Path) -> None:
    def appear(epoch: int) -> None:
        if epoch < 5:
            write(tmp_path / f"{epoch}.csv", table(epoch * 10, 3), "csv")

    trace = drive(
        Files,
        options(tmp_path, watch="true", discovery_interval="0"),
        schema=SCHEMA,
        between=appear,
        limits=[{}],
    )
    assert not trace.ended
    assert trace.finished == [f"{epoch}.csv" for epoch in range(5)]


def test_watch_leaves_young_files_alone(tmp_path: Path) -> None:
    write(tmp_path / "old.csv", table(0, 1), "csv")
    os.utime(tmp_path / "old.csv", (1, 1))
    write(tmp_path / "young.csv", table(0, 1), "csv")
    made = source(tmp_path, DDL, watch="true", min_age="1 hour")
    assert [channel.id for channel in made.discover()] == ["old.csv"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"watch": "true", "group": "directory"}, "exclude each other"),
        ({"heder": "true"}, "did you mean 'header'"),
        ({"format": "orc"}, "format"),
    ],
)
def test_options_are_refused_early(tmp_path: Path, more: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Files(options(tmp_path, **more))


def test_what_cannot_be_planned_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no file or folder"):
        Files(options(tmp_path / "absent")).schema()
    with pytest.raises(ConfigurationError, match="no file to take the schema from"):
        Files(options(tmp_path)).schema()
    (tmp_path / "x.csv").write_text("1\n")
    with pytest.raises(ConfigurationError, match=r"x\.csv.*does not say"):
        Files(options(tmp_path)).schema()
    (tmp_path / "a.txt").write_text("1\n")
    with pytest.raises(ConfigurationError, match=r"a\.txt.*does not tell its format"):
        read_all(source(tmp_path, "id int"))
    with pytest.raises(ConfigurationError, match="csv files cannot hold"):
        read_all(source(tmp_path / "x.csv", "id array<int>"))


def test_discovery_opens_no_file(tmp_path: Path) -> None:
    for index in range(50):
        (tmp_path / f"{index}.parquet").write_bytes(b"this is not parquet")
    assert len(list(source(tmp_path, DDL).discover())) == 50
