"""Bad rows of sinks, from the files of commits to the table, without Spark: histories of queries, sinks and states."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ext.bad_rows.epoch import CommitRows, Left, SinkPlace, TaskRows
from spark_ext.bad_rows.names import default_table, sinks_folder
from spark_ext.bad_rows.restored import BadRowsOfJob, Cut
from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.settle import Moved, Settler
from spark_ext.bad_rows.table import Owner
from spark_ext.errors import DataError, StateError
from spark_ext.queries.bad_rows import BadRowsWatch
from spark_ext.queries.history import EpochHistory
from tests.queries.fakes import Bench

QUERY_ID = "6f9b3d54-2f5e-4b2c-9a86-0f0f3c1d7e11"


class World:
    def __init__(self, folder: Path) -> None:
        self.state, self.query, self.uid, self.lineage = str(folder / "state"), "q", "out", 1
        (self.checkpoint / "commits").mkdir(parents=True)
        (self.checkpoint / "offsets").mkdir()
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))

    @property
    def checkpoint(self) -> Path:
        return Path(self.state, "queries", self.query, "checkpoint")

    def place(self, epoch: int, most: int | None = None) -> SinkPlace:
        where = default_table(self.state)
        return SinkPlace(self.state, where, self.uid, QUERY_ID, epoch, self.lineage, 1, most)

    def left(self, epoch: int, *names: str) -> list[Left]:
        rows = TaskRows(self.place(epoch))
        for name in names:
            rows.add(BadRow({"row": name}, "odd", name))
        found = rows.finish()
        return [] if found is None else [found]

    def attempt(self, epoch: int, names: Sequence[str], refused: Sequence[str] = ()) -> tuple[CommitRows, int | None]:
        """An attempt at a commit, up to the target's atomic step."""
        rows = CommitRows(self.place(epoch), self.left(epoch, *names))
        rows.begin()
        for name in refused:
            rows.add(BadRow(None, "refused", name))
        return rows, rows.keep()

    def run(self, epoch: int, *names: str) -> None:
        rows, mark = self.attempt(epoch, names)
        rows.decide(mark, len(names), 10)
        self.commit(epoch)

    def commit(self, epoch: int) -> None:
        (self.checkpoint / "commits" / str(epoch)).touch()

    def settle(self) -> list[Moved]:
        settler = Settler("j", "id", self.state, self.query, self.lineage, str(self.checkpoint))
        return settler.settle_sinks() if settler.sinks_waiting() else []

    def rows(self) -> list[tuple[int, str]]:
        if not DeltaTable.is_deltatable(default_table(self.state)):
            return []
        table = pa.table(DeltaTable(default_table(self.state)).scan()).to_pylist()
        return sorted((row["epoch"], row["raw"]) for row in table if row["replaced_in"] is None)

    def settled(self, epoch: int) -> list[tuple[int, str]]:
        self.commit(epoch)
        self.settle()
        return self.rows()

    def waiting(self) -> list[str]:
        root = Path(sinks_folder(self.state, QUERY_ID))
        return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_they_are_moved_once_spark_has_committed_their_epoch(world: World) -> None:
    rows, mark = world.attempt(0, ["a", "b"])
    rows.decide(mark, 2, 7)
    assert world.settle() == [] and world.rows() == []
    world.commit(0)
    [moved] = world.settle()
    assert (moved.uid, moved.role, moved.epoch, moved.rows, moved.of) == ("out", "sink", 0, 2, (2, 7))
    assert world.rows() == [(0, "a"), (0, "b")] and world.waiting() == []
    assert world.settle() == []


def test_what_was_not_decided_does_not_count(world: World) -> None:
    """The target did not take that attempt; Spark has committed the epoch with another one, which had no bad rows."""
    world.attempt(0, ["a"])
    world.commit(0)
    assert world.settle() == [] and world.rows() == [] and world.waiting() == []


