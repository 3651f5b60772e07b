"""A source's offset: a snapshot of everything that determines an epoch, as versioned JSON.

Spark writes the offsets of an epoch to its log before the epoch runs, and hands the same ones back when the epoch is
replayed. Everything in the offset is therefore pre-committed: a replay sees the same channel positions, the same
control sequence, the same finishes. The size of an offset depends on what is *running*: a finished channel stays in it
only until the ledger holds its flag; from then on `confirmed` covers it ("all finishes up to this number are in the
ledger").

Pure: no clock, no file, no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

from spark_ext.errors import RESET, OffsetError

VERSION = 2
"""Version of the JSON form that is written, for every kind of offset.

* 1: the fields of the first form.
* 2: an offset of channels may carry a `stamp`, and channels that have `jumped`.
"""


class OffsetKind(str, Enum):
    """The kind of source that wrote an offset."""

    CHANNELS = "channels"  # a channel source: `SourceOffset`
    END_OF_INPUT = "end_of_input"  # the marker of a watermark: `spark_ext.model.end_of_input.EndOffset`


Json: TypeAlias = Any  # a value that JSON preserves: None, bool, int, float, str, or a list or dict of these
Position: TypeAlias = Json  # only the source knows its meaning (a row number, a byte, a log offset)


@dataclass(frozen=True, slots=True)
class Running:
    """A channel that has started and not yet finished."""

    at: Position  # the end of what has been planned so far
    data: Json = None  # what the source needs to read it again without discovering it again
    begin: Position = None
    """Where it started; only in the first offset with the channel, so that a replay does not resolve it again."""
    new: bool = False  # whether this is the first offset with the channel
    jumped: bool = False  # `at` is where a control event has sent it: this epoch reads nothing of it


@dataclass(frozen=True, slots=True)
class Finished:
    """A channel that has finished, and whose flag may not be in the ledger yet."""

    sequence: int  # number of the finish within its source, from 1, without gaps
    channel: str
    at: Position
    data: Json = None
    begin: Position = None
    new: bool = False  # whether it also started in this offset


@dataclass(frozen=True, slots=True)
class Range:
    """What one epoch reads of one channel: [start, end)."""

    channel: str
    data: Json
    start: Position
    end: Position


@dataclass(frozen=True)
class SourceOffset:
    """The state of a source at an epoch boundary."""

    uid: str
    lineage: int = 0  # the lineage in which it was planned; 0 outside a job
    running: Mapping[str, Running] = field(default_factory=dict)
    finished: tuple[Finished, ...] = ()
    confirmed: int = 0  # all finishes up to this sequence are in the ledger; besides `finished`, only their flags count
    sequence: int = 0  # the last finish sequence assigned
    ended: bool = False  # no more rows ever: all channels of a bounded source have finished, or it was drained
    drained: bool = False  # it ended because the job was drained, not because its input ended
    control: int = 0  # the highest control sequence in force
    stamp: str = ""  # stamp that says what is in force (see `model.configuration`); "" before the first event
    final: int = 0  # number of empty epochs added for operators that were not finalized at the end of input
    stage: Json = None  # of several: number of the current stage, from 0, and what it must remember
    barrier: int = 0  # newest aligned checkpoint whose barrier it carries: what is read up to here belongs to it
    watermark: int = 0  # that of the query which has written what is read up to here, ms since 1970 UTC; 0: none

    @property
    def of_a_job(self) -> bool:
        """Whether a job has planned it: it relies on what is in this job's ledger."""
        return bool(self.lineage or self.confirmed or self.control)

    def to_json(self) -> dict[str, Json]:
        """The JSON form; fields at their defaults are left out."""
        out: dict[str, Json] = {
            "version": VERSION,
            "kind": OffsetKind.CHANNELS.value,
            "uid": self.uid,
            "lineage": self.lineage,
        }
        if self.running:
            out["running"] = {name: _running_json(state) for name, state in self.running.items()}
        if self.finished:
            out["finished"] = [_finished_json(finish) for finish in self.finished]
        for name in ("confirmed", "sequence", "control", "final", "barrier", "watermark"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        for name in ("ended", "drained"):
            if getattr(self, name):
                out[name] = True
        if self.stamp:
            out["stamp"] = self.stamp
        if self.stage is not None:
            out["stage"] = self.stage
        return out

    @classmethod
    def from_json(cls, raw: Mapping[str, Json], uid: str | None = None) -> SourceOffset:
        """Read an offset of this version or the former one."""
        check(raw, OffsetKind.CHANNELS, uid, f"source '{raw.get('uid') if uid is None else uid}'")
        return cls(
            uid=raw["uid"],
            lineage=raw.get("lineage", 0),
            running={name: _running(state) for name, state in raw.get("running", {}).items()},
            finished=tuple(_finished(item) for item in raw.get("finished", ())),
            confirmed=raw.get("confirmed", 0),
            sequence=raw.get("sequence", 0),
            ended=raw.get("ended", False),
            drained=raw.get("drained", False),
            control=raw.get("control", 0),
            stamp=raw.get("stamp", ""),
            final=raw.get("final", 0),
            stage=raw.get("stage"),
            barrier=raw.get("barrier", 0),
            watermark=raw.get("watermark", 0),
        )

    def confirm(self, sequence: int) -> SourceOffset:
        """Drop the finishes that are known to be in the ledger: all up to `sequence`."""
        upto = min(sequence, self.sequence)
        if upto <= self.confirmed:
            return self
        return replace(
            self, confirmed=upto, finished=tuple(finish for finish in self.finished if finish.sequence > upto)
        )


def kind_of(raw: Json) -> OffsetKind | None:
    """The kind of offset in a line of Spark's offset log; None for an offset of one of Spark's own sources."""
    if not isinstance(raw, dict) or not {"version", "uid"} <= raw.keys():
        return None
    return next((kind for kind in OffsetKind if kind.value == raw.get("kind")), None)


def check(raw: Mapping[str, Json], kind: OffsetKind, uid: str | None, who: str) -> None:
    """Raise an error if an offset is not of this source (uid None: of any), or this release cannot read its version."""
    version = raw.get("version")
    if version not in range(1, VERSION + 1):
        raise OffsetError(
            f"offset version {version!r} is not known; this release reads versions 1 to {VERSION}",
            operator=who,
            kept="the checkpoint and all output are unchanged; nothing was read",
            do="run the release of spark-ext that wrote this checkpoint, or a newer one",
        )
    if kind_of(raw) is not kind or (uid is not None and raw["uid"] != uid):
        raise OffsetError(
            f"the checkpoint holds an offset of source '{raw.get('uid')}' in the place of this one",
            operator=who,
            kept="the checkpoint and all output are unchanged; nothing was read",
            do="keep a query's sources and watermarks in the order of their first start, each under its own uid",
        )


def ranges(start: SourceOffset, end: SourceOffset) -> tuple[Range, ...]:
    """What the epoch from `start` to `end` reads; the same for each replay."""
    done = {finish.channel for finish in start.finished}
    out: list[Range] = []
    left = set(start.running)
    states: list[tuple[str, Running | Finished]] = [*end.running.items()]
    states += [(finish.channel, finish) for finish in end.finished if finish.channel not in done]
    for name, state in states:
        before = start.running.get(name)
        left.discard(name)
        if before is None and not state.new:
            raise _torn(f"channel '{name}' is in the end of the epoch but neither in its start nor new", end.uid)
        begin = state.begin if before is None else before.at
        if begin != state.at and not (isinstance(state, Running) and state.jumped):
            out.append(Range(name, state.data, begin, state.at))
    if left:
        raise _torn(f"channels {sorted(left)[:3]} are in the start of the epoch but not in its end", end.uid)
    return tuple(out)


def _torn(what: str, uid: str) -> OffsetError:
    return OffsetError(
        what,
        operator=f"source '{uid}'",
        kept="nothing of this epoch was read",
        do=f"restore the checkpoint directory as it was, or discard the history with {RESET}",
    )


def _running_json(state: Running) -> Json:
    out = {"at": state.at}
    if state.data is not None:
        out["data"] = state.data
    if state.new:
        out["begin"] = state.begin
    if state.jumped:
        out["jumped"] = True
    return out


def _running(raw: Mapping[str, Json]) -> Running:
    return Running(raw["at"], raw.get("data"), raw.get("begin"), "begin" in raw, raw.get("jumped", False))


def _finished_json(finish: Finished) -> Json:
    out = {"sequence": finish.sequence, "channel": finish.channel, "at": finish.at}
    if finish.data is not None:
        out["data"] = finish.data
    if finish.new:
        out["begin"] = finish.begin
    return out


def _finished(raw: Mapping[str, Json]) -> Finished:
    return Finished(raw["sequence"], raw["channel"], raw["at"], raw.get("data"), raw.get("begin"), "begin" in raw)


@dataclass(frozen=True)
class LoggedOffsets:
    """The content of one `offsets/N`."""

    epoch: int
    metadata: dict[str, Any]  # Spark's header: `batchWatermarkMs`, `batchTimestampMs` (ms, UTC) and `conf`
    sources: tuple[Any, ...]  # one parsed offset per source, in plan order; None for a source that had none yet
