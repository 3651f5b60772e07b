"""Tests a source against its contract, without Spark: plans and reads it under random limits, crashes and restarts.

    def test_my_source(tmp_path):
        trace = drive(MySource, {"uid": "a", "path": str(tmp_path)}, rng=random.Random(7))
        assert trace.rows("x.csv").to_pylist() == [...]

The planner is the real one. Offsets are converted to JSON and back at each epoch, as by Spark's log. The source is
pickled before it is read, as on its way to an executor. `drive` raises `ContractViolation` if the source breaks a rule
of `spark_ext.sources.contract`; the test itself has to know the correct rows.
"""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext.model.barriers import NO_BARRIER, Checkpoints
from spark_ext.model.control import Event
from spark_ext.model.offsets import Json, Position, Range, Running, SourceOffset, ranges
from spark_ext.schemas.ddl import columns
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Committed
from spark_ext.sources.runtime.planner import Planner
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask
from spark_ext.testing.source_checks import ContractViolation as ContractViolation
from spark_ext.testing.source_checks import Zoned, check_cuts, check_same, check_together, watched
from spark_ext.worker_internals import pickled, unpickled


@dataclass
class Trace:
    """The rows that a source returned, and in what order."""

    batches: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    """By channel, ordered by epoch and, within an epoch, by range."""
    bad_rows: dict[str, list[BadRow]] = field(default_factory=dict)
    """With `on_bad_row=quarantine`: the bad rows by channel, in the order of `batches`."""
    finished: list[str] = field(default_factory=list)
    """Channels in the order in which they finished."""
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    epochs: int = 0
    restarts: int = 0
    ended: bool = False

    def rows(self, channel: str) -> pa.Table:
        """All rows of a channel, in order."""
        return pa.Table.from_batches(self.batches.get(channel, []), schema=self.schema)

    def all_rows(self) -> pa.Table:
        """The rows of all channels, channel by channel, in the order in which the channels finished."""
        names = [*self.finished, *sorted(self.batches.keys() - set(self.finished))]
        return pa.concat_tables([self.rows(name) for name in names] or [self.schema.empty_table()])


class LaggingLedger:
    """A ledger that confirms finishes some epochs late, as the real one does."""

    def __init__(self) -> None:
        self._flags: list[str] = []
        self._confirmed = 0

    def store(self, offset: SourceOffset, upto: int) -> None:
        """Store the flags in the offset, and confirm those with a sequence of at most `upto`."""
        for finish in offset.finished:
            if finish.sequence == len(self._flags) + 1:
                self._flags.append(finish.channel)
        self._confirmed = max(self._confirmed, min(upto, len(self._flags)))

    def confirmed(self) -> int:
        """Sequence of the last finish in the ledger."""
        return self._confirmed

    def finished_channels(self, upto: int) -> Iterable[str]:
        """Ids of the channels that finished up to a sequence."""
        return self._flags[:upto]

    def events(self, after: int) -> Sequence[Event]:
        """No events: none are accepted in a run."""
        return ()

    def refresh_events(self) -> None:
        """There is nothing to look at."""

    def barriers(self) -> tuple[Checkpoints, int]:
        """No checkpoints: none are taken in a run."""
        return Checkpoints(), NO_BARRIER


