"""`files` at the level of its contract: every row once, in order, the same on each read, whatever leads to a file."""

import json
import os
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from spark_ext.datafiles.listing import Listing
from spark_ext.datafiles.local_tree import once, walk
from spark_ext.errors import ConfigurationError
from spark_ext.sources.contract import Limit
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import Trace, drive
from tests.sources.files.files_kit import DDL, SCHEMA, opened, options, read_all, sizes, source, steps, table, write

KINDS = ("parquet", "orc", "avro", "csv", "json")


@given(sizes=sizes, seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS), header=st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_folder_is_one_channel_read_in_the_order_of_names(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, kind: str, header: bool
) -> None:
    root = tmp_path_factory.mktemp("in")
    header = header and kind == "csv"
    for folder in ("a", "b"):
        for index, rows in enumerate(sizes):
            write(root / folder / f"{index}.{kind}", table(index * 1000, rows), kind, header)
    given = options(root, group="directory", header=str(header))
    trace = drive(Files, given, schema=SCHEMA, rng=random.Random(seed))
    assert sorted(trace.finished) == (["a", "b"] if sizes else [])
    wanted = [index * 1000 + n for index, rows in enumerate(sizes) for n in range(rows)]
    for folder in trace.finished:
        assert trace.rows(folder)["id"].to_pylist() == wanted


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json"])
def test_row_limits_are_exact(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"x.{kind}", table(0, 23), kind)
    assert [len(ids) for ids in steps(source(tmp_path, DDL), 7)] == [7, 7, 7, 2]


def test_byte_limits_hold_to_a_line(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", table(0, 200), "csv")
    made, channel = opened(tmp_path, DDL)
    longest = max(len(line) for line in (tmp_path / "x.csv").read_bytes().splitlines(keepends=True))
    at = 0
    while at < (tmp_path / "x.csv").stat().st_size:
        step = made.advance(channel, at, Limit(bytes=300))
        assert 0 < step.end - at < 300 + longest
        at = step.end
    assert step.finished


def test_one_large_file_feeds_several_tasks(tmp_path: Path) -> None:
    pq.write_table(table(0, 1000), tmp_path / "x.parquet", row_group_size=100)
    made, channel = opened(tmp_path)
    assert made.split(channel, 0, 1000, 4) == [(0, 200), (200, 500), (500, 700), (700, 1000)]
    assert made.split(channel, 950, 1000, 4) == [(950, 1000)]
    assert source(tmp_path, split="false").split(channel, 0, 1000, 4) == [(0, 1000)]


def test_split_of_lines_is_at_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("".join(json.dumps({"id": n, "word": "x" * 100}) + "\n" for n in range(60_000)))
    made, channel = opened(tmp_path, "id bigint, word string")
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
        ("*.csv", ["a1.csv", "b1.csv"]), ("[!b]*.csv", ["a1.csv"]), ("{a,b}?.csv", ["a1.csv", "b1.csv"]),
        ("day=*", ["day=1/a1.csv", "day=2/a1.csv"]), ("day=2/*.csv", ["a1.csv"]),
        ("**/a1.csv", ["a1.csv", "day=1/a1.csv", "day=2/a1.csv"]), ("b1.csv", ["b1.csv"]),
    ],
)  # fmt: skip
def test_glob_patterns(tmp_path: Path, pattern: str, found: list[str]) -> None:
    for name in ("a1.csv", "b1.csv", "c1.txt", "day=1/a1.csv", "day=2/a1.csv"):
        write(tmp_path / name, table(0, 1), "csv")
    assert [channel.id for channel in source(tmp_path / pattern, DDL).discover()] == found


def test_order_by_modification(tmp_path: Path) -> None:
    for index, name in enumerate(("c.csv", "a.csv", "b.csv")):
        write(tmp_path / name, table(0, 1), "csv")
        os.utime(tmp_path / name, (index, index))
    ids = [channel.id for channel in source(tmp_path, DDL, order="modified").discover()]
    assert ids == ["c.csv", "a.csv", "b.csv"]


