"""Where a range of a file is cut, so that several tasks may read it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def even_cuts(start: int, end: int, parts: int) -> list[int]:
    """The positions that cut a range into parts of equal length; none for a single part."""
    return [start + (end - start) * part // parts for part in range(1, parts)]


def parts_between(start: int, end: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """The parts of a range.

    Args:
        cuts: positions near those of `even_cuts` at which it may be cut. One that does not come after the one before,
            or is not within the range, is passed over.
    """
    edges = [start]
    for cut in cuts:
        if edges[-1] < cut < end:
            edges.append(cut)
    return list(pairwise([*edges, end]))
