"""`hybrid`: bounded sources one after another, the last perhaps unbounded, as one source without a gap or an overlap.

    spark.readStream.format("hybrid").options(**{
        "uid": "orders", "stages": "history,live",
        "history.format": "delta_snapshot", "history.path": "lake/orders", "history.seam": "partition:offset",
        "live.format": "kafka_range", "live.topic": "orders", ...}).load()

Each stage is a source with options of its own. When all channels of one have finished the next begins, and with the
option `seam` it begins right after the last row of the one before, at the cutover. The stage and the cutover are part
of the offset: a replay or a restart continues where it was, and a stage that has ended is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_ext.bad_rows.row import BadRow
from spark_ext.errors import ConfigurationError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.offsets import Json, Position, Range
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit
from spark_ext.sources.hybrid.cutover import extended
from spark_ext.sources.hybrid.stages import HybridOptions, Stage, rename
from spark_ext.sources.staged import Cutover, FollowingSource, IdentifiedSource, SelectiveSource, StagedSource

if TYPE_CHECKING:
    import pyarrow as pa


class Hybrid(StagedSource, ChannelSource):
    """Sources as stages. A channel's id is the stage's name, a slash, and the id that the stage's source gave."""

    options_type = HybridOptions
    options: HybridOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._stages = tuple(Stage(self.options, name) for name in self.options.stages)
        for stage in self._stages:
            if isinstance(stage.source, StagedSource) and not stage.source.last_stage:
                raise self._refusal(
                    f"stage '{stage.name}' has stages of its own: a version of a table, and what comes after it",
                    "make two stages of it: the version, and the versions that follow, with starting_version; or "
                    "use the source without hybrid",
                )
        for stage in self._stages[:-1]:
            if not stage.source.bounded:
                raise self._refusal(
                    f"stage '{stage.name}' has no end, so no stage can come after it",
                    f"give '{stage.name}' an end, or put it last in 'stages'",
                )
        for before, after in pairwise(self._stages):
            if before.cutover and not isinstance(after.source, FollowingSource):
                raise self._cannot_follow(after)
            if before.cutover and isinstance(after.source, SelectiveSource):
                after.source.check_cutover(len(before.cutover) - 1, time=None)
        self._at = 0
        self._opened = False
        self._continued = False  # whether the stage had been begun before this planner was started
        self._acknowledged = 0

    def _refusal(self, what: str, do: str, kept: str = "nothing was read", at: str = "") -> ConfigurationError:
        return refused(what, f"source '{self.options.uid}'{at}", do, kept)

    def _cannot_follow(self, stage: Stage) -> ConfigurationError:
        return self._refusal(
            f"the source {stage.source.name()} cannot begin where another one ended",
            f"give '{stage.name}' a start of its own, and remove the option 'seam' of the stage before it",
            at=f", stage '{stage.name}'",
        )

    @classmethod
    def name(cls) -> str:
        """`hybrid`."""
        return "hybrid"

    def schema(self) -> StructType:
        """Of the first stage; all stages must have the same columns."""
        for before, after in pairwise(self._stages):
            if before.cutover and isinstance(after.source, SelectiveSource):
                after.source.check_cutover(len(before.cutover) - 1, time=before.cutover_by_time)
        first, *others = self._stages
        wanted = first.schema()
        for stage in others:
            stage.check(wanted, first.name)
        return wanted

    @property
    def _stage(self) -> Stage:
        return self._stages[self._at]

    @property
    def _current(self) -> ChannelSource:
        return self._stage.prepared(self.declared)

    @property
    def bounded(self) -> bool:
        """Whether the stage that is being read has an end."""
        return self._stage.source.bounded

    @property
    def channels_end(self) -> bool:
        """As the stage that is being read."""
        return self._stage.source.channels_end

    @property
    def ends_now(self) -> bool:
        """As the last stage: those before it have an end."""
        return self._stages[-1].source.ends_now

    @property
    def last_stage(self) -> bool:
        """Whether the last one is being read."""
        return self._at == len(self._stages) - 1

    @property
    def ends(self) -> bool:
        """Whether the last stage has an end."""
        return self._stages[-1].source.bounded

    def planned(self, stage: Json, pieces: Sequence[Range]) -> Json:
        """Where this stage would end now: the cutover so far, and what this epoch adds to it."""
        # Offsets are those of one topic. So its id is kept with them, as it was when the stage before it began.
        here = self._stage
        self._check_seam(stage)
        if not here.cutover:
            return stage
        kept = stage or {"number": self._at, "name": here.name, "begin": None}
        before = Cutover(**kept["seen"]) if "seen" in kept else Cutover()
        here.prepared(self.declared)
        bad: list[BadRow] = []
        if self.options.on_bad_row == "quarantine":
            here.cutover_reader._collect = bad.append
        seen = before
        for piece in pieces:
            channel = Channel(_inner(piece.channel), None, piece.data)
            seen = extended(seen, here.cutover_reader.read(channel, piece.start, piece.end), here.cutover)
        seen = replace(seen, uncounted=seen.uncounted or bool(bad))
        following = self._stages[self._at + 1].prepared(self.declared)
        if isinstance(following, IdentifiedSource) and ("ids" not in kept or seen.offsets.keys() - before.offsets):
            # Of what has come since, such as a topic that a pattern matches; the ids of others stay as they were.
            kept = {**kept, "ids": {**following.ids(), **kept.get("ids", {})}}
        return {**kept, "seam": list(here.cutover), "seen": asdict(seen)}

    def _check_seam(self, stage: Json) -> None:
        """Refuse another `seam` than the one with which the stage began."""
        here, begun = self._stage, stage or {}
        fresh = "seam" not in begun and not self._continued
        if not fresh and begun.get("seam", []) != list(here.cutover):
            then = "with the seam '" + ":".join(begun["seam"]) + "'" if "seam" in begun else "without a seam"
            raise self._refusal(
                f"stage '{here.name}' began {then}, and now has "
                + (f"'{':'.join(here.cutover)}'" if here.cutover else "none")
                + ": the next stage could not begin where it ends",
                f"restore the option '{here.name}.seam'",
                kept="everything committed so far; nothing was read",
            )

    def next_stage(self, stage: Json) -> Json:
        """The next stage's number and name, the cutover at which it begins, and the ids of what it begins with."""
        reach(FailPoint.HYBRID_BEFORE_SWITCH)
        self._check_seam(stage)
        before = (stage or {}) if self._stage.cutover else {}
        return {
            "number": self._at + 1,
            "name": self._stages[self._at + 1].name,
            "begin": before.get("seen"),
            **({"expected": before["ids"]} if "ids" in before else {}),
        }

    def enter(self, stage: Json) -> None:
        """Begin, or continue with, a stage."""
        number = stage["number"]
        if number >= len(self._stages) or self._stages[number].name != stage["name"]:
            raise self._refusal(
                f"this source is in stage '{stage['name']}', its stage {number + 1}, which is not what 'stages' says",
                f"restore the names in 'stages' as they were when '{stage['name']}' began",
                kept="everything committed so far; nothing was read",
            )
        self._at = number
        self._continued = False
        if stage["begin"] is not None:
            current = self._current
            if not isinstance(current, FollowingSource):
                raise self._cannot_follow(self._stage)
            current.follow(Cutover(**stage["begin"]))
            if isinstance(current, IdentifiedSource):
                current.expect(stage.get("expected", {}))
        if self._opened:
            # In the run in which it begins; in a later one the planner calls `resume` next.
            self._current.resume((), frozenset())

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Resume the stage that is being read, with its own channels."""
        self._opened = True
        name = self._stage.name
        begun = {stage.name for stage in self._stages[: self._at + 1]}
        for id in (*(one.id for one in known), *finished):
            if _stage_name(id) not in begun:
                raise self._refusal(
                    f"this source has read channels of stage '{_stage_name(id)}', which does not come before "
                    f"'{name}' in 'stages'",
                    "restore the order of the names in 'stages' with which the source was first started",
                    kept="everything committed so far; nothing was read",
                )
        mine = [Channel(_inner(one.id), one.begin, one.data) for one in known if _stage_name(one.id) == name]
        done = frozenset(_inner(id) for id in finished if _stage_name(id) == name)
        self._continued = bool(mine or done)
        self._current.resume(mine, done)

    def discover(self) -> Iterable[Channel]:
        """The channels of the stage that is being read."""
        name = self._stage.name
        return [Channel(f"{name}/{one.id}", one.begin, one.data) for one in self._current.discover()]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """As the stage's source."""
        source, inner = self._of(channel)
        return source.advance(inner, start, limit)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """As the stage's source."""
        source, inner = self._of(channel)
        if self._by_name[_stage_name(channel.id)].cutover:
            raise self._refusal(
                "the next stage begins right after the rows that were read of this one (option 'seam'), so a channel "
                "of it cannot be sent to another position",
                "wait for the next stage",
                kept="the channel continues where it is",
                at=f", channel '{channel.id}'",
            )
        return source.seek(inner, at, position)

    @property
    def knows_when_written(self) -> bool:
        """Whether the source of any stage knows; rows of the other stages are not old."""
        return any(stage.source.knows_when_written for stage in self._stages)

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """As the stage's source."""
        source, inner = self._of(channel)
        return source.knows_when_written and source.written_before(inner, position, at)

    def latest(self, channel: Channel) -> Position:
        """As the stage's source."""
        source, inner = self._of(channel)
        return source.latest(inner)

    def lag(self, channel: Channel, at: Position) -> int | None:
        """As the stage's source; of the last stage alone, because the source of a later one has not been looked at."""
        source, inner = self._of(channel)
        return source.lag(inner, at)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """As the stage's source."""
        source, inner = self._of(channel)
        return source.split(inner, start, end, parts)

    @property
    def least_tasks(self) -> int:
        """As the stage that is being read."""
        return self._current.least_tasks

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """As the stage's source, with the names that `select` gives."""
        source, inner = self._of(channel)
        source._collect = self._collect
        renamed = self._by_name[_stage_name(channel.id)].select
        for batch in source.read(inner, start, end):
            yield rename(batch, renamed)

    def _of(self, channel: Channel) -> tuple[ChannelSource, Channel]:
        stage = self._by_name.get(_stage_name(channel.id))
        if stage is None:
            raise self._refusal(
                f"channel '{channel.id}' belongs to a stage that is no longer in 'stages'",
                "add the stage to the option 'stages' again",
                kept="everything committed so far; nothing of this epoch was read",
            )
        return stage.prepared(self.declared), Channel(_inner(channel.id), channel.begin, channel.data)

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in self._stages}

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Notify each stage of its own channels; one that has been left, that this was its last epoch."""
        names = {_stage_name(id) for id in (*epoch.positions, *epoch.finished)}
        reached = max((number for number, stage in enumerate(self._stages) if stage.name in names), default=0)
        if epoch.final:
            reached = len(self._stages) - 1
        for number, stage in enumerate(self._stages[: reached + 1]):
            final = epoch.final or number < reached
            if final and not epoch.final and number < self._acknowledged:
                continue
            positions = {_inner(id): at for id, at in epoch.positions.items() if _stage_name(id) == stage.name}
            finished = tuple(_inner(id) for id in epoch.finished if _stage_name(id) == stage.name)
            stage.prepared(self.declared).on_epoch_committed(Committed(positions, finished, final))
        self._acknowledged = max(self._acknowledged, reached)

    def open(self) -> None:
        """All stages, so that what can be refused is refused before the first one begins."""
        for stage in self._stages:
            stage.prepared(self.declared).open()

    def end_of_input(self) -> None:
        """All stages."""
        for stage in self._stages:
            stage.prepared(self.declared).end_of_input()

    def close(self) -> None:
        """All stages."""
        for stage in self._stages:
            stage.prepared(self.declared).close()


def _stage_name(channel: str) -> str:
    return channel.partition("/")[0]


def _inner(channel: str) -> str:
    return channel.partition("/")[2]
