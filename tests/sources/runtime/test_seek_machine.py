"""`seek` under any order of epochs, events, crashes and barriers: each event once, and nothing else is skipped."""

from __future__ import annotations

import shutil
import tempfile

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_ext.control import stamps
from spark_ext.model.barriers import Checkpoints
from spark_ext.sources.runtime.planner import Planner
from tests.sources.memory import FakeLedger, Log, Store, memory, registration

ROWS = 40
channels = st.sampled_from(["a", "b", "nowhere"])


class SeekMachine(RuleBasedStateMachine):
    """Spark, an operator, and a driver that dies."""

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
                sent = (
                    [to for where, to in jumps.get(end.stamp, []) if where == name]
                    if end.control > start.control
                    else []
                )
                if sent:
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
