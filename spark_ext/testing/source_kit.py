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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext.model.barriers import NO_BARRIER, Checkpoints
from spark_ext.model.control import Event
from spark_ext.model.offsets import Json, Position, Range, Running, SourceOffset, ranges
from spark_ext.schemas.ddl import columns
from spark_ext.sources.aligned import AlignedSource, Together
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Committed, Limit
from spark_ext.sources.runtime.batch import BatchReader
from spark_ext.sources.runtime.planner import Planner
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask
from spark_ext.worker_internals import pickled, to_arrow_schema, unpickled


class ContractViolation(AssertionError):
    """The source has broken a rule of its contract."""


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

    def finished_data(self, upto: int) -> Mapping[str, Json]:
        """Nothing: no run is told of input that has changed."""
        return {}

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


def read_batch(source: ChannelSource, schema: StructType | None = None) -> Trace:
    """The rows of a batch read, as `spark.read` plans and reads it: reader and partitions travel to other processes.

    Args:
        source: a new one, without read limits.
        schema: the schema that a user would pass to `.schema(...)`; None: the source's own.

    Raises:
        ContractViolation: the source was acknowledged, or told that it has ended: a batch read leaves no trace.
    """
    declared = schema or _struct(source.schema())
    reader = BatchReader(source, declared)
    shipped = pickled(reader)
    source.__class__ = _never_told(type(source))
    trace = Trace(schema=to_arrow_schema(declared))
    for task in reader.partitions():
        for batch in unpickled(shipped).read(unpickled(pickled(task))):
            if batch.schema != trace.schema:
                raise ContractViolation(f"a batch has other columns than the frame: {batch.schema}")
            trace.batches.setdefault("", []).append(batch)
    return trace


def _never_told(kind: type[ChannelSource]) -> type[ChannelSource]:
    def told(self: ChannelSource, *given: object) -> None:
        raise ContractViolation("a batch read has called a hook of the source")

    hooks = ("open", "on_epoch_committed", "end_of_input", "close", "is_finalized", "drained")
    return type(kind.__name__, (kind,), dict.fromkeys(hooks, told))


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


# -- the rules, as checks around what the planner calls and of what is read --------------------------------------------


def watched(kind: type[ChannelSource], steps: dict[str, Advance]) -> type[ChannelSource]:
    """The class of a source with checks around what the planner calls; the planner goes by its other properties."""

    class Watched(kind):  # type: ignore[misc, valid-type]
        def discover(self) -> list[Channel]:
            """Ids must be unique."""
            channels = list(super().discover())
            if len({channel.id for channel in channels}) != len(channels):
                raise ContractViolation("discover returned two channels with the same id")
            return channels

        def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
            """Must have no side effects, and stay within its limits."""
            step: Advance = super().advance(channel, start, limit)
            if limit.rows is not None and step.rows is not None and step.rows > limit.rows and not step.whole:
                raise ContractViolation(
                    f"channel '{channel.id}' took {step.rows} rows under a limit of {limit.rows}; "
                    "a step that cannot be divided, such as a page of an API, is Advance(..., whole=True)"
                )
            steps[channel.id] = step
            return step

        def advance_together(
            self, positions: Mapping[str, Position], limit: Limit, watermark: int | None
        ) -> Together | None:
            """Must move exactly the channels that it is given, all of them, and have no side effects."""
            step: Together | None = super().advance_together(positions, limit, watermark)
            if step is None:
                return None
            if step.ends.keys() != positions.keys():
                raise ContractViolation(f"channels {sorted(positions)} were to advance, and {sorted(step.ends)} did")
            if step.ends == positions and not step.finished:
                raise ContractViolation(f"an epoch moves no channel: {positions}")
            if step != super().advance_together(positions, limit, watermark):
                raise ContractViolation(f"a second plan from {positions} gave another epoch")
            return step

    return Watched


def check_together(source: ChannelSource, start: SourceOffset, end: SourceOffset, rows: int) -> None:
    """Channels that advance together are all in progress from the first epoch on, and end in one and the same."""
    every = {channel.id for channel in source.discover()}
    if end.running.keys() not in (every, set()):
        raise ContractViolation(f"of channels {sorted(every)} only {sorted(end.running)} are in progress")
    ended = {finish.channel for finish in end.finished if finish.sequence > start.sequence}
    if ended not in (every, set()) or bool(ended) is not end.ended:
        raise ContractViolation(f"of channels {sorted(every)} only {sorted(ended)} have ended")
    most = source.options.max_rows_per_epoch
    if most is not None and rows > most:
        raise ContractViolation(f"an epoch has {rows} rows under a limit of {most}")


def check_cuts(piece: Range, cuts: Sequence[tuple[Position, Position]], parts: int) -> None:
    """The parts of a range cover it, in order and without gaps, and are not more than were asked for."""
    ends = [piece.start, *(end for _, end in cuts)]
    starts = [*(start for start, _ in cuts), piece.end]
    if len(cuts) > parts or ends != starts:
        raise ContractViolation(
            f"split of channel '{piece.channel}' [{piece.start}, {piece.end}) in {parts} gave {list(cuts)}"
        )


class Zoned:
    """Wraps a source and checks that its times have a zone exactly where they are declared with one.

    At run time a time without a zone is taken for one in UTC, and a time in a zone becomes the wall clock of UTC: both
    give a value, and often another one than was meant.
    """

    def __init__(self, source: ChannelSource, declared: pa.Schema) -> None:
        self._source, self._declared = source, declared

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The source's batches."""
        for batch in self._source.read(channel, start, end):
            for column in self._declared:
                if column.name in batch.schema.names:
                    _check_zone(column.name, column.type, batch.schema.field(column.name).type)
            yield batch


def _check_zone(name: str, declared: pa.DataType, given: pa.DataType) -> None:
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(given):
        if (declared.tz is None) != (given.tz is None):
            shown = "timestamp_ntz" if declared.tz is None else "timestamp"
            raise ContractViolation(f"column '{name}' is declared as {shown}, and its batches have {given}")
    elif pa.types.is_nested(declared) and pa.types.is_nested(given) and declared.num_fields == given.num_fields:
        for index in range(declared.num_fields):
            one, other = declared.field(index), given.field(index)
            _check_zone(f"{name}.{one.name}", one.type, other.type)


def check_same(first: pa.Table, second: pa.Table, what: str) -> None:
    """The same rows in the same order, whenever they are read."""
    # Compared as Python values, because a NaN is not equal to itself.
    if not first.equals(second) and repr(first.to_pylist()) != repr(second.to_pylist()):
        raise ContractViolation(f"{what} gave different rows: {first.num_rows}, then {second.num_rows}")
