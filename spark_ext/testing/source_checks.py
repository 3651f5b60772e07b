"""The rules of a source's contract, as checks around what the planner calls and of what is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from spark_ext.model.offsets import Position, Range, SourceOffset
from spark_ext.sources.aligned import Together
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit


class ContractViolation(AssertionError):
    """The source has broken a rule of its contract."""


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
                raise ContractViolation(f"channel '{channel.id}' took {step.rows} rows under a limit of {limit.rows}")
            steps[channel.id] = step
            return step

        def advance_together(self, positions: Mapping[str, Position], limit: Limit) -> Together | None:
            """Must move exactly the channels that it is given, all of them, and have no side effects."""
            step: Together | None = super().advance_together(positions, limit)
            if step is None:
                return None
            if step.ends.keys() != positions.keys():
                raise ContractViolation(f"channels {sorted(positions)} were to advance, and {sorted(step.ends)} did")
            if step.ends == positions and not step.finished:
                raise ContractViolation(f"an epoch moves no channel: {positions}")
            if step != super().advance_together(positions, limit):
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
