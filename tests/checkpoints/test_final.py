"""The final checkpoint's steps with a fake query and fake operators: their order, the wait, a crash between two."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_ext import failpoints
from spark_ext.checkpoints.final import Advance, FinalCheckpoint
from spark_ext.errors import FinalizationTimeout, StorageError
from spark_ext.ledger.schema import CheckpointRow, ControlEventRow, FinishedRow, IncidentRow
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.lifecycle import FinalStep, State
from spark_ext.model.offsets import SourceOffset
from spark_ext.queries.spec import OperatorSpec, QuerySpec
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import QUERY_ID, Bench

STEPS = [step.value for step in FinalStep]


class FakeOperators:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.waits_for: str | None = None
        self.problems: list[Exception] = []

    def end_of_input(self) -> None:
        self.calls.append("end_of_input")

    def not_finalized(self, query_id: str, epoch: int) -> str | None:
        assert query_id == QUERY_ID
        return self.waits_for

    def final_checkpoint(self, offsets: Any, query_id: str, epoch: int) -> None:
        self.calls.append(("final_checkpoint", query_id, epoch))

    def close(self) -> list[Exception]:
        self.calls.append("close")
        return self.problems


def ended(final: int = 0) -> SourceOffset:
    return SourceOffset("in", ended=True, final=final)


class Finishing(Bench):
    """A query with all its input committed, and its final checkpoint."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.started()
        self.commits(ended(), *self._flushed)
        assert self.run.state is State.FINISHING
        self.operators = FakeOperators()
        self.final = self.checkpoint()

    @property
    def _flushed(self) -> list[Any]:
        return [EndOffset(end.uid, marker=1, flushed=True).to_json() for end in self.spec.ends]

    def after(self, epoch: int, rows: int | None, changes: int) -> None:
        """What Spark says of the state after an epoch, which is a further one if it is not the first."""
        if epoch:
            self.query.commit(ended(final=epoch), *self._flushed)
        hint = Hint("progress", QUERY_ID, "run", epoch, state_rows=rows, state_changes=changes)
        self.tick()
        self.run.report(hint)
        self.finish()

    def asked(self) -> list[Any]:
        """The further epochs that were requested."""
        return [row.value for row in self.rows(ControlEventRow)]

    def checkpoint(self, **given: Any) -> FinalCheckpoint:
        operators: Any = self.operators
        return FinalCheckpoint(self.run, operators, self.context, 7, clock=self.clock, **given)

    def finish(self, final: FinalCheckpoint | None = None) -> None:
        """Take steps until one has to wait."""
        final, came = final or self.final, Advance.STEP
        while not final.done and came is Advance.STEP:
            self.tick()
            came = final.advance(self.run.position)
        if came is Advance.EPOCH:
            self.run.ensure_running()

    def steps(self) -> list[str]:
        return [row.status for row in self.rows(CheckpointRow)]


@pytest.fixture
def bench(tmp_path: Path) -> Finishing:
    return Finishing(tmp_path)


def test_steps_come_in_their_order_and_are_recorded(bench: Finishing) -> None:
    bench.finish()
    assert bench.final.done and bench.steps() == STEPS
    assert {(row.checkpoint_id, row.kind, row.epoch) for row in bench.rows(CheckpointRow)} == {(7, "final", 0)}
    assert bench.operators.calls == ["end_of_input", ("final_checkpoint", QUERY_ID, 0), "close"]
    assert not bench.query.running
    assert [(row.kind, row.source) for row in bench.rows(FinishedRow)] == [("source", "in"), ("query", "")]


def test_the_query_runs_until_the_fact_is_recorded(bench: Finishing) -> None:
    for _ in range(4):
        assert bench.query.running
        bench.final.advance(bench.run.position)
    assert bench.steps() == STEPS[:3]
    bench.final.advance(bench.run.position)
    assert not bench.query.running and bench.final.done


def test_an_unfinalized_operator_gets_one_epoch_at_a_time(bench: Finishing) -> None:
    bench.operators.waits_for = "sink 'out'"
    for _ in range(3):
        bench.finish()
    assert [(it.kind, it.target, it.value) for it in bench.rows(ControlEventRow)] == [("final_epoch", "source:in", 1)]
    bench.operators.waits_for = None
    bench.finish()
    assert not bench.steps(), "the requested epoch belongs to the final checkpoint"
    bench.query.commit(ended(final=1))
    bench.finish()
    assert bench.final.done and {row.epoch for row in bench.rows(CheckpointRow)} == {1}


def test_a_query_that_fails_while_awaited_is_started_again(bench: Finishing) -> None:
    bench.operators.waits_for = "source 'in'"
    bench.finish()
    bench.query.end(RuntimeError("lost"))
    bench.finish()
    assert bench.query.starts == 2 and bench.run.state is State.FINISHING


