"""Which rows of the table count after restores, without Spark: also those that an earlier restore had taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ext.bad_rows.lineages import Cut
from spark_ext.bad_rows.names import default_table
from spark_ext.bad_rows.restored import BadRowsOfJob
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
        """Lineage and epoch of the rows that count."""
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
    other = replace(world.job, job_id="other")
    other.put_back("s", 2, None, (), newest=1)
    assert world.counting() == [(1, 0), (1, 1)]


def test_a_job_without_bad_rows_has_nothing_to_be_put_back(world: Lineages) -> None:
    world.spark.commit(SourceOffset("s", 1, {"c": Running(3)}))
    world.restore(None, newest=1)
    assert not Path(world.state).exists()