def test_of_several_attempts_the_one_that_was_decided_counts(world: World) -> None:
    world.attempt(0, ["a", "b", "c"])
    rows, mark = world.attempt(0, ["d"], ["e"])
    world.attempt(0, ["f"])
    rows.decide(mark, 2, 2)
    assert world.settled(0) == [(0, "d"), (0, "e")] and world.waiting() == []


def test_a_repeated_epoch_takes_the_mark_that_the_target_holds(world: World) -> None:
    _, mark = world.attempt(0, ["a"])
    again = CommitRows(world.place(0), world.left(0, "x", "y"))
    again.begin()
    again.decide(mark, 0, 0)
    assert world.settled(0) == [(0, "a")]
    again.decide(mark, 0, 0)  # a driver that wakes up late
    assert world.settle() == [] and world.rows() == [(0, "a")] and world.waiting() == []


def test_another_attempt_at_the_commit_finds_its_rows_anew(world: World) -> None:
    rows, first = world.attempt(0, ["a"], ["b"])
    rows.begin()
    rows.add(BadRow(None, "refused", "c"))
    second = rows.keep()
    assert first != second == rows.keep()
    rows.add(BadRow(None, "refused", "d"))
    third = rows.keep()
    assert third not in (first, second), "rows that come after keeping are kept too"
    rows.decide(third, 3, 3)
    assert world.settled(0) == [(0, "a"), (0, "c"), (0, "d")]


@pytest.mark.parametrize("refused", [[], ["r"]], ids=["none refused", "one refused"])
def test_rows_of_an_earlier_decision_replace_those_of_the_tasks(world: World, refused: list[str]) -> None:
    """The tasks of a later attempt have found others; what the target refuses comes on top."""
    _, decided = world.attempt(0, ["a", "b"])
    later = CommitRows(world.place(0), world.left(0, "b", "x"))
    for _ in range(2):  # the target fails after the first one
        later.begin()
        later.adopt(decided)
        for name in refused:
            later.add(BadRow(None, "refused", name))
        mark = later.keep()
        assert (mark == decided) is (not refused) and later.count == 2 + len(refused)
    later.decide(mark, 2, 9)
    assert world.settled(0) == [(0, name) for name in ("a", "b", *refused)] and world.waiting() == []


def test_an_earlier_decision_without_bad_rows_has_none(world: World) -> None:
    later = CommitRows(world.place(0), world.left(0, "x"))
    later.begin()
    later.adopt(None)
    assert (later.keep(), later.count) == (None, 0)
    later.decide(None, 0, 9)
    assert world.settled(0) == []
    later.begin()
    assert later.count == 1, "an attempt that finds no decision"


def test_rows_of_an_earlier_decision_that_are_gone_are_missed(world: World) -> None:
    _, decided = world.attempt(0, ["a"])
    later = CommitRows(world.place(0), [])
    later.begin()
    shutil.rmtree(sinks_folder(world.state, QUERY_ID))
    with pytest.raises(StateError, match="the bad rows that it has kept are gone"):
        later.adopt(decided)


def test_without_the_option_rows_of_a_repeated_epoch_are_moved(world: World) -> None:
    rows, mark = world.attempt(1, ["a"])
    bench = Bench(Path(world.state).parent, sources=[])
    context = replace(bench.context, job="j", job_id="id")
    watch = BadRowsWatch(bench.spec, context, 1, history=EpochHistory(), worker=bench.worker, clock=bench.clock)
    world.commit(0)
    watch.poll(0, stopping=False)
    rows.decide(mark, 1, 1)
    world.commit(1)
    watch.poll(1, stopping=False)
    assert world.rows() == [(1, "a")]
    assert not watch.due(2, bench.clock.now) and watch.settled(2)


def test_much_is_left_in_a_file_which_goes_with_the_epoch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.bad_rows.epoch.INLINE", 0)
    world.left(0, "of an attempt that failed")
    world.run(0, "a")
    world.left(1, "of the next epoch")
    world.settle()
    assert world.rows() == [(0, "a")]
    assert [name for name in world.waiting() if name.endswith(".parquet")] == [
        name for name in world.waiting() if name.startswith("out/written/1-")
    ]
    world.run(1, "b")
    world.settle()
    assert world.rows() == [(0, "a"), (1, "b")] and world.waiting() == []


