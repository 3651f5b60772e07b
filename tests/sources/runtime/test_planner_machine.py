"""The planner under any order of epochs, crashes, flags, new rows and requests: every row once; each `seek` once."""

import shutil
import tempfile

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ext.control import stamps
from spark_ext.model.barriers import Checkpoints
from spark_ext.sources.runtime.planner import Planner
from tests.sources.memory import FakeLedger, Log, Store, all_rows, memory, registration, rows_of, run_to_end

names = st.sampled_from([f"c{number}" for number in range(8)])
limits = st.one_of(st.none(), st.integers(1, 7))


class PlannerMachine(RuleBasedStateMachine):
    @initialize(
        rows=st.dictionaries(names, st.integers(0, 12), max_size=6),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()), step=limits, limit=limits,
        readers=st.one_of(st.none(), st.integers(1, 4)),
    )  # fmt: skip
    def world(
        self, rows: dict[str, int], flags: tuple[bool, ...], step: int | None, limit: int | None, readers: int | None
    ) -> None:
        self.bounded, ends, counted = flags
        self.store = Store(dict(rows), ends=self.bounded or ends, counted=counted, step=step)
        self.limit, self.readers = limit, readers
        self.ledger, self.log = FakeLedger(), Log()
        self.now, self.committed = 1000.0, 0
        self.seen: dict[int, object] = {}
        self.start_planner()

    def start_planner(self) -> None:
        options = {"max_rows_per_epoch": self.limit, "readers": self.readers, "discovery_interval": 1000}
        source = memory(self.store, bounded=self.bounded, **options)
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


ROWS = 40
channels = st.sampled_from(["a", "b", "nowhere"])


class SeekMachine(RuleBasedStateMachine):
    @initialize(limit=st.integers(1, 9), bounded=st.booleans())
    def world(self, limit: int, bounded: bool) -> None:
        self.place = tempfile.mkdtemp()
        self.store = Store({"a": ROWS, "b": ROWS}, ends=bounded)
        self.limit, self.bounded = limit, bounded
        self.ledger, self.log, self.barriers = FakeLedger(), Log(), 0
        self.crash()

    @rule()
    def crash(self) -> None:
        """What is in the log is replayed as it was; a new planner continues after it."""
        source = memory(self.store, bounded=self.bounded, max_rows_per_epoch=self.limit)
        self.planner = Planner(source, registration(checkpoint=self.place), self.ledger, clock=lambda: 1.0)

    @rule()
    def plan(self) -> None:
        self.log.plan(self.planner)

    @rule()
    def plan_in_vain(self) -> None:
        """The driver dies after the stamp was written, and before the offset was logged."""
        self.planner.next(self.log.offsets[-1])
        self.crash()

    @rule(name=channels, position=st.integers(-2, ROWS + 2))
    def seek(self, name: str, position: int) -> None:
        self.ledger.accept("seek", f"source:s/{name}", {"position": position, "yes": True})

    @rule(kind=st.sampled_from(["pause", "resume"]), whom=st.sampled_from(["job", "source:s/a"]))
    def pause(self, kind: str, whom: str) -> None:
        self.ledger.accept(kind, whom)

    @rule()
    def barrier(self) -> None:
        self.barriers += 1
        self.ledger.known, self.ledger.own = Checkpoints(self.barriers, frozenset({self.barriers})), self.barriers

    @invariant()
    def each_channel_is_read_on_where_it_was_or_was_sent_to(self) -> None:
        if not hasattr(self, "log"):
            return
        at: dict[str, int] = {}
        jumps = self.jumps()
        for number, start in enumerate(self.log.offsets[:-1]):
            end = self.log.offsets[number + 1]
            read = {piece.channel: piece for piece in self.log.epoch(number + 1)}
            for name in end.running.keys() | read.keys():
                sent = [to for where, to in jumps.get(end.stamp, []) if where == name]
                if sent and end.control > start.control:
                    assert name not in read
                    at[name] = sent[-1]
                elif name in read:
                    assert read[name].start == at.get(name, 0)
                    at[name] = read[name].end
                if name in end.running:
                    assert end.running[name].at == at.get(name, 0)

    def jumps(self) -> dict[str, list[tuple[str, int]]]:
        """What the stamps say of events that sent channels elsewhere."""
        found = {}
        self.answers: dict[str, int] = {}
        before = 0
        for offset in self.log.offsets:
            if offset.control > before:
                before = offset.control
                outcomes = stamps.read(self.place, offset.stamp).outcomes
                for event in outcomes:
                    self.answers[event] = self.answers.get(event, 0) + 1
                # Events are named by their sequence.
                given = [outcomes[event] for event in sorted(outcomes, key=lambda event: int(event[1:]))]
                results = [one["result"] for one in given if one["status"] == "applied"]
                found[offset.stamp] = [(one["channel"], one["to"]) for one in results]
        return found

    def teardown(self) -> None:
        """Each request has one answer, in one epoch."""
        if not hasattr(self, "log"):
            return
        self.ledger.accept("resume", "job")
        self.ledger.accept("resume", "source:s/a")
        for _ in range(500):
            if self.log.plan(self.planner) is None:
                break
        self.each_channel_is_read_on_where_it_was_or_was_sent_to()
        newest = self.log.offsets[-1]
        asked = [one for one in self.ledger.accepted if one.kind == "seek" and one.sequence <= newest.control]
        assert all(self.answers[one.event_id] == 1 for one in asked)
        if newest.ended:
            assert self.bounded
        else:
            assert newest.control == self.ledger.accepted[-1].sequence
            assert all(state.at == ROWS for state in newest.running.values())
        shutil.rmtree(self.place)


SeekMachine.TestCase.settings = settings(
    max_examples=3 * settings().max_examples // 5, stateful_step_count=20, deadline=None
)
TestSeek = SeekMachine.TestCase
