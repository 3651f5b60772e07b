"""The planner's part for sources that are made of stages; for all others there is only one, and nothing to remember."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from spark_ext.model.offsets import Json, Position, SourceOffset, ranges
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.staged import StagedSource
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration


class Stages:
    """The stages of a `StagedSource`; any other source has a single one, about which there is nothing to remember."""

    def __init__(self, source: ChannelSource) -> None:
        self._source = source if isinstance(source, StagedSource) else None
        self._number = 0

    @property
    def last(self) -> bool:
        """Whether no other stage comes."""
        return self._source is None or self._source.last_stage

    def end_with_now(self, kept: Targets) -> None:
        """A run that ends with what is there begins, or continues in this planner: also for stages that come later."""
        if self._source is not None:
            self._source.end_with(kept.of("all", self._source.here))

    def restore(self, stage: Json) -> None:
        """A planner starts from an offset with this stage; None: the first, about which there is nothing to know."""
        self._number = _number(stage)
        if self._source is not None and stage is not None:
            self._source.enter(stage)

    def entered(self, stage: Json) -> bool:
        """Whether the last epoch was the switch to this stage, which is entered now."""
        if self._source is None or _number(stage) == self._number:
            return False
        self.restore(stage)
        return True

    def after(self, stage: Json) -> Json:
        """The stage to switch to once this one's channels have finished; None after the last."""
        return None if self._source is None or self._source.last_stage else self._source.next_stage(stage)

    def remembered(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        """The end of an epoch, with what the source has to remember about its stage."""
        if self._source is None or self._source.last_stage:
            return end
        return replace(end, stage=self._source.planned(start.stage, ranges(start, end)))


def _number(stage: Json) -> int:
    return 0 if stage is None else int(stage["number"])


class Targets:
    """The targets of one source in one run. Outside a job, without a registration or a folder, nothing is kept."""

    def __init__(self, registration: Registration | None, place: Path | None = None) -> None:
        self._registration = registration
        self._place = place or registry.folder()

    def of(self, stage: Json, now: Callable[[], Mapping[str, Position]]) -> dict[str, Position]:
        """By channel, the position up to which it is read; `now` is asked if they are not known for a stage."""
        # Channels that are not named wait for the next run.
        place, registration = self._place, self._registration
        if place is None or registration is None or not registration.until_now:
            return dict(now())
        known = self._read(place, registration)
        name = json.dumps(stage, sort_keys=True)
        if name not in known:
            known[name] = dict(now())
            note = place / registry.note(registration.uid, "now")
            registry.write_private(note, {"start": registration.start, "targets": known})
        return known[name]

    def _read(self, place: Path, registration: Registration) -> dict[str, dict[str, Position]]:
        try:
            with (place / registry.note(registration.uid, "now")).open() as file:
                found = json.load(file) if os.fstat(file.fileno()).st_uid == os.geteuid() else {}
            return dict(found["targets"]) if found["start"] == registration.start else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
