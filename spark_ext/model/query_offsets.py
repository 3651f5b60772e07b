"""All offsets of one epoch of a query: has its input ended, which finishes are new. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ext.model.end_of_input import is_end_of_input_offset, is_flushed
from spark_ext.model.logged_offsets import LoggedOffsets
from spark_ext.model.offsets import Finished, SourceOffset, is_channel_offset


def source_offsets(logged: LoggedOffsets) -> dict[str, SourceOffset]:
    """The channel sources' offsets in an epoch, by uid."""
    return {
        raw["uid"]: SourceOffset.from_json(raw)
        for raw in logged.sources
        if is_channel_offset(raw) and not is_end_of_input_offset(raw)
    }


def input_ended(logged: LoggedOffsets, sources: Iterable[str]) -> bool:
    """Whether all of a query's sources have ended in this epoch."""
    offsets = source_offsets(logged)
    return all(uid in offsets and offsets[uid].ended for uid in sources)


def same_input(one: LoggedOffsets, other: LoggedOffsets) -> bool:
    """Whether two epochs stand at the same place of all input; each run emits its own markers of the end."""
    places = ([raw for raw in logged.sources if not is_end_of_input_offset(raw)] for logged in (one, other))
    return next(places) == next(places)


def flushed(logged: LoggedOffsets, ends: Iterable[str]) -> bool:
    """Whether the end of input has passed all watermarks, and the epoch after it has emptied the state."""
    seen = {raw["uid"]: raw for raw in logged.sources if is_end_of_input_offset(raw)}
    return all(uid in seen and is_flushed(seen[uid]) for uid in ends)


def new_finishes(offset: SourceOffset, flagged: int) -> tuple[Finished, ...]:
    """Finished channels in an offset whose flags the ledger lacks, in their order."""
    return tuple(
        sorted(
            (finish for finish in offset.finished if finish.sequence > flagged),
            key=lambda finish: finish.sequence,
        )
    )