def marker(**options: str) -> dict[str, Any]:
    return {
        "ends": [OperatorSpec("in~end", "end_of_input", {"watches": "in", **options})],
        "finalization_timeout": "60 s",
    }


def test_epochs_are_added_while_timers_change_the_state(tmp_path: Path) -> None:
    bench = Finishing(tmp_path, **marker())
    bench.finish()
    assert not bench.asked() and not bench.operators.calls, "what the flush has done is not known yet"
    bench.after(0, rows=3, changes=2)
    bench.finish()
    assert bench.asked() == [1] and not bench.operators.calls
    bench.after(1, rows=3, changes=1)
    assert bench.asked() == [1, 2] and not bench.operators.calls
    bench.after(2, rows=3, changes=0)
    assert bench.final.done and bench.operators.calls[0] == "end_of_input"


def test_timers_fire_where_spark_does_not_count_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuerySpec, "has_timers", True)
    bench = Finishing(tmp_path, **marker())
    bench.after(0, rows=None, changes=2)
    assert bench.asked() == [1] and not bench.operators.calls
    bench.after(1, rows=None, changes=0)
    assert bench.final.done and bench.asked() == [1]


def test_without_state_no_epoch_is_added(tmp_path: Path) -> None:
    bench = Finishing(tmp_path, **marker())
    bench.after(0, rows=0, changes=9)
    assert bench.final.done and not bench.asked()


def test_a_later_epoch_says_what_is_left_too(tmp_path: Path) -> None:
    """With timers in processing time Spark runs epochs all the time, and what it says of them comes late."""
    bench = Finishing(tmp_path, **marker())
    bench.finish()
    bench.query.commit(ended(), *bench._flushed)
    bench.query.commit(ended(), *bench._flushed)
    bench.after(0, rows=1, changes=0)
    assert bench.final.done and not bench.asked()


def test_timers_in_processing_time_are_waited_for_on_request(tmp_path: Path) -> None:
    bench = Finishing(tmp_path, **marker(processing_timers="fire"))
    bench.after(0, rows=1, changes=0)
    assert not bench.asked(), "not at once"
    for epoch in (1, 2):
        bench.clock.now += 1.0
        bench.finish()
        bench.after(epoch, rows=1, changes=0)
        assert bench.asked() == [*range(1, epoch + 1)] and not bench.operators.calls
    bench.clock.now += 60.0
    bench.finish()
    assert bench.final.done, "what is left then is dropped"


def test_an_operator_that_is_never_finalized_fails_the_query(tmp_path: Path) -> None:
    bench = Finishing(tmp_path, finalization_timeout=1000)
    bench.operators.waits_for = "sink 'out'"
    bench.finish()
    bench.clock.now += 1.0
    bench.finish()
    bench.operators.waits_for, bench.clock.now = "sink 'out'", bench.clock.now + 0.1
    with pytest.raises(FinalizationTimeout, match="a requested epoch was not finalized within 1 s"):
        bench.finish()
    assert not bench.steps()


@pytest.mark.parametrize("passed", range(1, len(STEPS)))
def test_a_further_run_takes_the_steps_that_are_left(bench: Finishing, passed: int) -> None:
    bench.finish(bench.checkpoint(passed=frozenset(STEPS[:passed])))
    assert bench.steps() == STEPS[passed:]
    assert "end_of_input" not in bench.operators.calls


def test_flags_that_an_earlier_run_stored_are_not_stored_again(bench: Finishing) -> None:
    bench.run.finished_sources.add("source", "in")
    bench.finish(bench.checkpoint(passed=STEPS[:1]))
    assert [(row.kind, row.source) for row in bench.rows(FinishedRow)] == [("query", "")]


def test_a_step_that_fails_is_taken_again(bench: Finishing) -> None:
    bench.final.advance(bench.run.position)
    bench.writer.failures = [StorageError("the disk is full")]
    with pytest.raises(StorageError):
        bench.final.advance(bench.run.position)
    bench.finish()
    assert bench.steps() == STEPS and bench.operators.calls.count("end_of_input") == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_a_step_leaves_it_recorded(bench: Finishing, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, f"final.{step.lower()}=raise")
    with pytest.raises(OSError, match="fail point"):
        bench.finish()
    assert bench.steps() == STEPS[: STEPS.index(step) + 1]


def test_an_operator_that_fails_to_close_is_only_an_incident(bench: Finishing) -> None:
    bench.operators.problems = [ValueError("a socket")]
    bench.finish()
    assert bench.final.done
    assert [(row.type, row.what) for row in bench.rows(IncidentRow)] == [("close", "close: a socket")]
