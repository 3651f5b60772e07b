"""Contract for sources whose channels advance together: only `exchange` needs it.

An ordinary source advances each channel by itself. The channels of an aligned one are all planned by one call, which
moves them to the same place; they start together, and end together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from spark_ext.model.offsets import Position
from spark_ext.sources.contract import Channel, Limit


@dataclass(frozen=True)
class Together:
    """Where all channels stand after an epoch."""

    ends: Mapping[str, Position]
    """By channel id."""
    finished: bool = False
    """Whether all of them end there."""
    barrier: int = 0
    """The barrier of an aligned checkpoint that is there; the epoch ends with it. 0 means no barrier."""
    rows: int = 0
    """How many rows lie between."""
    bytes: int | None = None
    """How many bytes; None: unknown."""
    watermark: int = 0
    """The watermark of the query that has written what is there, ms since 1970 UTC; 0: none that is later."""


class AlignedSource(ABC):
    """What a channel source adds, before `ChannelSource` in its bases, if its channels advance together.

    A drain of the job ends the sources that feed it, and not this one: it ends by itself, once it has been read to its
    end.
    """

    @property
    def channels_end(self) -> bool:
        """False, so that all channels are in progress from the start, however few readers there are."""
        return False

    @property
    def ends_now(self) -> bool:
        """True: such a run ends once it has been read up to where those that feed it have ended the run."""
        return True

    @abstractmethod
    def advance_together(
        self, positions: Mapping[str, Position], limit: Limit, watermark: int | None
    ) -> Together | None:
        """How far this epoch may read all channels; None when there is nothing to read.

        `watermark` is that of the positions, if a later one is reason enough for an epoch; None: it is not.
        """

    def lag_together(self, positions: Mapping[str, Position]) -> int | None:
        """Rows of all channels that exist and come after these positions; None: unknown. As `lag`."""
        return None

    def advance(self, channel: Channel, start: Position, limit: Limit) -> NoReturn:
        """Not called: see `advance_together`."""
        raise NotImplementedError
