"""`seek`: positions to which a channel may be sent, and what is read from there, without Spark."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from spark_ext.errors import ConfigurationError
from spark_ext.model.offsets import Json
from spark_ext.sources.contract import Channel
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.files.source import Files
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.testing.source_kit import SourceRun
from tests.sources.files.files_kit import SCHEMA, opened, table, write
from tests.sources.hybrid.test_hybrid import drain
from tests.sources.memory import Store, memory

LIMITS = [{"max_rows_per_epoch": "4", "readers": "1"}]


def files(path: Path, **more: str) -> SourceRun:
    return SourceRun(Files, {"uid": "s", "path": str(path), **more}, schema=SCHEMA, limits=LIMITS)


def ids(run: SourceRun, channel: str, column: str = "id") -> list[int]:
    found: list[int] = run.trace.rows(channel)[column].to_pylist()
    return found


def refused(run: SourceRun, channel: str, position: Json, says: str) -> None:
    before = run.offset
    with pytest.raises(ConfigurationError, match=says) as caught:
        run.seek(channel, position)
    assert "continues where it is" in caught.value.kept
    assert run.offset is before


NONSENSE = [-1, 1.5, True, "3", None, [], {}, [1, 2], 10**30, "x" * 10_000]


def test_datagen_forward_back_and_to_the_end() -> None:
    run = SourceRun(DataGen, {"uid": "s", "rows": "20"}, limits=LIMITS)
    run.epoch()
    assert run.seek("0", 10) == 10
    run.replay()
    run.epoch()
    run.seek("0", 2)
    run.seek("0", 3)
    run.epoch()
    run.replay()
    run.seek("0", 20)
    drain(run)
    assert ids(run, "0", "seq") == [0, 1, 2, 3, 10, 11, 12, 13, 3, 4, 5, 6]
    assert run.offset.ended


def test_datagen_refuses_rows_that_it_does_not_have() -> None:
    run = SourceRun(DataGen, {"uid": "s", "rows": "20"}, limits=LIMITS)
    run.epoch()
    for wrong in [*NONSENSE, 21]:
        refused(run, "0", wrong, "the number of a row, as in the column seq, from 0 to 20")
    endless = SourceRun(DataGen, {"uid": "s"}, limits=LIMITS)
    endless.epoch()
    assert endless.seek("0", 10**9) == 10**9
    refused(endless, "0", -1, "0 or more")


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_continue_at_a_row_or_line(tmp_path: Path, kind: str) -> None:
    name = f"a.{kind}"
    write(tmp_path / name, table(0, 21), kind)
    run = files(tmp_path)
    begins = [0]
    while run.epoch() and not run.offset.ended:
        begins.append(run.offset.running[name].at)
    assert ids(run, name) == list(range(21))
    run = files(tmp_path)
    run.epoch()
    assert run.seek(name, begins[3]) == begins[3]
    run.replay()
    run.epoch()
    run.seek(name, 0)
    run.epoch()
    run.replay()
    run.seek(name, 21 if kind == "parquet" else (tmp_path / name).stat().st_size)
    drain(run)
    assert ids(run, name) == [*range(4), *range(12, 16), *range(4)]
    assert run.offset.ended


def test_a_place_inside_a_line_is_refused_and_the_next_one_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"1,a,\r\n22,b,\r\n3,c,\n4,d,\n")
    one_by_one = [{"max_rows_per_epoch": "1", "readers": "1"}]
    run = SourceRun(Files, {"uid": "s", "path": str(tmp_path)}, schema=SCHEMA, limits=one_by_one)
    run.epoch()
    for inside in (1, 5, 7, 12):
        refused(run, "a.csv", inside, f"a line begins; the next one begins at {6 if inside < 6 else 13}")
    for wrong in [*NONSENSE, 24]:
        refused(run, "a.csv", wrong, "the byte at which a line begins, from 0 to 23")
    run.seek("a.csv", 13)
    drain(run)
    assert ids(run, "a.csv") == [1, 3, 4]


def test_a_row_behind_the_end_of_a_parquet_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table(0, 10), "parquet")
    run = files(tmp_path)
    run.epoch()
    for wrong in [*NONSENSE, 11]:
        refused(run, "a.parquet", wrong, "the number of a row of the file, from 0 to 10")


def test_a_compressed_file_begins_or_has_ended(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,a,\n2,b,\n"))
    size = (tmp_path / "a.csv.gz").stat().st_size
    made, channel = opened(tmp_path, SCHEMA)
    assert [made.seek(channel, 0, there) for there in (0, size)] == [0, size]
    for wrong in (1, True, "0", None):
        with pytest.raises(ConfigurationError, match=f"0 or {size}, as the file is read in one step"):
            made.seek(channel, 0, wrong)


def test_a_folder_is_continued_in_another_file(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", table(number * 10, 10), "parquet")
    run = files(tmp_path, group="directory")
    run.epoch()
    assert run.seek(".", [2, 5]) == [2, 5]
    run.epoch()
    run.seek(".", [1, 10])
    run.epoch()
    run.seek(".", [3, 0])
    drain(run)
    assert ids(run, ".") == [0, 1, 2, 3, 25, 26, 27, 28, 20, 21, 22, 23]
    run = files(tmp_path, group="directory")
    run.epoch()
    for wrong in (0, [0], [4, 0], [3, 1], [0, 11], [0, -1], ["0", 0], {"0": 1}):
        refused(run, ".", wrong, "is not a position of this channel")


def test_a_data_file_of_a_delta_table(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), table(0, 20).select(["id", "word"]))
    run = SourceRun(DeltaSnapshot, {"uid": "s", "path": str(tmp_path)}, limits=LIMITS)
    run.epoch()
    name = next(iter(run.offset.running))
    run.seek(name, 18)
    drain(run)
    assert ids(run, name) == [0, 1, 2, 3, 18, 19]


def hybrid(**more: str) -> SourceRun:
    given = {"uid": "s", "stages": "one,two", "one.format": "datagen", "one.rows": "20", "two.format": "datagen"}
    return SourceRun(Hybrid, {**given, "two.rows": "20", "two.seed": "1", **more}, limits=LIMITS)


def test_a_hybrid_source_asks_the_source_of_the_stage() -> None:
    run = hybrid()
    run.epoch()
    run.seek("one/0", 18)
    while "two/0" not in run.offset.running:
        run.epoch()
    refused(run, "two/0", 21, "from 0 to 20")
    run.seek("two/0", 19)
    drain(run)
    assert ids(run, "one/0", "seq") == [0, 1, 2, 3, 18, 19]
    assert ids(run, "two/0", "seq") == [0, 1, 2, 3, 19]


def test_a_stage_that_ends_where_the_next_begins_is_not_skipped() -> None:
    run = hybrid(**{"one.seam": "channel:seq"})
    run.epoch()
    refused(run, "one/0", 5, "the next stage begins right after the rows that were read of this one")


def test_a_source_that_has_no_such_positions_refuses_all() -> None:
    class Fixed(DataGen):
        seek: Any = DataGen.__mro__[1].seek  # type: ignore[attr-defined]

    with pytest.raises(ConfigurationError, match="cannot be sent to another position"):
        Fixed({"uid": "s"}).seek(Channel("0"), 0, 3)
    assert memory(Store({"a": 9})).seek(Channel("a"), 0, 3) == 3
