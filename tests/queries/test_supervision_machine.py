"""Whatever happens to a supervised query, in whatever order: its states are legal, and failures are bounded."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ext.errors import DataError
from spark_ext.model.lifecycle import State, can_follow
from spark_ext.spark.backend.contract import OwnEnd
from tests.queries.fakes import TASK_LOST, Bench, position

PASSING = TASK_LOST
POISON = DataError("the file is truncated")


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens to a query, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.since_commit = 0
        self.stopped = False

    @initialize(natives=st.booleans(), available_now=st.booleans())
    def begin(self, natives: bool, available_now: bool) -> None:
        self.bench = Bench(
            Path(self.folder.name), natives=["rate"] if natives else [], available_now=available_now
        ).started()

    def teardown(self) -> None:
        self.folder.cleanup()

    def runs(self) -> bool:
        return self.bench.query.running

    @precondition(runs)
    @rule()
    def commit(self) -> None:
        self.bench.query.commit(position(at=len(self.bench.ledger.rows)))
        self.bench.tick()
        self.since_commit = 0

    @precondition(runs)
    @rule(failure=st.sampled_from([PASSING, POISON]))
    def fail(self, failure: Exception) -> None:
        self.bench.query.end(failure)
        finishing = self.bench.run.state is State.FINISHING
        self.bench.tick()
        self.since_commit += 1
        if failure is POISON and not self.stopped and not finishing:
            assert self.bench.run.state is State.FAILED

    @precondition(runs)
    @rule(own=st.sampled_from([None, OwnEnd(True, False), OwnEnd(False, True), OwnEnd(False, False)]))
    def end(self, own: OwnEnd | None) -> None:
        self.bench.query.end(own=own)
        self.bench.tick()

    @rule()
    def stop(self) -> None:
        self.stopped = True
        if not self.bench.run.state.ended:
            self.bench.run.request_stop()
        self.bench.tick()

    @rule()
    def drain(self) -> None:
        self.bench.run.request_drain()
        self.bench.tick()

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.bench.tick(seconds)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "bench"):
            return
        run, query = self.bench.run, self.bench.query
        for before, after in pairwise([State.CREATED, *map(State, self.bench.states())]):
            assert can_follow(before, after)
        assert query.running == (run.state is State.RUNNING), "an end is dealt with at the next look"
        assert self.since_commit <= 4 and query.starts >= 1
        assert run.state is not State.RESTARTING or not self.stopped
        assert (run.error is not None) == (run.state is State.FAILED)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=2 * settings().max_examples // 5, stateful_step_count=20, deadline=None)
