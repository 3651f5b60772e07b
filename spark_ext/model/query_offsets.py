"""All offsets of one epoch of a query, typed: whether its input has ended, and which finishes are new. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.offsets import Finished, LoggedOffsets, OffsetKind, SourceOffset, kind_of


def source_offsets(logged: LoggedOffsets) -> dict[str, SourceOffset]:
    """The channel sources' offsets in an epoch, by uid."""
    return {raw["uid"]: SourceOffset.from_json(raw) for raw in logged.sources if kind_of(raw) is OffsetKind.CHANNELS}


def end_offsets(logged: LoggedOffsets) -> dict[str, EndOffset]:
    """The offsets of the end-of-input markers in an epoch, by uid."""
    return {raw["uid"]: EndOffset.from_json(raw) for raw in logged.sources if kind_of(raw) is OffsetKind.END_OF_INPUT}


def input_ended(logged: LoggedOffsets, sources: Iterable[str]) -> bool:
    """Whether all of a query's sources have ended in this epoch."""
    offsets = source_offsets(logged)
    return all(uid in offsets and offsets[uid].ended for uid in sources)


def finished_beside(
    logged: LoggedOffsets, sources: Collection[str], watched: Mapping[str, Collection[str]], *, natives: bool
) -> frozenset[str]:
    """The sources that have finished by an epoch while others of the query run on.

    `watched` has the sources under each marker. A marker is waited for once all of them have ended; until then it says
    nothing about those that have. When all sources have ended, what is left is the end of the query.
    """
    ended = {raw["uid"] for raw in logged.sources if kind_of(raw) is OffsetKind.CHANNELS and raw.get("ended")}
    if not ended or (ended.issuperset(sources) and not natives):
        return frozenset()
    due = [end for end, under in watched.items() if ended.issuperset(under)]
    return frozenset(ended.difference(*(watched[end] for end in due if not flushed(logged, [end]))))


def final_epochs(logged: LoggedOffsets) -> int:
    """Number of epochs added after the last row, for operators that were not finalized."""
    return max((offset.final for offset in source_offsets(logged).values()), default=0)


def flushed(logged: LoggedOffsets, ends: Iterable[str]) -> bool:
    """Whether the end of input has passed all watermarks, and the epoch after it has emptied the state."""
    seen = end_offsets(logged)
    return all(uid in seen and seen[uid].flushed for uid in ends)


def new_finishes(offset: SourceOffset, flagged: int) -> tuple[Finished, ...]:
    """Finished channels in an offset whose flags are not in the ledger, in their order."""
    return tuple(
        sorted((finish for finish in offset.finished if finish.sequence > flagged), key=lambda finish: finish.sequence)
    )
