"""How many rows an epoch will have, before its tasks say so: by how far its offsets advance. Pure.

Spark counts the rows of a task when that has ended. But the offsets of an epoch are logged before it runs. Those of
Kafka, of the sources of spark-ext and of many others are numbers of rows; whether they are is seen by earlier epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from spark_ext.model.logged_offsets import LoggedOffsets

NEEDED: Final = 5
"""The number of epochs whose rows and advance both have to be known."""

ALIKE: Final = 1.25
"""Rows by advance may differ so much among epochs."""

_OTHERS: Final = ("logOffset", "reservoirVersion")
"""In the offsets of Spark's files and of Delta: they count files and commits of any size."""


def advance(before: LoggedOffsets, after: LoggedOffsets) -> float | None:
    """How far the offsets of two epochs are apart; None if they are not made of the same numbers."""
    earlier, later = dict(_numbers(list(before.sources))), dict(_numbers(list(after.sources)))
    if earlier.keys() != later.keys() or any(word in path for path in later for word in _OTHERS):
        return None
    return sum(abs(later[path] - earlier[path]) for path in later)


def planned_rows(known: Sequence[tuple[float, int]], now: float | None) -> float | None:
    """How many rows an epoch will have; None if its advance does not say so."""
    rates = sorted(rows / far for far, rows in known if far > 0 and rows > 0)
    if now is None or len(rates) < NEEDED or rates[-1] > ALIKE * rates[0]:
        return None
    return now * rates[len(rates) // 2]


def _numbers(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(part, dict):
        for name, inner in part.items():
            yield from _numbers(inner, (*path, str(name)))
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _numbers(inner, (*path, str(number)))
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, float(part)
