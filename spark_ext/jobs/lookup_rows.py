"""The rows of a lookup's version in memory, found by the values of columns. Pure.

Null equals nothing, as in a join of SQL. Matching is done for whole Arrow arrays: each column becomes numbers, and
several columns become one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class LookupRows:
    """The rows of one version of a table."""

    def __init__(self, table_id: str, version: int, rows: pa.Table) -> None:
        self.table_id, self.version, self.rows = table_id, version, rows.combine_chunks()
        self.index = lru_cache(maxsize=8)(self._index)  # by the columns in which rows are found

    def _index(self, on: tuple[str, ...]) -> Index:
        return Index.of([self.rows[name] for name in on])

    def repeated(self, on: tuple[str, ...]) -> Mapping[str, Any] | None:
        """Values of these columns that several rows have; None: all rows differ, but for those with a null."""
        index = self.index(on)
        several = np.flatnonzero(np.diff(index.begins) > 1)
        if not len(several):
            return None
        row = int(index.order[index.begins[several[0]]])
        return {name: self.rows[name][row].as_py() for name in on}

    def one(self, on: tuple[str, ...], key: Sequence[Any]) -> dict[str, Any] | None:
        """The row with these values; raises ValueError if they cannot be values of the columns."""
        try:
            asked = [pa.array([value], self.rows[name].type) for name, value in zip(on, key, strict=True)]
        except (pa.ArrowException, TypeError, OverflowError) as problem:
            raise ValueError(str(problem)) from problem
        _, found = self.index(on).matches(asked)
        return self.rows.slice(int(found[0]), 1).to_pylist()[0] if len(found) else None

    def lists(self, on: tuple[str, ...], asked: Sequence[pa.Array], columns: tuple[str, ...]) -> pa.Array:
        """For each asked row the list of rows that match it, as structs of columns; an empty list if none does."""
        counts, found = self.index(on).matches(
            [array.cast(self.rows[name].type) for name, array in zip(on, asked, strict=True)]
        )
        structs = self._structs(columns).take(pa.array(found))
        return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), structs)

    def _structs(self, columns: tuple[str, ...]) -> pa.Array:
        if columns not in self._kept:
            arrays = [pa.concat_arrays(self.rows[name].chunks) for name in columns] if self.rows.num_rows else []
            fields = [self.rows.schema.field(name) for name in columns]
            empty = [pa.array([], field.type) for field in fields]
            self._kept[columns] = pa.StructArray.from_arrays(arrays or empty, fields=fields)
        return self._kept[columns]

    @cached_property
    def _kept(self) -> dict[tuple[str, ...], pa.Array]:
        return {}


@dataclass(frozen=True)
class Index:
    """Rows by the values of columns: those of the k-th combination are `order[begins[k] : begins[k + 1]]`."""

    values: tuple[pa.Array, ...]  # by column, its distinct values
    pairs: tuple[Numbers, ...]  # by column after the first: the combinations with those before it, sorted
    order: Numbers
    begins: Numbers

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> Index:
        """The index of some columns."""
        values = tuple(pc.unique(pc.drop_null(column)) for column in columns)
        pairs: list[Numbers] = []
        codes = _codes(columns[0], values[0])
        for column, distinct in zip(columns[1:], values[1:], strict=True):
            joined = _joined(codes, _codes(column, distinct), len(distinct))
            pairs.append(np.unique(joined[joined >= 0]))
            codes = _placed(joined, pairs[-1])
        size = len(pairs[-1]) if pairs else len(values[0])
        there = np.flatnonzero(codes >= 0)
        order = there[np.argsort(codes[there], kind="stable")]
        counts = np.bincount(codes[there], minlength=size)
        return cls(values, tuple(pairs), order.astype(np.int64), np.append(0, np.cumsum(counts)).astype(np.int64))

    def matches(self, asked: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
        """How many rows match each asked one, and the numbers of all of them, one asked row after the other."""
        codes = _codes(asked[0], self.values[0])
        for array, distinct, pairs in zip(asked[1:], self.values[1:], self.pairs, strict=True):
            codes = _placed(_joined(codes, _codes(array, distinct), len(distinct)), pairs)
        there = codes >= 0
        begins = np.where(there, self.begins[np.where(there, codes, 0)], 0)
        counts = np.where(there, self.begins[np.where(there, codes, -1) + 1] - begins, 0)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return counts, self.order[np.repeat(begins, counts) + within]


def _codes(column: pa.ChunkedArray | pa.Array, values: pa.Array) -> Numbers:
    """The place of each value among the distinct ones; -1 for null, and for a value that is not there."""
    found = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _joined(left: Numbers, right: Numbers, size: int) -> Numbers:
    joined: Numbers = np.where((left < 0) | (right < 0), -1, left * size + right)
    return joined


def _placed(joined: Numbers, pairs: Numbers) -> Numbers:
    if not len(pairs):
        return np.full(len(joined), -1)
    at = np.minimum(np.searchsorted(pairs, joined), len(pairs) - 1)
    placed: Numbers = np.where(pairs[at] == joined, at, -1)
    return placed
