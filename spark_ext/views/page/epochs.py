"""All committed epochs of a job as arrays, and their series reduced to a number of points. Pure.

A job of weeks has hundreds of thousands of epochs, and a plot has a few hundred pixels: a point of a series stands for
the epochs of a period, with the least, the greatest and the mean duration, so that no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

COLUMNS: Final = (
    "query", "epoch", "lineage", "incarnation", "input_rows", "committed_at", "duration_ms", "lag_rows", "late_rows",
    "state_rows",
)  # fmt: skip
"""Columns of the table `epochs` that are needed."""

UNKNOWN: Final = -1  # stands for a duration or a number of rows that is not known


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Epochs:
    """Epochs, sorted by query and time; each once."""

    queries: tuple[str, ...] = ()
    query: Ints = field(default_factory=_none)  # index into `queries`
    epoch: Ints = field(default_factory=_none)
    lineage: Ints = field(default_factory=_none)
    incarnation: Ints = field(default_factory=_none)
    at: Ints = field(default_factory=_none)  # when it was committed, ms since 1970 UTC
    rows: Ints = field(default_factory=_none)  # `UNKNOWN` if not known
    ms: Ints = field(default_factory=_none)  # duration, ms, or `UNKNOWN`
    lag: Ints = field(default_factory=_none)  # rows still to read when it was planned, or `UNKNOWN`
    late: Ints = field(default_factory=_none)  # rows dropped because the watermark had passed them, or `UNKNOWN`
    state: Ints = field(default_factory=_none)  # rows in the query's state after it, or `UNKNOWN`

    def __len__(self) -> int:
        return len(self.at)

    @classmethod
    def of(cls, table: pa.Table) -> Epochs:
        """The epochs of rows of the ledger, in any order. A row that is there twice counts once."""
        if not table.num_rows:
            return cls()
        coded = pc.dictionary_encode(table["query"].combine_chunks())
        names = [str(name) for name in coded.dictionary.to_pylist()]
        order = sorted(range(len(names)), key=names.__getitem__)
        place = np.empty(len(names), np.int64)
        place[order] = np.arange(len(names))
        query = place[coded.indices.to_numpy(zero_copy_only=False)]
        at = table["committed_at"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        columns = [query, *(_ints(table[name]) for name in ("epoch", "lineage", "incarnation")), _ints(at)]
        columns += [_ints(table[name]) for name in ("input_rows", "duration_ms", "lag_rows", "late_rows", "state_rows")]
        same = np.lexsort((columns[1], columns[2], query))
        keys = np.stack([columns[1], columns[2], query])[:, same]
        first = same[np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-1), axis=0))]
        chosen = first[np.lexsort((columns[1][first], columns[4][first], query[first]))]
        return cls(tuple(sorted(names)), *(column[chosen] for column in columns))

    def only(self, chosen: npt.NDArray[np.bool_]) -> Epochs:
        """Some of them."""
        when = (self.query, self.epoch, self.lineage, self.incarnation, self.at)
        figures = (self.rows, self.ms, self.lag, self.late, self.state)
        return Epochs(self.queries, *(array[chosen] for array in (*when, *figures)))

    def slices(self) -> dict[str, slice]:
        """Where the epochs of each query are; queries without any are left out."""
        bounds = np.searchsorted(self.query, np.arange(len(self.queries) + 1))
        return {
            uid: slice(int(bounds[number]), int(bounds[number + 1]))
            for number, uid in enumerate(self.queries)
            if bounds[number] < bounds[number + 1]
        }


def _ints(column: pa.ChunkedArray) -> Ints:
    found = pc.fill_null(column, UNKNOWN).to_numpy()
    return np.asarray(found, np.int64)


@dataclass(frozen=True)
class Points:
    """A series: each point stands for one epoch or more, in order of time."""

    at: Ints = field(default_factory=_none)  # when the first of its epochs was committed, ms since 1970 UTC
    epochs: Ints = field(default_factory=_none)
    rows: Ints = field(default_factory=_none)  # rows that they read; unknown numbers count as 0
    least: Ints = field(default_factory=_none)  # the shortest duration, ms; `UNKNOWN` if none is known
    greatest: Ints = field(default_factory=_none)
    mean: Ints = field(default_factory=_none)
    lag: Ints = field(default_factory=_none)  # greatest lag, rows, or `UNKNOWN`; empty if known of no point
    before: Ints = field(default_factory=_none)  # how long before `at` the first of its epochs began, ms
    after: Ints = field(default_factory=_none)  # how long after `at` the last of its epochs was committed, ms

    def to_json(self) -> dict[str, list[int]]:
        """By column, which is half the size of a list of points."""
        names = ("at", "epochs", "rows", "least", "greatest", "mean", "lag", "before", "after")
        return {name: getattr(self, name).tolist() for name in names}


def series(at: Ints, rows: Ints, ms: Ints, most: int, lag: Ints | None = None) -> Points:
    """Thin out; `at` and `ms` are the time of each commit, in order, and its duration, ms. `UNKNOWN` counts in no sum.

    Up to `most` epochs are left as they are. Of more, the time from the first to the last is divided into `most`
    equal periods, and each period with an epoch becomes a point. Without `lag` they are epochs of several queries.
    """
    if not len(at):
        return Points()
    if len(at) <= most:
        begins = np.arange(len(at))
    else:
        period = (at - at[0]) * most // (at[-1] - at[0] + 1)
        begins = np.flatnonzero(np.diff(period, prepend=-1))
    known = ms >= 0
    count = np.add.reduceat(known.astype(np.int64), begins)
    total = np.add.reduceat(np.where(known, ms, 0), begins)
    some = count > 0
    lasts = np.append(begins[1:], len(at)) - 1
    least = np.minimum.reduceat(np.where(known, ms, np.iinfo(np.int64).max), begins)
    return Points(
        at[begins],
        np.diff(begins, append=len(at)),
        np.add.reduceat(np.maximum(rows, 0), begins),
        np.where(some, least, UNKNOWN),
        np.maximum.reduceat(np.where(known, ms, UNKNOWN), begins),
        np.where(some, (total + count // 2) // np.maximum(count, 1), UNKNOWN),
        _none() if lag is None or (lag < 0).all() else np.maximum.reduceat(lag, begins),
        at[begins] - np.minimum.reduceat(at - np.maximum(ms, 0), begins),
        at[lasts] - at[begins],
    )


def series_of(epochs: Epochs, most: int) -> dict[str, Points]:
    """The series of each query that has epochs."""
    return {
        uid: series(epochs.at[part], epochs.rows[part], epochs.ms[part], most, epochs.lag[part])
        for uid, part in epochs.slices().items()
    }


def series_of_all(epochs: Epochs, most: int) -> Points:
    """The series of all queries together."""
    order = np.argsort(epochs.at, kind="stable")
    return series(epochs.at[order], epochs.rows[order], epochs.ms[order], most)


def points_each(queries: Sequence[Any] | int, most: int, least: int, total: int) -> int:
    """How many points a query gets, so that all together have no more than `total`, unless that were too few to see."""
    number = queries if isinstance(queries, int) else len(queries)
    return max(least, min(most, total // max(1, number)))
