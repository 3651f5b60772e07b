"""A channel source over counters in memory, a ledger in memory, and Spark's part in planning, for tests."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from spark_ext.model.barriers import Checkpoints
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.model.offsets import Json, Position, Range, SourceOffset, ranges
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit
from spark_ext.sources.positions import number_in
from spark_ext.sources.runtime.planner import Planner
from spark_ext.spark.session.registry import Registration


@dataclass
class Store:
    """What is outside: per channel how many rows there are. It outlives planners, as a folder or a broker does."""

    rows: dict[str, int]
    ends: bool = True  # whether a channel's rows are all there; if not, more may come and no channel finishes
    counted: bool = True  # whether the source says how many rows it has taken
    step: int | None = None  # most rows that one `advance` takes, whatever the limit
    advances: int = 0  # calls of `advance` so far


class Memory(ChannelSource):
    """Channels `0..n` of a `Store`; a position is a row number."""

    store: Store
    always_bounded = True

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        return "channel string, n bigint"

    @property
    def bounded(self) -> bool:
        return self.always_bounded

    def discover(self) -> list[Channel]:
        return [Channel(name) for name in self.store.rows]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        self.store.advances += 1
        there = self.store.rows[channel.id]
        if limit.upto is not None:
            there = min(there, limit.upto)
        wanted = [size for size in (limit.rows, self.store.step) if size is not None]
        end = min([there, *(start + size for size in wanted)])
        finished = self.store.ends and end == self.store.rows[channel.id]
        return Advance(end, finished, end - start if self.store.counted else None)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        return number_in(position, 0, self.store.rows[channel.id], "the number of a row", "source 's'")

    def latest(self, channel: Channel) -> Position:
        return self.store.rows[channel.id]

    def read(self, channel: Channel, start: Position, end: Position) -> Iterable[pa.RecordBatch]:  # type: ignore[override]
        yield pa.RecordBatch.from_pydict({"channel": [channel.id] * (end - start), "n": range(start, end)})


def memory(store: Store, *, bounded: bool = True, **options: object) -> Memory:
    source = Memory({"uid": "s", **{name: str(value) for name, value in options.items() if value is not None}})
    source.store = store
    source.always_bounded = bounded
    return source


@dataclass
class FakeLedger:
    """Flags and control events, as a planner sees them."""

    flags: list[str] = field(default_factory=list)  # channel ids in the order of their finishes
    accepted: list[Event] = field(default_factory=list)
    known: Checkpoints = field(default_factory=Checkpoints)
    own: int = 0  # the checkpoint that the source stamps by itself

    def confirmed(self) -> int:
        return len(self.flags)

    def finished_data(self, upto: int) -> Mapping[str, Json]:
        return {}

    def finished_channels(self, upto: int) -> Iterable[str]:
        assert upto <= len(self.flags), "an offset honours a flag that the ledger does not have"
        return self.flags[:upto]

    def events(self, after: int) -> Sequence[Event]:
        return [event for event in self.accepted if event.sequence > after]

    def accept(
        self, kind: str, target: str = "source:s", value: Json = None, *, sequence: int | None = None,
        delivery: Delivery = Delivery.IMMEDIATE, lineage: int = 1, incarnation: int = 1, expires_ms: int | None = None,
    ) -> Event:  # fmt: skip
        number = sequence or (self.accepted[-1].sequence + 1 if self.accepted else 1)
        when = {"at_ms": 1_000, "expires_ms": expires_ms}
        of = Target.parse(target)
        event = Event(number, f"e{number}", kind, of, value, delivery, lineage, incarnation, **when)  # type: ignore[arg-type]
        self.accepted.append(event)
        return event

    def refresh_events(self) -> None:
        pass

    def barriers(self) -> tuple[Checkpoints, int]:
        return self.known, self.own


@cache
def _checkpoint() -> str:
    """A checkpoint directory for planners that write stamps, whose names are hashes of what they say."""
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def registration(**changes: object) -> Registration:
    given: dict[str, object] = {
        "uid": "s", "role": "source", "job": "j", "job_id": "0", "query": "q", "state": "/nowhere",
        "checkpoint": _checkpoint(), "incarnation": 1, "lineage": 0,
    }  # fmt: skip
    return Registration(**(given | changes))  # type: ignore[arg-type]


def through_json(offset: SourceOffset) -> SourceOffset:
    return SourceOffset.from_json(json.loads(json.dumps(offset.to_json())), offset.uid)


class Log:
    def __init__(self) -> None:
        self.offsets = [through_json(SourceOffset("s"))]

    def plan(self, planner: Planner) -> tuple[Range, ...] | None:
        """Plan an epoch as Spark does, and log it; None when nothing was planned."""
        start = self.offsets[-1]
        end = planner.next(start)
        if end is start:
            return None
        self.offsets.append(through_json(end))
        return self.epoch(len(self.offsets) - 1)

    def epoch(self, number: int) -> tuple[Range, ...]:
        """What an epoch (from 1) reads; as often as wanted."""
        return ranges(self.offsets[number - 1], self.offsets[number])

    def read(self) -> list[tuple[Range, ...]]:
        return [self.epoch(number) for number in range(1, len(self.offsets))]


def rows_of(epochs: Iterable[Iterable[Range]]) -> dict[str, list[int]]:
    """Row numbers per channel in the order in which the epochs read them."""
    out: dict[str, list[int]] = {}
    for epoch in epochs:
        for piece in epoch:
            out.setdefault(piece.channel, []).extend(range(piece.start, piece.end))
    return out


def all_rows(rows: Mapping[str, int]) -> dict[str, list[int]]:
    """What has to be read in all: each row of each channel once, in order."""
    return {name: list(range(count)) for name, count in rows.items() if count}


def run_to_end(log: Log, planner: Planner, *, most: int = 10_000) -> None:
    for _ in range(most):
        if log.plan(planner) is None:
            return
    raise AssertionError(f"planned {most} epochs without an end")
