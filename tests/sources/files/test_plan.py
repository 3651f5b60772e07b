"""`files` at the level of its contract: every row once, in order, the same on each read."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError
from spark_ext.sources.contract import Limit
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import Trace, drive
from tests.sources.files.files_kit import DDL, SCHEMA, options, read_all, sizes, source, table, write

KINDS = ("parquet", "orc", "avro", "csv", "json")


@given(sizes=sizes, seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS), header=st.booleans())
@settings(max_examples=20, deadline=None)
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


@given(sizes=sizes, seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS))
@settings(max_examples=12, deadline=None)
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
    for kind in ("parquet", "orc", "csv", "json"):
        write(tmp_path / kind / f"x.{kind}", table(0, 23), kind)
        made = source(tmp_path / kind, DDL)
        (channel,) = made.discover()
        at = channel.begin
        seen: list[int] = []
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
        Files, options(tmp_path, watch="true", discovery_interval="0"), schema=SCHEMA, between=appear, limits=[{}]
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
    ("more", "message"),
    [
        ({"watch": "true", "group": "directory"}, "exclude each other"),
        ({"heder": "true"}, "did you mean 'header'"),
        ({"format": "xlsx"}, "format"),
    ],
)
def test_options_are_refused_early(tmp_path: Path, more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Files(options(tmp_path, **more))


def test_what_cannot_be_planned_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no file or folder"):
        Files(options(tmp_path / "absent")).schema()
    with pytest.raises(ConfigurationError, match="contains no file to take the schema from"):
        Files(options(tmp_path)).schema()
    (tmp_path / "x.csv").write_text("1\n")
    with pytest.raises(ConfigurationError, match=r"x\.csv.*does not contain the types"):
        Files(options(tmp_path)).schema()
    (tmp_path / "a.txt").write_text("1\n")
    with pytest.raises(ConfigurationError, match=r"a\.txt.*cannot be determined from its name"):
        read_all(source(tmp_path, "id int"))
    with pytest.raises(ConfigurationError, match="csv files do not support"):
        read_all(source(tmp_path / "x.csv", "id array<int>"))


def test_discovery_opens_no_file(tmp_path: Path) -> None:
    for index in range(50):
        (tmp_path / f"{index}.parquet").write_bytes(b"this is not parquet")
    assert len(list(source(tmp_path, DDL).discover())) == 50