class SourceRun:
    """Runs a source as a query does, one epoch at a time: plan, log, read.

    Args:
        kind: creates a source from options; usually its class.
        options: options of the source, `uid` included.
        schema: the schema that a user would pass to `.schema(...)`; None: the source's own.
        rng: decides on splits, repeated reads and, if they are not given, limits.
        limits: sets of options such as `{"max_rows_per_epoch": "7"}`; each planner process gets one of them. The
            default chooses row limits, byte limits and numbers of readers at random.
        lag: number of finishes by which the ledger lags; the offset keeps them that long. None: 0 to 3, at random.
        available_now: whether the planners plan only what is available when they start.
    """

    def __init__(
        self,
        kind: Callable[[Mapping[str, str]], ChannelSource],
        options: Mapping[str, str],
        *,
        schema: StructType | None = None,
        rng: random.Random | None = None,
        limits: Sequence[Mapping[str, str]] = (),
        lag: int | None = None,
        available_now: bool = False,
    ) -> None:
        self._kind, self._options, self._schema = kind, dict(options), schema
        self._rng = rng or random.Random(0)
        self._limits, self._lag, self._available_now = limits, lag, available_now
        self._ledger = LaggingLedger()
        self.trace = Trace()
        self.planning = self._start(None)
        self.offset = SourceOffset(self.planning.source.options.uid)
        self.before = self.offset
        """The offset at which the last epoch began."""
        self.trace.schema = self.planning.arrow

    @property
    def source(self) -> ChannelSource:
        """The source in the current planner process."""
        return self.planning.source

    def restart(self, limits: Mapping[str, str] | None = None) -> None:
        """Start a new planner process, with other limits."""
        self.trace.restarts += 1
        # A process that ends releases what it held, such as the connection of a snapshot.
        held = weakref.ref(self.planning.source)
        del self.planning
        if held() is not None:
            gc.collect()
        self.planning = self._start(limits)

    def _start(self, limits: Mapping[str, str] | None) -> _Planning:
        if limits is None:
            limits = self._rng.choice(self._limits) if self._limits else _random_limits(self._rng)
        planning = _Planning(self._kind, {**self._options, **limits}, self._schema, self._ledger)
        if self._available_now:
            planning.planner.prepare_available_now()
        return planning

    def epoch(self, repeat: float = 0.0) -> bool:
        """Plan the next epoch, log it and read it; returns False if the source has nothing to plan.

        Args:
            repeat: probability of a second read of a range, which must give the same rows.

        Raises:
            ContractViolation: the message names the broken rule, with channel and positions.
        """
        planned = self.planning.planner.next(self.offset)
        if planned is self.offset:
            if self.source.bounded and not self.offset.ended:
                raise ContractViolation(f"a bounded source makes no progress at {self.offset.to_json()}")
            return False
        end = SourceOffset.from_json(json.loads(json.dumps(planned.to_json())))
        if end.to_json() != planned.to_json():
            raise ContractViolation(f"JSON does not preserve a position or data: {planned.to_json()}")
        if self.trace.epochs:
            # Spark reports an epoch as committed once the next one has been planned.
            self.source.on_epoch_committed(Committed.of(self.offset, final=False))
        self.before, self.offset = self.offset, end
        rows = _read_epoch(self.planning, self.before, end, self.trace, self._rng, repeat)
        if isinstance(self.source, AlignedSource):
            check_together(self.source, self.before, end, rows)
        known = {finish.channel for finish in self.before.finished}
        self.trace.finished += [finish.channel for finish in end.finished if finish.channel not in known]
        self._ledger.store(end, end.sequence - (self._rng.randint(0, 3) if self._lag is None else self._lag))
        self.trace.epochs += 1
        self.trace.ended = end.ended
        return True

    def seek(self, channel: str, position: Json) -> Position:
        """Send a channel that is running to another position, as the control event `seek` does.

        It is an epoch of its own, without rows; the next one begins at the new position.

        Args:
            channel: its id.
            position: as an operator gives it.

        Returns:
            The position in the source's own form.

        Raises:
            ConfigurationError: the source refuses the position.
        """
        state = self.offset.running[channel]
        to = self.source.seek(Channel(channel, None, state.data), state.at, position)
        if json.loads(json.dumps(to)) != to:
            raise ContractViolation(f"JSON does not preserve a position: {to!r}")
        running = {**self.offset.running, channel: Running(to, state.data, jumped=True)}
        self.before, self.offset = self.offset, replace(self.offset, running=running)
        self.trace.epochs += 1
        return to

    def plan_and_discard(self) -> None:
        """Plan without making an epoch, as when the driver dies before the plan is logged."""
        self.planning.planner.next(self.offset)

    def replay(self, limits: Mapping[str, str] | None = None) -> None:
        """Crash before Spark's commit: a new process reads the last epoch again and must find the same rows.

        Raises:
            ContractViolation: it found different rows.
        """
        self.restart(limits)
        again = Trace(schema=self.trace.schema)
        # The positions come from the log: nothing is planned before the ranges are read.
        _read_epoch(self.planning, self.before, self.offset, again, self._rng, 0.0)
        for name, batches in again.batches.items():
            rows = sum(batch.num_rows for batch in batches)
            before = self.trace.rows(name)
            check_same(before.slice(before.num_rows - rows), again.rows(name), f"replay of channel '{name}'")
        for name, found in again.bad_rows.items():
            if self.trace.bad_rows.get(name, [])[-len(found) :] != found:
                raise ContractViolation(f"replay of channel '{name}' gave different bad rows")


