"""Contracts for sources that take over from one another: only `hybrid`, and what can continue it, need them.

A *stage* is a bounded part of a source that ends before the next part begins, and a *cutover* is where one stage ended,
as the next one has to know it. Both are part of the source's offset, so a replay or a restart sees the same ones.

A source that can begin at a cutover has a method `follow` (`FollowingSource`). If it cannot begin at each, it has
`check_cutover` (`SelectiveSource`); if what it reads has ids, `ids` and `expect` (`IdentifiedSource`). A source that is
made of stages derives from `StagedSource` as well as from `ChannelSource`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from spark_ext.model.offsets import Json, Range


@dataclass(frozen=True)
class Cutover:
    """Where a source ended, as another one that continues from there has to know it."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    """The greatest offset by partition. A partition is named by its columns, joined by a colon; `""` without any."""
    time: int | None = None
    """The greatest event time, microseconds since 1970 UTC; None: not by time, or there was no row."""
    rows: int | None = None
    """How many of its rows have that time, to the millisecond; None: all that have it. `hybrid` always counts them."""
    uncounted: bool = False
    """Whether there may be more of them: the times of some rows could not be read."""


@runtime_checkable
class FollowingSource(Protocol):
    """A source that can begin where another one ended."""

    def follow(self, cutover: Cutover) -> None:
        """Begin right after a cutover. Called before `resume` and `discover`, in each run.

        By offsets: begin at the offset after the one given; a partition that is not named begins where it would
        without a cutover. By time: begin with the first row that is later, or that has the same time and is not among
        `rows`; refuse the cutover if that cannot be told.
        """


@runtime_checkable
class SelectiveSource(Protocol):
    """A source that can begin where another one ended, at some kinds of cutovers only."""

    def check_cutover(self, partition: int, *, time: bool | None) -> None:
        """Refuse a kind of cutover, when the stages are defined.

        Args:
            partition: how many columns name a partition; 0: there is one column, of offsets or times.
            time: whether this one is of times; None: not known yet.
        """


@runtime_checkable
class IdentifiedSource(Protocol):
    """A source that reads what can be deleted and created again under the same name, and knows one from the other."""

    def ids(self) -> Mapping[str, str]:
        """By name, the ids of what it would read now.

        Called while the stage before it is read: in its first epoch, and when its cutover names something further.
        """

    def expect(self, ids: Mapping[str, str]) -> None:
        """Refuse, in `discover`, to begin with anything else under these names. Called before `resume`, in each run."""


class StagedSource(ABC):
    """The stages of a channel source, which are read one after another.

    What it has to remember about a stage is a JSON object, stored in the offset of each epoch; None for the first
    stage as long as there is nothing to remember.

    Guaranteed: the channels of one stage have all finished before `next_stage` is called, and what it returns is
    stored, as an epoch without rows, before `enter`. Not guaranteed: that the epoch given to `planned` is run; like
    `advance`, it may be called in vain.
    """

    may_be_stage: ClassVar[bool] = False
    """Whether it can be a stage of `hybrid`, as long as its options ask for no more than one stage of its own."""

    @property
    @abstractmethod
    def last_stage(self) -> bool:
        """Whether no other stage comes once all channels that `discover` gives have finished."""

    @property
    @abstractmethod
    def ends(self) -> bool:
        """Whether the last stage has an end; `bounded` is about the stage that is being read."""

    @abstractmethod
    def planned(self, stage: Json, pieces: Sequence[Range]) -> Json:
        """An epoch is about to read these ranges: what to remember about the stage from now on.

        Called for each epoch of a stage that is not the last.

        Args:
            stage: what was remembered so far, an object with at least the stage's `number`; None: nothing yet.
        """

    @abstractmethod
    def next_stage(self, stage: Json) -> Json:
        """All channels of this stage have finished: what `enter` has to know of the next one, with its `number`.

        Not called for the last stage. What is returned is stored before the stage is entered.
        """

    def here(self) -> Mapping[str, Json]:
        """What there is now of a stage that is still to come, for a run that ends with what is there when it begins.

        Called before `resume`. What is returned is kept as long as the run lasts. Empty: each stage is read up to what
        it has when it begins.
        """
        return {}

    def end_with(self, here: Mapping[str, Json]) -> None:  # noqa: B027 - optional
        """Begin such a run, or continue it in another planner: read nothing that arrived after `here` was called."""

    @abstractmethod
    def enter(self, stage: Json) -> None:
        """Continue with a stage: when it begins and, before `resume`, in each later run.

        Args:
            stage: what `next_stage` or `planned` returned last.
        """
