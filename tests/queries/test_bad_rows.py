"""When bad rows are moved while a query runs, and what waits for it; with a fake query, ledger and clock."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_ext.bad_rows.collector import Collector, Destination
from spark_ext.bad_rows.epoch import CommitRows, SinkPlace
from spark_ext.bad_rows.names import default_table, key_of
from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.table import BadRowsTable
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger.schema import BadRowsRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import Range, SourceOffset
from spark_ext.queries.operators import is_source
from spark_ext.queries.spec import OperatorSpec
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import QUERY_ID, Bench, position


def quarantining(folder: Path, *, sink: bool = False, **options: Any) -> Bench:
    """A running query whose source, or sink, collects bad rows."""
    bench = Bench(folder)
    given = {"on_bad_row": "quarantine", **{name: str(value) for name, value in options.items()}}
    found = OperatorSpec("out" if sink else "in", "fake", given)
    bench.spec = replace(bench.spec, sink=found) if sink else replace(bench.spec, sources=(found,))
    bench.run = bench.made()
    return bench.started()


def epoch(bench: Bench, end: SourceOffset, bad: int) -> None:
    number = bench.query.plan(end)
    state = bench.context.state
    to = Destination(state, bench.run.checkpoint, "in", default_table(state), end.lineage, key_of(end), 1)
    collector = Collector(to, Range("c", None, 0, 1), lambda: number)
    for row in range(bad):
        collector.add(BadRow(row, "odd"))
    collector.finish()
    bench.query.commit_planned()


def at(number: int, *, ended: bool = False) -> SourceOffset:
    return replace(position("in", at=number, ended=ended), lineage=1)


def moved(bench: Bench) -> list[tuple[int, int]]:
    return [(row.epoch, row.rows) for row in bench.rows(BadRowsRow)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return quarantining(tmp_path)


def test_they_are_moved_with_the_commit_and_counted(bench: Bench) -> None:
    epoch(bench, at(1), 3)
    bench.tick()
    epoch(bench, at(2), 0)
    epoch(bench, at(3), 2)
    bench.tick(times=2)
    assert moved(bench) == [(0, 3), (2, 2)] and bench.run.bad_rows.total == 5
    [incident] = [row for row in bench.rows(IncidentRow) if row.type == "bad_rows"]
    assert "'in' has bad rows: 3 in epoch 0" in incident.what and incident.severity == "INFO"


def test_rows_left_earlier_move_even_if_the_source_now_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.query.start()
    epoch(bench, at(1), 4)
    bench.query.end()
    bench.run = bench.made()
    bench.run.restore(None)
    bench.started()
    bench.tick()
    assert moved(bench) == [(0, 4)]


def test_a_query_finishes_once_they_are_in_their_table(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real, problems = BadRowsTable.add, [StorageError("the store does not answer")]

    def fails_first(*given: Any) -> Any:
        if problems:
            raise problems.pop()
        return real(*given)

    monkeypatch.setattr(BadRowsTable, "add", fails_first)
    epoch(bench, at(1, ended=True), 3)
    bench.tick()
    assert bench.run.state is State.FINISHING and not bench.run.may_finish(bench.clock.now)
    assert [row.type for row in bench.rows(IncidentRow)] == ["storage"]
    bench.tick(5)
    assert moved(bench) == [(0, 3)] and bench.run.may_finish(bench.clock.now)


def test_an_error_that_would_recur_stops_the_query(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise StateError("the table is gone")

    monkeypatch.setattr(BadRowsTable, "add", lost)
    epoch(bench, at(1), 3)
    bench.tick()
    assert bench.state() is State.FAILED and "the table is gone" in str(bench.run.error)


def test_what_is_committed_while_the_job_ends_is_moved(bench: Bench) -> None:
    bench.run.request_stop()
    epoch(bench, at(1), 3)
    bench.run.ask_late()
    bench.run.observe_late()
    assert moved(bench) == [(0, 3)]


@pytest.mark.parametrize("good", [14, 15, None])
def test_a_share_is_judged_once_the_figures_are_there(tmp_path: Path, good: int | None) -> None:
    bench = quarantining(tmp_path, max_bad_share=0.25)
    epoch(bench, at(1), 5)
    bench.tick()
    assert bench.state() is State.RUNNING
    if good is not None:
        bench.run.report(Hint("progress", QUERY_ID, "run", 0, good, 1, 0, source_rows={"in": good, "other": 99}))
    bench.tick()
    failed = good == 14
    assert (bench.state() is State.FAILED) is failed
    if failed:
        assert "5 of 19 rows are bad: 26.32%, which is more than max_bad_share=0.25" in str(bench.run.error)
        assert default_table(bench.context.state) in str(bench.run.error)


def test_with_figures_missing_a_share_is_not_judged(tmp_path: Path) -> None:
    bench = quarantining(tmp_path, max_bad_share=0.25)
    for number in range(2):
        epoch(bench, at(1 + number), 5 * number)
    bench.run.report(Hint("progress", QUERY_ID, "run", 1, 1, 1, 0, source_rows={"in": 1}))
    bench.tick(times=2)
    assert bench.state() is State.RUNNING, "epoch 0 may have had any number of rows"


@pytest.mark.parametrize("sink", [False, True])
def test_a_number_is_judged_at_once_over_all_epochs(tmp_path: Path, sink: bool) -> None:
    bench = quarantining(tmp_path, sink=sink, max_bad_rows=5)
    run = partial(sink_epoch, given=100) if sink else epoch
    run(bench, at(1), 5)
    bench.tick()
    assert bench.state() is State.RUNNING
    run(bench, at(2), 1)
    bench.tick()
    assert bench.state() is State.FAILED and "6 rows are bad" in str(bench.run.error)


def test_a_query_without_bad_rows_looks_once_for_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path).started()
    looks: list[str] = []
    monkeypatch.setattr("spark_ext.bad_rows.settle.Settler.waiting", lambda self, uid: looks.append(uid))
    for number in range(3):
        bench.commits(at(number))
    assert looks == ["in"] and not is_source("fake")


def sink_epoch(bench: Bench, end: SourceOffset, bad: int, given: int) -> None:
    """Plan the next epoch, and commit it in the target, with bad rows, and by Spark; `given` counts over all epochs."""
    number = bench.query.plan(end)
    state = bench.context.state
    rows = CommitRows(SinkPlace(state, default_table(state), "out", QUERY_ID, number, end.lineage, 1), [])
    rows.begin()
    for row in range(bad):
        rows.add(BadRow(row, "odd"))
    rows.decide(rows.keep(), bad, given)
    bench.query.commit_planned()


def test_those_of_a_sink_are_moved_with_the_commit_and_counted(tmp_path: Path) -> None:
    bench = quarantining(tmp_path, sink=True)
    sink_epoch(bench, at(1), 3, 10)
    bench.tick()
    sink_epoch(bench, at(2, ended=True), 0, 20)
    bench.tick(times=2)
    assert bench.run.may_finish(bench.clock.now)
    assert [(row.source, row.role, row.epoch, row.rows) for row in bench.rows(BadRowsRow)] == [("out", "sink", 0, 3)]
    [incident] = [row for row in bench.rows(IncidentRow) if row.type == "bad_rows"]
    assert incident.what == "sink 'out' has bad rows: 3 in epoch 0" and bench.run.bad_rows.total == 3


@pytest.mark.parametrize(("given", "failed"), [(19, True), (20, False)])
def test_the_share_of_a_sink_is_judged_by_what_its_commits_say(tmp_path: Path, given: int, failed: bool) -> None:
    bench = quarantining(tmp_path, sink=True, max_bad_share=0.25)
    sink_epoch(bench, at(1), 5, given)
    bench.tick(times=2)
    assert (bench.state() is State.FAILED) is failed
    if failed:
        assert "5 of 19 rows are bad: 26.32%" in str(bench.run.error) and "sink 'out'" in str(bench.run.error)