def drive(
    kind: Callable[[Mapping[str, str]], ChannelSource],
    options: Mapping[str, str],
    *,
    schema: StructType | None = None,
    rng: random.Random | None = None,
    epochs: int = 10_000,
    crash: float = 0.2,
    limits: Sequence[Mapping[str, str]] = (),
    between: Callable[[int], None] = lambda epoch: None,
    lag: int | None = None,
    available_now: bool = False,
) -> Trace:
    """Run a source to its end, or for a number of epochs.

    Args:
        kind: creates a source from options; usually its class.
        options: options of the source, `uid` included.
        schema: the schema that a user would pass to `.schema(...)`; None: the source's own.
        rng: decides on crashes, replays and limits.
        epochs: maximum number of epochs; a bounded source that has not ended by then breaks its contract.
        crash: probability of a new planner process before an epoch, and of a replay of the epoch.
        limits: sets of options; each planner process gets one of them. See `SourceRun`.
        between: called with the epoch's number before each epoch, to change the external data.
        lag: number of finishes by which the ledger lags; None: 0 to 3, at random.
        available_now: whether the planners plan only what is available when they start.

    Raises:
        ContractViolation: the message names the broken rule, with channel and positions.
    """
    rng = rng or random.Random(0)
    run = SourceRun(kind, options, schema=schema, rng=rng, limits=limits, lag=lag, available_now=available_now)
    while run.trace.epochs < epochs and not run.offset.ended:
        between(run.trace.epochs)
        if rng.random() < crash:
            run.restart()
        if not run.epoch(repeat=crash):
            break
        if rng.random() < crash:
            run.replay()
    trace = run.trace
    if len(trace.finished) != len(set(trace.finished)):
        raise ContractViolation(f"a channel finished twice: {trace.finished}")
    if run.source.bounded and not trace.ended:
        raise ContractViolation(f"a bounded source has not ended after {trace.epochs} epochs")
    return trace


class _Planning:
    """A planner process: a new source with its own limits."""

    def __init__(
        self,
        kind: Callable[[Mapping[str, str]], ChannelSource],
        options: Mapping[str, str],
        schema: StructType | None,
        ledger: LaggingLedger,
    ) -> None:
        from spark_ext.schemas.arrow import arrow_schema

        self.source = kind(options)
        declared = schema or _struct(self.source.schema())
        self.arrow = arrow_schema(declared)
        self.shipped: bytes = pickled(ChannelReader(self.source, declared))
        self.steps: dict[str, Advance] = {}
        self.source.__class__ = watched(type(self.source), self.steps)
        self.planner = Planner(self.source, None, ledger)


def _struct(schema: StructType | str) -> StructType:
    return schema if isinstance(schema, StructType) else columns(schema)


def _random_limits(rng: random.Random) -> dict[str, str]:
    chosen = {"readers": str(rng.randint(1, 5))}
    if rng.random() < 0.5:
        chosen["max_rows_per_epoch"] = str(rng.choice([1, 2, 3, 10, 100, 5_000]))
    if rng.random() < 0.3:
        chosen["max_bytes_per_epoch"] = str(rng.choice([1, 50, 1_000, 100_000]))
    return chosen


def _read_epoch(
    planning: _Planning, start: SourceOffset, end: SourceOffset, trace: Trace, rng: random.Random, repeat: float
) -> int:
    """Read an epoch into the trace; returns its rows."""
    total = 0
    for piece in ranges(start, end):
        channel = Channel(piece.channel, None, piece.data)
        parts = rng.randint(1, 4)
        cuts: Sequence[tuple[Position, Position]] = [(piece.start, piece.end)]
        if parts > 1:
            cuts = planning.source.split(channel, piece.start, piece.end, parts)
            check_cuts(piece, cuts, parts)
        bad: list[BadRow] = []
        batches = [batch for cut in cuts for batch in _read(planning, channel, *cut, bad)]
        if rng.random() < repeat:
            bad_again: list[BadRow] = []
            again = _read(planning, channel, piece.start, piece.end, bad_again)
            what = f"second read of channel '{piece.channel}' [{piece.start}, {piece.end})"
            check_same(_table(batches, trace), _table(again, trace), what)
            # In parts a row may have another number.
            if len(bad) != len(bad_again) or (len(cuts) == 1 and bad != bad_again):
                raise ContractViolation(f"{what} gave different bad rows: {len(bad)}, then {len(bad_again)}")
        if bad:
            trace.bad_rows.setdefault(piece.channel, []).extend(bad)
        rows = sum(batch.num_rows for batch in batches)
        step = planning.steps.get(piece.channel)
        if step is not None and step.end == piece.end and step.rows is not None and step.rows < rows:
            raise ContractViolation(f"channel '{piece.channel}' announced {step.rows} rows and gave {rows}")
        trace.batches.setdefault(piece.channel, []).extend(batches)
        total += rows
    return total


def _read(
    planning: _Planning, channel: Channel, start: Position, end: Position, bad: list[BadRow]
) -> list[pa.RecordBatch]:
    reader = unpickled(planning.shipped)
    if planning.source.options.on_bad_row == "quarantine":
        reader._source._collect = bad.append
    reader._source = Zoned(reader._source, planning.arrow)
    return list(reader.read(ReadTask((Range(channel.id, channel.data, start, end),))))


def _table(batches: list[pa.RecordBatch], trace: Trace) -> pa.Table:
    return pa.Table.from_batches(batches, schema=trace.schema)
