"""Barriers of aligned checkpoints in what a planner plans: stamped at once, and waited for where sources meet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_ext.model.barriers import Checkpoints
from spark_ext.model.offsets import Position, Running, SourceOffset
from spark_ext.sources.aligned import AlignedSource, Together
from spark_ext.sources.contract import Channel, ChannelSource, Limit, SourceOptions
from spark_ext.sources.runtime.planner import Planner
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Store, memory, registration

PENDING = Checkpoints(newest=4, pending=frozenset({4}))


class Fed(AlignedSource, ChannelSource):
    """A source of two channels in which a step is one row of each; some steps carry a barrier."""

    def __init__(self, barriers: Mapping[int, int]) -> None:
        super().__init__({"uid": "fed"})
        self.barriers = barriers
        self.there = 10

    @classmethod
    def name(cls) -> str:
        return "fed"

    def schema(self) -> str:
        return "n bigint"

    def discover(self) -> list[Channel]:
        return [Channel("0"), Channel("1")]

    def advance_together(
        self, positions: Mapping[str, Position], limit: Limit, watermark: int | None
    ) -> Together | None:
        at = min(positions.values())
        if at >= self.there:
            return None
        return Together(dict.fromkeys(positions, at + 1), barrier=self.barriers.get(at + 1, 0))

    def read(self, channel: Channel, start: Position, end: Position) -> Any:
        raise NotImplementedError


assert Fed.options_type is SourceOptions


def fed(checkpoint: Path, ledger: FakeLedger, barriers: Mapping[int, int]) -> Planner:
    return Planner(Fed(barriers), registration(uid="fed", checkpoint=str(checkpoint)), ledger)


def test_a_root_stamps_it_with_its_next_rows_and_once() -> None:
    ledger = FakeLedger()
    planner = Planner(memory(Store({"a": 10}), max_rows_per_epoch=3), registration(), ledger)
    first = planner.next(SourceOffset("s"))
    assert first.barrier == 0
    ledger.known, ledger.own = PENDING, 4
    second = planner.next(first)
    assert second.barrier == 4 and second.running["a"].at == 6
    assert planner.next(second).barrier == 4
    ledger.known, ledger.own = Checkpoints(4), 0
    assert planner.next(second).barrier == 4, "it never decreases"


def test_a_root_without_rows_stamps_it_in_an_epoch_of_its_own() -> None:
    ledger = FakeLedger(known=PENDING, own=4)
    waiting = SourceOffset("s", running={"a": Running(10)})
    planner = Planner(memory(Store({"a": 10}, ends=False), bounded=False), registration(interval_ms=10_000_000), ledger)
    stamped = planner.next(waiting)
    assert stamped.barrier == 4 and stamped.running == waiting.running
    assert planner.next(stamped) is stamped


def test_a_source_that_has_ended_stamps_nothing() -> None:
    planner = Planner(memory(Store({"a": 2})), registration(), FakeLedger(known=PENDING, own=4))
    last = planner.next(SourceOffset("s"))
    assert last.ended and last.barrier == 0, "it has ended with this very epoch"
    assert planner.next(last) is last


def test_u8_a_fed_source_stays_until_the_others_met_it_or_ended(tmp_path: Path) -> None:
    planner = fed(tmp_path, FakeLedger(known=PENDING), {2: 4})
    first = planner.next(SourceOffset("fed"))
    met = planner.next(first)
    assert (met.barrier, met.running["0"].at) == (4, 2)
    other = SourceOffset("other", running={"a": Running(1)}, barrier=3)
    query = FakeQuery(tmp_path)
    query.plan(met, other)
    assert planner.next(met) is met
    query.plan(met, SourceOffset("other", barrier=4))
    assert planner.next(met).running["0"].at == 3
    query.plan(met, SourceOffset("other", ended=True))
    assert planner.next(met).running["0"].at == 3


def test_nobody_waits_for_a_checkpoint_that_was_aborted(tmp_path: Path) -> None:
    ledger = FakeLedger(known=PENDING)
    planner = fed(tmp_path, ledger, {1: 4})
    met = planner.next(SourceOffset("fed"))
    FakeQuery(tmp_path).plan(met, SourceOffset("other", running={"a": Running(1)}))
    assert planner.next(met) is met
    ledger.known = Checkpoints(4)
    assert planner.next(met).running["0"].at == 2


def test_a_look_at_the_ledger_may_be_older_than_the_barrier(tmp_path: Path) -> None:
    """A checkpoint is recorded before anybody stamps it: one that is not known yet is under way."""
    planner = fed(tmp_path, FakeLedger(known=Checkpoints(3)), {1: 4})
    met = planner.next(SourceOffset("fed"))
    FakeQuery(tmp_path).plan(met, SourceOffset("other", running={"a": Running(1)}))
    assert planner.next(met) is met
