"""The rows of a lookup's version in memory, found by the values of columns. Pure.

Null equals nothing, as in a join of SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ASKED: Final = "__spark_ext_asked"  # the number of an asked row, beside the columns of a join
FOUND: Final = "__spark_ext_found"  # that of a row of the table


@dataclass(frozen=True, eq=False)
class LookupRows:
    """The rows of one version of a table."""

    table_id: str
    version: int
    rows: pa.Table
    key: tuple[str, ...] = ()

    @property
    def repeated(self) -> Mapping[str, Any] | None:
        """A key that several rows have, for which nulls do not count; None: the keys of all rows differ."""
        if not self.key:
            return None
        counts = self.rows.select(self.key).drop_null().group_by(self.key).aggregate([([], "count_all")])
        several = counts.filter(pc.greater(counts["count_all"], 1)).select(self.key).slice(0, 1)
        found: list[dict[str, Any]] = several.to_pylist()
        return found[0] if found else None

    def get(self, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row with this key; raises ValueError if its values cannot be those of the columns."""
        try:
            asked = tuple(
                pa.array([value], self.rows[name].type)[0].as_py() for name, value in zip(self.key, key, strict=True)
            )
        except (pa.ArrowException, TypeError, OverflowError) as problem:
            raise ValueError(str(problem)) from problem
        at = None if None in asked else self._numbers.get(asked)
        return None if at is None else self.rows.slice(at, 1).to_pylist()[0]

    @cached_property
    def _numbers(self) -> dict[tuple[Any, ...], int]:
        keys = zip(*(self.rows[name].to_pylist() for name in self.key), strict=True)
        return {key: number for number, key in enumerate(keys)}

    def lists(self, on: tuple[str, ...], asked: Sequence[pa.Array], columns: tuple[str, ...]) -> pa.Array:
        """For each asked row the list of rows that match it, as structs of columns; an empty list if none does."""
        given = [array.cast(self.rows[name].type) for name, array in zip(on, asked, strict=True)]
        left = pa.table([*given, np.arange(len(asked[0]))], names=[*on, ASKED])
        right = self.rows.select(on).append_column(FOUND, pa.array(np.arange(self.rows.num_rows)))
        pairs = left.join(right, list(on), join_type="inner", use_threads=False)
        pairs = pairs.sort_by([(ASKED, "ascending"), (FOUND, "ascending")])
        structs = self.rows.select(columns).take(pairs[FOUND]).to_struct_array().combine_chunks()
        counts = np.bincount(pairs[ASKED].to_numpy(), minlength=len(asked[0]))
        return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), structs)
