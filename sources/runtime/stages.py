"""The planner's part for sources that are made of stages; for all others there is only one, and nothing to remember."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.model.offsets import Json, SourceOffset, ranges
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.staged import StagedSource

if TYPE_CHECKING:
    from spark_ext.sources.runtime.targets import Targets

_ALL: Final = "all"
"""Under this name is kept what concerns all stages of a source."""


class OneStage:
    """The stages of an ordinary source."""

    @property
    def last(self) -> bool:
        """No other stage comes."""
        return True

    def end_with_now(self, kept: Targets) -> None:
        """A run that ends with what is there begins, or continues in this planner."""

    def restore(self, stage: Json) -> None:
        """A planner starts from an offset with this stage."""

    def entered(self, stage: Json) -> bool:
        """Whether the last epoch was the switch to this stage, which is entered now."""
        return False

    def after(self, stage: Json) -> Json:
        """The stage to switch to once this one's channels have finished; None: there is none."""
        return None

    def remembered(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        """The end of an epoch, with what the source has to remember about its stage."""
        return end


class Stages(OneStage):
    """The stages of a `StagedSource`."""

    def __init__(self, source: StagedSource) -> None:
        self._source = source
        self._number = 0

    @property
    def last(self) -> bool:
        """Whether no other stage comes."""
        return self._source.last_stage

    def end_with_now(self, kept: Targets) -> None:
        """A run that ends with what is there begins, or continues in this planner: also for stages that come later."""
        self._source.end_with(kept.of(_ALL, self._source.here))

    def restore(self, stage: Json) -> None:
        """A planner starts from an offset with this stage; None: the first, about which there is nothing to know."""
        self._number = _number(stage)
        if stage is not None:
            self._source.enter(stage)

    def entered(self, stage: Json) -> bool:
        """Whether the last epoch was the switch to this stage, which is entered now."""
        if _number(stage) == self._number:
            return False
        self._number = _number(stage)
        self._source.enter(stage)
        return True

    def after(self, stage: Json) -> Json:
        """The stage to switch to once this one's channels have finished; None: there is none."""
        return None if self._source.last_stage else self._source.next_stage(stage)

    def remembered(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        """The end of an epoch, with what the source has to remember about its stage."""
        if self._source.last_stage:
            return end
        return replace(end, stage=self._source.planned(start.stage, ranges(start, end)))


def stages_of(source: ChannelSource) -> OneStage:
    """The stages of any source."""
    return Stages(source) if isinstance(source, StagedSource) else OneStage()


def _number(stage: Json) -> int:
    return 0 if stage is None else int(stage["number"])
