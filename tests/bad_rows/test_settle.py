"""From the files of tasks to the table, without Spark: once, whatever is repeated, interrupted or left behind."""

import tempfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings

from spark_ext.bad_rows import table as table_module
from spark_ext.bad_rows.collector import Collector, Destination
from spark_ext.bad_rows.names import default_table, key_of, pending_folder
from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.settle import Settler
from spark_ext.bad_rows.table import BadRowsTable
from spark_ext.errors import DataError, StateError
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.model.offsets import Finished, Range, Running, SourceOffset
from tests.ledger.rows import flag
from tests.queries.fakes import FakeQuery


class World:
    """A query with a source `s` of one channel, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.state, self.checkpoint = str(folder / "state"), folder / "checkpoint"
        self.spark = FakeQuery(self.checkpoint)
        self.spark.start()
        self.ends = [SourceOffset("s", 1)]

    def plan(self, upto: int) -> int:
        self.ends.append(SourceOffset("s", 1, {"c": Running(upto)}))
        return self.spark.plan(self.ends[-1])

    def destination(self, epoch: int, incarnation: int = 1, most: int | None = None) -> Destination:
        end = self.ends[epoch + 1]
        where = default_table(self.state)
        return Destination(self.state, str(self.checkpoint), "s", where, 1, key_of(end), incarnation, most)

    def read(
        self, epoch: int, low: int, high: int, incarnation: int = 1, *, known: bool = True, rules: str = ""
    ) -> None:
        """A task reads a range, in which every third row is bad."""
        number = epoch if known else None
        destination = replace(self.destination(epoch, incarnation), rules=rules)
        collector = Collector(destination, Range("c", None, low, high), lambda: number)
        for n in range(low, high):
            if n % 3 == 0:
                collector.add(BadRow({"n": n}, "a multiple of 3", str(n)))
        collector.finish()

    def run(self, upto: int) -> None:
        low = 0 if not self.ends[-1].running else self.ends[-1].running["c"].at
        self.read(self.plan(upto), low, upto)
        self.spark.commit_planned()

    def settler(self, lineage: int = 1) -> Settler:
        return Settler("j", "id", self.state, "q", lineage, str(self.checkpoint))

    def rows(self) -> list[tuple[int, int]]:
        if not DeltaTable.is_deltatable(default_table(self.state)):
            return []
        table = pa.table(DeltaTable(default_table(self.state)).scan())
        return sorted(zip(table["epoch"].to_pylist(), map(int, table["raw"].to_pylist()), strict=True))

    def files(self) -> list[Path]:
        return [path for path in Path(pending_folder(self.state, "s")).rglob("*") if path.is_file()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_come_with_the_commit_of_their_epoch(world: World) -> None:
    world.plan(10)
    world.read(0, 1, 3)
    assert not Path(world.state).exists(), "no bad row, nothing is left"
    world.read(0, 0, 10)
    assert world.settler().settle("s") == [] and world.rows() == [], "the epoch may never be committed"
    world.spark.commit_planned()
    [moved] = world.settler().settle("s")
    assert (moved.uid, moved.epoch, moved.rows) == ("s", 0, 4)
    assert world.rows() == [(0, n) for n in (0, 3, 6, 9)] and not world.files()
    assert not world.settler().waiting("s")


def test_each_row_has_all_that_is_known_of_it(world: World) -> None:
    world.run(1)
    world.settler().settle("s")
    [row] = pa.table(DeltaTable(default_table(world.state)).scan()).to_pylist()
    assert row.pop("at").tzinfo is not None
    assert row == {
        "job": "j", "query": "q", "uid": "s", "channel": "c", "position": '{"n": 0}', "reason": "a multiple of 3",
        "raw": "0", "raw_bytes": None, "rules": None, "epoch": 0, "lineage": 1, "job_id": "id", "replaced_in": None,
        "role": "source",
    }  # fmt: skip


@pytest.mark.parametrize("bad_now", [True, False])
def test_rules_corrected_before_the_commit_are_those_that_count(world: World, bad_now: bool) -> None:
    world.plan(10)
    world.read(0, 0, 7)  # the start that stops, as more than the limit are bad
    replace(world.destination(0, 2), rules="1" * 16).read_again()
    if bad_now:
        world.read(0, 9, 10, 2, rules="1" * 16)
    world.spark.commit_planned()
    assert [one.rows for one in world.settler().settle("s")] == [1] * bad_now
    assert world.rows() == [(0, 9)] * bad_now and not world.files()
    assert not world.settler().waiting("s")


def test_what_a_late_task_leaves_behind_a_commit_is_removed(world: World) -> None:
    world.run(10)
    settler = world.settler()
    settler.settle("s")
    world.read(0, 0, 10)
    assert settler.settle("s") == [] and world.settler().settle("s") == []
    assert len(world.rows()) == 4 and not world.files()


def test_files_of_an_epoch_that_was_planned_again_are_removed(world: World) -> None:
    world.plan(10)
    world.read(0, 0, 10)
    world.ends[1] = SourceOffset("s", 1, {"c": Running(5)})
    world.spark.plan(world.ends[1], epoch=0)
    assert world.settler().settle("s") == [] and not world.files()
    world.read(0, 0, 5)
    world.spark.commit_planned()
    world.settler().settle("s")
    assert world.rows() == [(0, 0), (0, 3)]


def test_files_of_older_lineages_are_removed_but_newer_ones_kept(world: World) -> None:
    world.plan(10)
    world.read(0, 0, 10)
    assert world.settler(lineage=0).settle("s") == [] and world.files()
    assert world.settler(lineage=2).settle("s") == [] and not world.files()


def test_epochs_that_spark_has_forgotten_are_moved(world: World) -> None:
    for upto in (10, 20):
        world.run(upto)
    for name in ("offsets", "commits"):
        (world.checkpoint / name / "0").unlink()
    world.settler().settle("s")
    assert world.rows() == [(n // 10, n) for n in range(0, 20, 3)]


def test_a_task_without_properties_finds_its_epoch_in_the_log(world: World) -> None:
    for upto in (10, 20):
        world.plan(upto)
        world.spark.commit_planned()
    world.spark.commit(world.ends[-1])  # another source of the query has read something
    world.read(1, 10, 20, known=False)
    world.settler().settle("s")
    assert world.rows() == [(1, n) for n in (12, 15, 18)]


def test_an_epoch_that_is_not_in_the_log_is_refused(world: World) -> None:
    world.plan(10)
    (world.checkpoint / "offsets" / "0").unlink()
    with pytest.raises(StateError, match="not in Spark's log"):
        world.read(0, 0, 10, known=False)


def test_a_range_with_more_than_the_limit_fails(world: World) -> None:
    world.plan(10)
    collector = Collector(world.destination(0, most=2), Range("c", None, 0, 10), lambda: 0)
    collector.add(BadRow(1, "odd"))
    collector.add(BadRow(2, "odd"))
    with pytest.raises(DataError, match="more than 2 rows of one range are bad"):
        collector.add(BadRow(3, "odd"))


def test_a_query_with_another_id_begins_anew(world: World) -> None:
    """A source that moves to another query of the job: the numbers of its epochs are those of the other one."""
    for upto in (10, 20):
        world.run(upto)
    world.settler().settle("s")
    (world.checkpoint / "metadata").write_text('{"id": "another"}')
    world.read(0, 0, 10)
    world.settler().settle("s")
    assert [epoch for epoch, _ in world.rows()].count(0) == 8


def test_two_jobs_may_share_a_table(tmp_path: Path) -> None:
    worlds = [World(tmp_path / name) for name in "ab"]
    shared = str(tmp_path / "shared")
    for number, world in enumerate(worlds):
        world.plan(10)
        to = replace(world.destination(0), table=shared)
        collector = Collector(to, Range("c", None, 0, 10), lambda: 0)
        collector.add(BadRow(number, "odd"))
        collector.finish()
        world.spark.commit_planned()
        Settler("j", f"id{number}", world.state, "q", 1, str(world.checkpoint)).settle("s")
    found = pa.table(DeltaTable(shared).scan()).to_pylist()
    assert sorted((row["job_id"], row["position"]) for row in found) == [("id0", "0"), ("id1", "1")]


def test_a_bad_file_counts_until_it_is_read(world: World) -> None:
    """Finishes may be in the offset, or in the ledger alone; a restore lets rows count again that belong to it."""
    names = ("b's.csv", "c.csv")
    world.plan(10)
    for name in names:
        collector = Collector(world.destination(0), Range(f"{name}//bad-10-1", None, 0, 10), lambda: 0)
        collector.add(BadRow({"file": name}, "damaged"))
        collector.finish()
    world.spark.commit_planned()
    settler = world.settler()
    (moved,) = settler.settle("s")
    assert moved.files == names

    def counting() -> list[str]:
        settler.mark_read("s", None)
        found = pa.table(DeltaTable(default_table(world.state)).scan()).to_pylist()
        return sorted(row["channel"] for row in found if row["replaced_in"] is None)

    assert counting() == [f"{name}//bad-10-1" for name in names]
    world.ends.append(SourceOffset("s", 1, finished=(Finished(1, names[0], 10), Finished(2, "d.csv", 10))))
    world.spark.plan(world.ends[-1])
    assert len(counting()) == 2, "it is not committed"
    world.spark.commit_planned()
    assert counting() == ["c.csv//bad-10-1"]
    BadRowsTable(default_table(world.state)).replace("id", "s", "epoch <= 0", 2)
    assert counting() == ["c.csv//bad-10-1"], "it is marked once more"
    ledger = Ledger(world.state)
    LedgerWriter(ledger, start_incarnation(ledger, "j")).append(
        [replace(flag(1, "s", "q"), channel="c.csv", lineage=1)]
    )
    world.ends.append(SourceOffset("s", 1, confirmed=1))
    world.spark.plan(world.ends[-1])
    world.spark.commit_planned()
    assert counting() == []


def test_the_table_stays_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAINTAIN_EVERY", 4)
    settler = world.settler()
    for epoch in range(9):
        world.run(3 * epoch + 3)
        settler.settle("s")
    assert world.rows() == [(epoch, 3 * epoch) for epoch in range(9)]
    assert len(DeltaTable(default_table(world.state)).file_uris()) < 6


steps = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.integers(0, 12)), st.tuples(st.just("read"), st.integers(0, 9)),
        st.tuples(st.just("part"), st.integers(0, 9)), st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("settle"), st.integers(0, 2)), st.tuples(st.just("start"), st.just(0)),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=25)
@given(steps)
def test_good_and_bad_are_the_input(given_steps: list[tuple[str, int]]) -> None:
    """An epoch is committed once all of it was read; before and after that anything may be read in part or again."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        settler, incarnation, at, committed, whole = world.settler(), 1, [0], -1, False

        def read(epoch: int, parts: int, upto: int) -> None:
            low, high = at[epoch], at[epoch + 1]
            cuts = [low + (high - low) * part // parts for part in range(parts + 1)]
            for number in range(min(parts, upto)):
                world.read(epoch, cuts[number], cuts[number + 1], incarnation)

        for step, number in given_steps:
            planned = len(at) - 2
            if step == "plan" and planned == committed:
                at.append(at[-1] + number)
                world.plan(at[-1])
                whole = False
            elif step == "read" and planned >= 0:
                read(planned, 1 + incarnation % 3, 99)
                whole = True
            elif step == "part" and planned >= 0:
                read(max(0, planned - number % 2), 1 + incarnation % 3, number % 3)
            elif step == "commit" and whole and planned > committed:
                world.spark.commit_planned()
                committed = planned
            elif step == "settle":
                (settler if number else world.settler()).settle("s")
            elif step == "start":
                incarnation += 1
                settler = world.settler()
        settler.settle("s")
        wanted = [(epoch, n) for epoch in range(committed + 1) for n in range(at[epoch], at[epoch + 1]) if n % 3 == 0]
        assert world.rows() == wanted


def test_a_state_directory_that_is_moved_takes_bad_rows_along(world: World, tmp_path: Path) -> None:
    world.run(6)
    world.settler().settle("s")
    world.run(12)
    Path(world.state).rename(tmp_path / "elsewhere")
    world.state = str(tmp_path / "elsewhere")
    assert [moved.epoch for moved in world.settler().settle("s")] == [1]
    assert world.rows() == [(0, 0), (0, 3), (1, 6), (1, 9)]
    assert not (tmp_path / "state").exists()


def test_a_source_moved_to_another_query_leaves_waiting_rows(world: World, tmp_path: Path) -> None:
    """The new query has epochs of the same numbers, in which the source has read something else."""
    world.run(6)
    other = World(tmp_path / "other")
    other.state = world.state
    other.plan(3)
    other.spark.commit_planned()
    assert other.settler().settle("s") == [] and world.rows() == []
    assert not world.settler().waiting("renamed"), "nor does a source with another uid have it"
