"""The tests of bad rows that every sink with `quarantines` has to pass: each row is in the target or in the table.

They are part of `SinkContract`, and skipped for a target without `spoiled`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_ext.bad_rows.names import default_table, sinks_folder
from spark_ext.bad_rows.settle import Settler
from spark_ext.errors import ConfigurationError, DataError, FencedError, PreparedLostError, from_text
from spark_ext.model.commits import CommitOutcome
from spark_ext.testing.children import frozen, killed_at, was_fenced
from spark_ext.testing.sink_driver import NUMBERS, STATES, Driver, Row, SinkTarget, numbered

BAD_EVERY = 5
"""The rows of an epoch; the first one is spoiled."""

ASIDE: Mapping[str, str] = {"on_bad_row": "quarantine"}

STEPS = ("sink.before_commit", "bad_rows.before_kept", "bad_rows.kept", "bad_rows.decided", "sink.committed")
"""Fail points that an epoch with bad rows passes."""


class SinkBadRowsContract:
    """A part of `SinkContract`."""

    @pytest.fixture
    def dirty(self, target: SinkTarget) -> SinkTarget:
        """The target, if its sink can put rows aside."""
        if not target.sink().quarantines:
            pytest.skip("the sink does not put rows aside")
        try:
            target.spoiled({"id": 1, "name": "n"})
        except NotImplementedError:
            pytest.skip("the target has no `spoiled`")
        target.make_strict()
        return target

    def test_bad_rows_go_to_the_table_with_the_commit_of_their_epoch(self, dirty: SinkTarget) -> None:
        """From several tasks, with the epoch, the sink, a reason and the row."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        kit.driver().run(0, kit.rows(0, 20), partitions=3)
        assert kit.table() == [], "Spark has not committed the epoch"
        kit.settle(0)
        found = kit.found()
        assert sorted(dirty.id_of_bad(row["raw"]) for row in found) == [0, 5, 10, 15]
        assert {(row["role"], row["uid"], row["epoch"], row["query"]) for row in found} == {("sink", "out", 0, "q")}
        assert all(row["reason"] for row in found)
        kit.check(20)
        assert kit.waiting() == []

    def test_an_epoch_of_which_all_rows_are_bad(self, dirty: SinkTarget) -> None:
        """Is committed, and recognised when it is repeated; the next one is written as usual."""
        kit = BadRowsKit(dirty)
        first = kit.driver().claim()
        spoiled = [dirty.spoiled(row) for row in numbered(0, 5)]
        first.run(0, spoiled)
        first.run(0, spoiled)
        assert first.outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED]
        first.run(1, numbered(5, 10))
        kit.settle(1)
        assert (dirty.ids(), kit.table()) == (list(range(5, 10)), list(range(5)))

    def test_bad_rows_crash_at_every_step_and_each_row_is_there_once(self, dirty: SinkTarget) -> None:
        """A starting driver is killed at each step; its successor repeats the epoch, with other partitions."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        for number, point in enumerate((*STEPS, dirty.before_commit, dirty.after_commit)):
            start, end = number * 10, number * 10 + 10
            killed_at(point, run_dirty_epoch, dirty, 2 * number + 1, number, start, end, True)
            successor = kit.driver(2 * number + 2).claim()
            successor.run(number, kit.rows(start, end), partitions=2)
            kit.settle(number)
            assert kit.all() == list(range(end)), f"killed at {point}"
            assert kit.waiting() == [], f"killed at {point}"

    @pytest.mark.parametrize("step", ["before_commit", "after_commit"])
    def test_bad_rows_of_the_attempt_that_was_committed_count(self, dirty: SinkTarget, step: str) -> None:
        """The repeated epoch has other bad rows, as after a change of an option; the target says which count."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        killed_at(getattr(dirty, step), run_dirty_epoch, dirty, 1, 0, 0, 10, True)
        second = kit.driver(2).claim()
        second.run(0, [dirty.spoiled(row) if row["id"] == 7 else row for row in numbered(0, 10)])
        kit.settle(0)
        assert kit.table() == ([0, 5] if step == "after_commit" else [7])
        kit.check(10)

    @pytest.mark.parametrize("step", ["before_commit", "after_commit"])
    def test_bad_rows_give_way_to_an_attempt_without_any(self, dirty: SinkTarget, step: str) -> None:
        """And the other way round: those of an attempt that was not committed are nowhere."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        killed_at(getattr(dirty, step), run_dirty_epoch, dirty, 1, 0, 0, 10, True)
        second = kit.driver(2).claim()
        second.run(0, numbered(0, 10))
        kit.settle(0)
        assert kit.table() == ([0, 5] if step == "after_commit" else [])
        kit.check(10)
        assert kit.waiting() == []

    def test_bad_rows_of_a_committed_epoch_count_without_the_option(self, dirty: SinkTarget) -> None:
        """The first one died before it could note that the target has the epoch; in the repeated one no row is bad."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        killed_at(dirty.after_commit, run_dirty_epoch, dirty, 1, 0, 0, 10, True)
        second = Driver(dirty, 2, options=dirty.spoiling)
        try:
            second.claim()
        except ConfigurationError:
            pytest.skip("without the option the target is refused before the start")
        second.run(0, numbered(0, 10))
        kit.settle(0)
        assert kit.table() == [0, 5] and kit.waiting() == []
        kit.check(10)

    def test_bad_rows_of_an_older_incarnation_do_not_count(self, dirty: SinkTarget, tmp_path: Path) -> None:
        """It was frozen when it had kept them; its successor has found others."""
        kit = BadRowsKit(dirty)
        kit.driver().claim()
        second = kit.driver(2)
        with frozen(tmp_path, "bad_rows.kept", run_dirty_epoch, dirty, 1, 0, 0, 10) as zombie:
            second.claim()
            second.run(0, [dirty.spoiled(row) if row["id"] == 7 else row for row in numbered(0, 10)])
            kit.settle(0)
            said = zombie.wake()
            # A sink that has still to read what its tasks have staged finds that its successor has removed it.
            assert was_fenced(said) or isinstance(from_text(said), PreparedLostError), said
        with pytest.raises(FencedError):
            kit.driver().claim()
        second.run(1, numbered(10, 15))
        kit.settle(1)
        assert kit.table() == ([0, 5] if dirty.records_first else [7])
        kit.check(15)

    def test_bad_rows_many_of_a_task_are_left_in_a_file(
        self, dirty: SinkTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rather than sent with its message; also those of an attempt that was never committed are removed."""
        monkeypatch.setattr("spark_ext.bad_rows.epoch.INLINE", 0)
        kit = BadRowsKit(dirty)
        driver = kit.driver().claim()
        driver.write(0, kit.rows(0, 20), attempt=1)
        driver.run(0, kit.rows(0, 20), partitions=2)
        kit.settle(0)
        kit.check(20)
        assert kit.waiting() == []

    def test_bad_rows_more_than_allowed_stop_the_epoch(self, dirty: SinkTarget) -> None:
        """The limit holds for a task, and for the tasks of an epoch together."""
        kit = BadRowsKit(dirty, max_bad_rows="3")
        driver = kit.driver().claim()
        with pytest.raises(DataError, match="max_bad_rows"):
            driver.run(0, kit.rows(0, 20), partitions=4)
        kit.settle(0)
        assert kit.table() == []

    def test_bad_rows_without_any_there_is_no_folder(self, dirty: SinkTarget) -> None:
        """And the epoch is as any other."""
        kit = BadRowsKit(dirty)
        driver = kit.driver().claim()
        driver.run(0, numbered(0, 10), partitions=2)
        driver.run(0, numbered(0, 10))
        kit.settle(0)
        assert dirty.ids() == list(range(10)) and not Path(kit.state, "bad_rows").exists()

    def test_bad_rows_without_the_option_fail(self, dirty: SinkTarget) -> None:
        """The epoch is not written; some sinks refuse such a target before the start."""
        driver = Driver(dirty, options=dirty.spoiling)
        with pytest.raises((DataError, ConfigurationError)):
            driver.claim()
            driver.run(0, [*numbered(0, 5), dirty.spoiled({"id": 5, "name": "n5"})])

    def test_bad_rows_outside_of_a_job_are_refused(self, dirty: SinkTarget) -> None:
        """Nobody would move them into the table."""
        driver = Driver(dirty, incarnation=0, options={**ASIDE, **dirty.spoiling})
        with pytest.raises(ConfigurationError, match="on_bad_row=quarantine needs a job"):
            driver.commit([], 0)

    def test_bad_rows_are_refused_by_a_sink_that_cannot_collect_them(self, target: SinkTarget) -> None:
        """By the option's name, before the start."""
        if target.sink().quarantines:
            pytest.skip("the sink does")
        with pytest.raises(ConfigurationError, match="on_bad_row=quarantine"):
            target.sink("out", on_bad_row="quarantine")


class BadRowsKit:
    """A job's state with Spark's log, and its table of bad rows. The environment names the folder of states.

    Args:
        target: the sink's.
        schema: of the rows.
        options: further options of the sink.
    """

    def __init__(self, target: SinkTarget, schema: T.StructType = NUMBERS, /, **options: str) -> None:
        self.target = target
        self._schema, self._options = schema, {**ASIDE, **target.spoiling, **options}
        self.state = f"{os.environ[STATES]}/job-1"
        self._checkpoint = Path(self.state, "queries", "q", "checkpoint")
        (self._checkpoint / "commits").mkdir(parents=True)
        (self._checkpoint / "metadata").write_text(json.dumps({"id": Driver.query_id}))

    def waiting(self) -> list[Path]:
        """What waits for its epoch."""
        return [*Path(sinks_folder(self.state, Driver.query_id)).rglob("*")]

    def driver(self, incarnation: int = 1) -> Driver:
        """A start of the job, with `on_bad_row=quarantine`."""
        return Driver(self.target, incarnation, schema=self._schema, options=self._options)

    def rows(self, start: int, end: int) -> list[Row]:
        """Rows with the ids [start, end), some of them bad."""
        return spoiled(self.target, start, end)

    def settle(self, epoch: int) -> None:
        """Spark commits an epoch, and the driver moves what it has left."""
        (self._checkpoint / "commits" / str(epoch)).write_text("v1\n{}")
        for _ in range(2):
            Settler("job", "job-1", self.state, "q", 0, str(self._checkpoint)).settle_sinks()

    def found(self) -> list[dict[str, Any]]:
        """The rows of the table of bad rows."""
        import pyarrow as pa
        from deltalake import DeltaTable

        place = default_table(self.state)
        return list(pa.table(DeltaTable(place).scan()).to_pylist()) if DeltaTable.is_deltatable(place) else []

    def table(self) -> list[int]:
        """The ids of the rows of the table of bad rows."""
        return sorted(self.target.id_of_bad(row["raw"]) for row in self.found())

    def all(self) -> list[int]:
        """The ids of all rows, wherever they are; one that is in both appears twice."""
        return sorted([*self.target.ids(), *self.table()])

    def check(self, rows: int) -> None:
        """Each of the ids [0, rows) is in one of the two, once."""
        assert self.all() == list(range(rows)), (self.target.ids(), self.table())


def spoiled(target: SinkTarget, start: int, end: int) -> list[Row]:
    """Rows with the ids [start, end), some of them bad."""
    return [target.spoiled(row) if row["id"] % BAD_EVERY == 0 else row for row in numbered(start, end)]


def run_dirty_epoch(
    target: SinkTarget, incarnation: int, epoch: int, start: int, end: int, claim: bool = False
) -> None:
    """Run one epoch with bad rows among those of [start, end); with `claim`, as a newly started job."""
    driver = Driver(target, incarnation, options={**ASIDE, **target.spoiling})
    if claim:
        driver.claim()
    driver.run(epoch, spoiled(target, start, end))