def test_values_of_folders_become_columns(tmp_path: Path) -> None:
    for folder in ("year=2013/month=1", "year=2014/month=__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / folder / "x.parquet", table(0, 2), "parquet")
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
    assert len(drive(Files, options(tmp_path), schema=SCHEMA).finished) == (3 if kind == "parquet" else 4)


def test_an_empty_folder_ends_at_once(tmp_path: Path) -> None:
    trace: Trace = drive(Files, options(tmp_path), schema=SCHEMA)
    assert trace.ended
    assert trace.epochs == 1


def test_watch_takes_new_files_and_never_ends(tmp_path: Path) -> None:
    def appear(epoch: int) -> None:
        if epoch < 5:
            write(tmp_path / f"{epoch}.csv", table(epoch * 10, 3), "csv")

    given = options(tmp_path, watch="true", discovery_interval="0")
    trace = drive(Files, given, schema=SCHEMA, between=appear, limits=[{}])
    assert not trace.ended
    assert trace.finished == [f"{epoch}.csv" for epoch in range(5)]


def test_watch_leaves_young_files_alone(tmp_path: Path) -> None:
    write(tmp_path / "old.csv", table(0, 1), "csv")
    os.utime(tmp_path / "old.csv", (1, 1))
    write(tmp_path / "young.csv", table(0, 1), "csv")
    made = source(tmp_path, DDL, watch="true", min_age="1 hour")
    assert [channel.id for channel in made.discover()] == ["old.csv"]


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


def files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")


def found(path: Path, **more: str) -> list[str]:
    return [channel.id for channel in source(path, "w string", **more).discover()]


@pytest.mark.parametrize("target", [".", "..", "../in", "a", "a/../.."])
def test_a_link_to_a_folder_in_or_above_the_tree_repeats_nothing(tmp_path: Path, target: str) -> None:
    root = tmp_path / "in"
    files(root, "a/x.csv", "y.csv")
    (root / "loop").symlink_to(target)
    (root / "a/loop").symlink_to(root)
    assert found(root) == ["a/x.csv", "y.csv"]
    assert [row["w"] for row in read_all(source(root, "w string"))] == ["a/x.csv", "y.csv"]


def test_a_file_reached_by_path_and_links_is_named_by_its_path(tmp_path: Path) -> None:
    files(tmp_path, "a/x.csv", "z.csv")
    (tmp_path / "0.csv").symlink_to("a/x.csv")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c.csv").symlink_to(tmp_path / "0.csv")
    assert found(tmp_path) == ["a/x.csv", "z.csv"]
    assert found(tmp_path, group="directory") == ["a", "."]
    # By a path that only the links match, they are the only names.
    assert found(tmp_path / "b*") == ["b/x.csv"]
    assert found(tmp_path, pattern="z*") == ["z.csv"]
    assert found(tmp_path, recursive="false", pattern="[!c]*") == ["0.csv", "z.csv"]


def test_links_to_what_is_elsewhere_or_hidden_are_followed(tmp_path: Path) -> None:
    files(tmp_path, "out/d/x.csv", "out/y.csv", "in/..data/z.csv")
    (tmp_path / "in/d").symlink_to(tmp_path / "out/d")
    (tmp_path / "in/y.csv").symlink_to(tmp_path / "out/y.csv")
    (tmp_path / "in/z.csv").symlink_to("..data/z.csv")
    (tmp_path / "in/gone.csv").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("in")
    assert found(tmp_path / "in") == found(tmp_path / "link") == ["d/x.csv", "y.csv", "z.csv"]


@pytest.mark.parametrize(
    "links", [{"1.csv": "out/d/x.csv", "2.csv": "out/d/x.csv"}, {"1": "out/d", "2": "out"}, {"1": "out", "2": "out/d"}]
)
def test_two_links_to_a_file_elsewhere_are_refused_by_name(tmp_path: Path, links: dict[str, str]) -> None:
    files(tmp_path, "out/d/x.csv")
    (tmp_path / "in").mkdir()
    for name, target in links.items():
        (tmp_path / "in" / name).symlink_to(tmp_path / target)
    with pytest.raises(ConfigurationError, match=r"'1.* and '2.* are symbolic links to the same file '.*out/d/x\.csv'"):
        found(tmp_path / "in")
    assert len(found(tmp_path / "in/1*")) == 1


names = st.sampled_from(["a", "b", "a/c", "b/d", "_h", ""])


@given(there=st.sets(names, min_size=1), links=st.lists(st.tuples(names, st.sampled_from("lmn"), names), max_size=4))
@settings(max_examples=60, deadline=None)
def test_each_file_has_one_name_whatever_the_links(
    tmp_path_factory: pytest.TempPathFactory, there: set[str], links: list[tuple[str, str, str]]
) -> None:
    root = tmp_path_factory.mktemp("in") / "root"
    files(root, *(f"{folder}/x.csv".lstrip("/") for folder in there))
    plain = Listing(fs.LocalFileSystem(), str(root), "t").entries()
    arrow = fs.LocalFileSystem().get_file_info(fs.FileSelector(str(root), recursive=True))
    listed = [(info.path[len(str(root)) + 1 :], info.size, info.mtime_ns) for info in arrow if info.is_file]
    assert sorted((one.name, one.size, one.modified) for one in plain) == [
        one for one in sorted(listed) if not one[0].startswith("_h")
    ]
    for folder, name, target in links:
        (root / folder).mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(root / folder / name):
            (root / folder / name).symlink_to(root / target)
    seen = [one for one in walk(str(root), deep=True) if not one.linked]
    assert {one.entry.name for one in seen} == {one.name for one in plain}
    chosen = once([one for one in walk(str(root), deep=True) if "_h" not in one.real])
    assert sorted(one.name for one in chosen) == sorted(one.name for one in plain)
