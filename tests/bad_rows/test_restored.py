"""Which bad rows count after restores, without Spark: also those that an earlier restore had taken back."""

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given

from spark_ext.bad_rows.names import default_table
from spark_ext.bad_rows.restored import Ancestry, BadRowsOfJob, Cut, condition
from spark_ext.bad_rows.table import Owner
from spark_ext.model.offsets import Running, SourceOffset
from tests.bad_rows.test_settle import World


class Lineages(World):
    """A query that is restored: each epoch has one bad row, whose number is its lineage and epoch."""

    lineage = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.job = BadRowsOfJob("j", "id", self.state, {})

    def epoch(self, number: int) -> None:
        end = SourceOffset("s", self.lineage, {"c": Running(self.lineage * 1_000 + number * 3 + 3)})
        self.ends = [*self.ends[: number + 1], end]
        self.spark.plan(end, epoch=number)
        to = replace(self.destination(number), lineage=self.lineage)
        self.destination = lambda *_, **__: to  # type: ignore[method-assign]
        self.read(number, number * 3, number * 3 + 3)
        del self.destination
        self.spark.commit_planned()

    def settle(self) -> None:
        self.settler(self.lineage).settle("s")

    def counting(self) -> list[tuple[int, int]]:
        rows = pa.table(DeltaTable(default_table(self.state)).scan()).to_pylist()
        return sorted((row["lineage"], row["epoch"]) for row in rows if row["replaced_in"] is None)

    def restore(self, cut: Cut | None, newest: int) -> list[Owner]:
        """As a restore does it, up to the checkpoint's replacement."""
        owners = self.job.settle("q", str(self.checkpoint))
        self.lineage += 1
        self.job.put_back("s", self.lineage, cut, owners, newest=newest)
        for name in ("offsets", "commits"):
            for file in (self.checkpoint / name).iterdir():
                if cut is None or int(file.name) > cut.epoch:
                    file.unlink()
        return owners


@pytest.fixture
def world(tmp_path: Path) -> Lineages:
    return Lineages(tmp_path)


def test_a_later_restore_brings_rows_back(world: Lineages) -> None:
    for number in range(4):
        world.epoch(number)
    world.restore(Cut(1, 1), newest=1)
    for number in (2, 3):
        world.epoch(number)
    world.settle()
    world.restore(Cut(1, 3), newest=1)
    assert world.counting() == [(1, number) for number in range(4)]
    world.restore(Cut(2, 2), newest=2)
    assert world.counting() == [(1, 0), (1, 1), (2, 2)]
    world.restore(None, newest=1)
    assert world.counting() == []


def test_a_repeated_restore_changes_nothing(world: Lineages) -> None:
    for number in range(4):
        world.epoch(number)
    for _ in range(3):
        world.restore(Cut(1, 1), newest=1)
        assert world.counting() == [(1, 0), (1, 1)]


def test_a_driver_that_was_given_up_adds_nothing_any_more(world: Lineages) -> None:
    for number in range(3):
        world.epoch(number)
    frozen = world.settler(1)
    world.restore(Cut(1, 1), newest=1)
    world.lineage = 1
    world.epoch(2)
    world.epoch(3)
    assert frozen.settle("s") == []
    assert world.counting() == [(1, 0), (1, 1)]


def test_rows_of_other_jobs_stay_as_they_are(world: Lineages) -> None:
    for number in range(2):
        world.epoch(number)
    world.settle()
    replace(world.job, job_id="other").put_back("s", 2, None, (), newest=1)
    assert world.counting() == [(1, 0), (1, 1)]


def test_a_job_without_bad_rows_has_nothing_to_be_put_back(world: Lineages) -> None:
    world.spark.commit(SourceOffset("s", 1, {"c": Running(3)}))
    world.restore(None, newest=1)
    assert not Path(world.state).exists()


steps = st.lists(
    st.one_of(
        st.sampled_from([("epoch", 0), ("other", 0), ("save", 0)]), st.tuples(st.just("restore"), st.integers(0, 9))
    )
)


@given(steps)
def test_what_counts_is_what_the_savepoint_had(given_steps: list[tuple[str, int]]) -> None:
    """Each epoch of a run makes a row, or another source of the query has made it.

    A savepoint remembers the rows, and a restore has to find exactly these.
    """
    ancestry, lineage, newest = Ancestry(), 1, -1
    present: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    saved: list[tuple[Cut | None, int, frozenset[tuple[int, int]]]] = []
    offset_lineage = 1
    for step, number in given_steps:
        if step == "epoch":
            newest, offset_lineage = newest + 1, lineage
            present.add((lineage, newest))
            written.add((lineage, newest))
        elif step == "other":
            newest += 1
        elif step == "save":
            saved.append((Cut(offset_lineage, newest) if newest >= 0 else None, lineage, frozenset(present)))
        elif saved:
            found_cut, then, rows = saved[number % len(saved)]
            ancestry = Ancestry.from_json(ancestry.to_json())
            cut = None if found_cut is None else ancestry.placed("s", found_cut, then)
            cuts = ancestry.counting("s", cut)
            found = {row for row in written for one in cuts if row[0] == one.lineage and row[1] <= one.epoch}
            assert found == rows
            lineage += 1
            ancestry = ancestry.continued("s", lineage, cut)
            newest, present = (-1 if cut is None else cut.epoch), set(rows)
            offset_lineage = lineage if found_cut is None else found_cut.lineage


def test_lineages_are_a_sources_own_and_no_interrupted_restores() -> None:
    ancestry = Ancestry().continued("a", 2, Cut(1, 5)).continued("b", 3, None)
    assert ancestry.counting("a", Cut(2, 7)) == (Cut(2, 7), Cut(1, 5))
    assert ancestry.counting("b", Cut(2, 7)) == (Cut(2, 7),)
    ancestry = Ancestry().continued("a", 2, Cut(1, 5)).continued("a", 3, Cut(1, 9))
    assert ancestry.counting("a", Cut(3, 10)) == (Cut(3, 10), Cut(1, 9))


def test_the_condition() -> None:
    assert condition(()) == "false"
    assert condition((Cut(2, 7), Cut(1, 5))) == "(lineage = 2 and epoch <= 7) or (lineage = 1 and epoch <= 5)"
