"""The planner under any order of epochs, crashes, flags, new rows and requests: every row once, in order."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ext.sources.runtime.planner import Planner
from tests.sources.memory import FakeLedger, Log, Store, all_rows, memory, registration, rows_of, run_to_end

names = st.sampled_from([f"c{number}" for number in range(8)])
limits = st.one_of(st.none(), st.integers(1, 7))


class PlannerMachine(RuleBasedStateMachine):
    """Spark, the job and the world around one source."""

    @initialize(
        rows=st.dictionaries(names, st.integers(0, 12), max_size=6),
        bounded=st.booleans(),
        ends=st.booleans(),
        counted=st.booleans(),
        step=limits,
        limit=limits,
        readers=st.one_of(st.none(), st.integers(1, 4)),
    )
    def world(
        self,
        rows: dict[str, int],
        bounded: bool,
        ends: bool,
        counted: bool,
        step: int | None,
        limit: int | None,
        readers: int | None,
    ) -> None:
        self.bounded = bounded
        self.store = Store(dict(rows), ends=bounded or ends, counted=counted, step=step)
        self.limit, self.readers = limit, readers
        self.ledger = FakeLedger()
        self.log = Log()
        self.now = 1000.0
        self.committed = 0
        self.seen: dict[int, object] = {}
        self.lineage = 0
        self.start_planner()

    def start_planner(self) -> None:
        source = memory(
            self.store,
            bounded=self.bounded,
            max_rows_per_epoch=self.limit,
            readers=self.readers,
            discovery_interval=1000,
        )
        self.planner = Planner(source, registration(), self.ledger, clock=lambda: self.now)

    @rule()
    def plan(self) -> None:
        read = self.log.plan(self.planner)
        if read is None:
            return
        self.seen[len(self.log.offsets) - 1] = read
        if self.limit is not None and self.store.counted:
            assert sum(piece.end - piece.start for piece in read) <= self.limit

    @rule()
    def plan_in_vain(self) -> None:
        """An epoch that is planned and never logged: nothing may be lost with it."""
        self.planner.next(self.log.offsets[-1])

    @rule()
    def commit(self) -> None:
        self.committed = len(self.log.offsets) - 1

    @precondition(lambda self: self.committed > 0)
    @rule(data=st.data())
    def write_flags(self, data: st.DataObject) -> None:
        """The coordinator writes flags of committed epochs, all or some, soon or late."""
        by_sequence = {
            finish.sequence: finish.channel
            for offset in self.log.offsets[: self.committed + 1]
            for finish in offset.finished
        }
        upto = data.draw(st.integers(len(self.ledger.flags), max(by_sequence, default=0)), "flags up to")
        self.ledger.flags += [by_sequence[number] for number in range(len(self.ledger.flags) + 1, upto + 1)]

    @rule()
    def crash(self) -> None:
        """The driver dies. What is in the log is replayed as it was; a new planner continues after it."""
        self.start_planner()

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: not self.bounded)
    @rule(name=names, rows=st.integers(0, 9))
    def new_channel(self, name: str, rows: int) -> None:
        self.store.rows.setdefault(name, rows)

    @precondition(lambda self: not self.store.ends)
    @rule(name=names, rows=st.integers(1, 9))
    def new_rows(self, name: str, rows: int) -> None:
        if name in self.store.rows:
            self.store.rows[name] += rows

    @invariant()
    def a_replay_reads_the_same(self) -> None:
        for number, read in self.seen.items():
            assert self.log.epoch(number) == read

    @invariant()
    def no_row_twice_and_none_out_of_order(self) -> None:
        for name, rows in rows_of(self.log.read()).items():
            assert rows == list(range(len(rows))), name

    @invariant()
    def finishes_are_numbered_without_gaps(self) -> None:
        newest = self.log.offsets[-1]
        numbers = {finish.sequence for offset in self.log.offsets for finish in offset.finished}
        assert numbers == set(range(1, newest.sequence + 1))
        assert [finish.sequence for finish in newest.finished] == list(range(newest.confirmed + 1, newest.sequence + 1))

    @invariant()
    def a_bounded_source_keeps_to_its_readers(self) -> None:
        if self.readers is not None and self.store.ends and self.bounded:
            assert len(self.log.offsets[-1].running) <= self.readers

    def teardown(self) -> None:
        """In the end everything has been read, and an offset is as large as what is running."""
        if not hasattr(self, "log"):
            return
        self.now += 10
        run_to_end(self.log, self.planner)
        assert rows_of(self.log.read()) == all_rows(self.store.rows)
        newest = self.log.offsets[-1]
        assert newest.ended == self.bounded
        by_sequence = {finish.sequence: finish.channel for offset in self.log.offsets for finish in offset.finished}
        self.ledger.flags = [by_sequence[number] for number in range(1, newest.sequence + 1)]
        if self.store.ends:
            assert sorted(self.ledger.flags) == sorted(self.store.rows)
        # A run of its own, with nothing to do, reads nothing.
        self.start_planner()
        before = self.store.advances
        assert self.log.plan(self.planner) is None
        assert self.store.advances - before <= len(newest.running)


PlannerMachine.TestCase.settings = settings(
    max_examples=3 * settings().max_examples // 4, stateful_step_count=30, deadline=None
)
TestPlanner = PlannerMachine.TestCase