def test_a_limit_holds_for_tasks_and_commit_together(world: World) -> None:
    rows = CommitRows(world.place(0, most=2), world.left(0, "a", "b"))
    rows.begin()
    with pytest.raises(DataError, match="more than 2 rows are bad"):
        rows.add(BadRow(None, "refused", "c"))


def test_a_sink_with_another_uid_takes_over_what_the_former_left(world: World) -> None:
    world.run(0, "a")
    world.uid = "renamed"
    world.run(1, "b")
    assert {moved.uid for moved in world.settle()} == {"out", "renamed"}
    assert world.rows() == [(0, "a"), (1, "b")] and world.waiting() == []


def test_a_query_with_another_name_takes_over_what_it_has_left(world: World) -> None:
    """A job renames the folder of its checkpoint; Spark's id of the query stays."""
    world.run(0, "a")
    former = world.checkpoint.parent
    world.query = "renamed"
    former.rename(world.checkpoint.parent)
    world.settle()
    assert world.rows() == [(0, "a")] and world.waiting() == []


def test_a_state_directory_that_is_moved_takes_them_along(world: World, tmp_path: Path) -> None:
    world.run(0, "a")
    world.settle()
    world.run(1, "b")
    moved = tmp_path / "elsewhere"
    shutil.move(world.state, moved)
    world.state = str(moved)
    assert [one.epoch for one in world.settle()] == [1]
    assert world.rows() == [(0, "a"), (1, "b")] and world.waiting() == []
    assert not (tmp_path / "state").exists()


def test_a_new_checkpoint_leaves_the_rows_of_the_former_alone(world: World) -> None:
    """Epochs have the same numbers again: what was moved before stays, and the new ones are added."""
    world.run(0, "a")
    BadRowsOfJob("j", "id", world.state, {}).settle("q", str(world.checkpoint))
    assert world.rows() == [(0, "a")], "before it is put aside"
    (world.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    world.settle()
    assert world.rows() == [(0, "a")]


def test_after_a_restore_the_rows_of_the_savepoint_count(world: World) -> None:
    for number in range(4):
        world.run(number, f"a{number}")
    job = BadRowsOfJob("j", "id", world.state, {})
    owners = job.settle("q", str(world.checkpoint), {"out": 1})
    assert [owner for owner in owners if owner.role == "sink"] == [Owner("j", "id", "q", "out", 1, QUERY_ID, "sink")]
    job.put_back("out", 2, Cut(1, 1), owners, newest=1, role="sink")
    assert world.rows() == [(0, "a0"), (1, "a1")]
    for number in (2, 3):
        (world.checkpoint / "commits" / str(number)).unlink()
    world.lineage = 2
    world.run(2, "b2")
    world.settle()
    assert world.rows() == [(0, "a0"), (1, "a1"), (2, "b2")]
    # A later restore of a savepoint in the first lineage brings its rows back.
    job.put_back("out", 3, Cut(1, 3), (), newest=1, role="sink")
    assert world.rows() == [(number, f"a{number}") for number in range(4)]


def test_a_driver_that_was_given_up_adds_nothing_after_a_restore(world: World) -> None:
    world.run(0, "a")
    zombie = Settler("j", "id", world.state, "q", 1, str(world.checkpoint))
    job = BadRowsOfJob("j", "id", world.state, {})
    job.put_back("out", 2, None, job.settle("q", str(world.checkpoint), {"out": 1}), newest=1, role="sink")
    world.run(1, "late")
    assert zombie.settle_sinks() == []
    assert world.rows() == []


def test_rows_of_a_source_of_the_same_name_are_left_alone(world: World) -> None:
    world.run(0, "a")
    world.settle()
    BadRowsOfJob("j", "id", world.state, {}).put_back("out", 2, None, (), newest=1)
    assert world.rows() == [(0, "a")]
