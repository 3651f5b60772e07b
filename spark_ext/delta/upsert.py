"""What an upsert means: one row for each key, and which one it is. Pure functions, over the rows of an epoch.

A table in this mode is a map from keys to rows, and an epoch is a set of new rows. Of the rows of one key the one with
the greatest value in the columns `newest_by` wins, in the epoch and against the table. So with tombstones kept the
table depends only on the rows that have come, not on their order, up to rows of one key and one time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from spark_ext.errors import NOTHING_VISIBLE, DataError, refused

# Types whose values are equal, and come before each other, in the same way for every engine.
_COMPARED: Final = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.DecimalType,
    spark.BooleanType,
    spark.StringType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)
_RESERVED: Final = "__delta_rs_"

_SHOWN: Final = 200  # Most characters of a row or key that an error shows


@dataclass(frozen=True)
class Upsert:
    """The rule by which rows replace each other."""

    key: tuple[str, ...]  # The columns by which a row is found. Never null
    # The columns by which the newest row of a key wins, the first one first. Never null in the rows of an epoch; in the
    # table null is older than any value. None: the row of the later epoch wins, and an epoch has one row of a key.
    newest_by: tuple[str, ...] = ()
    deleted_if: str | None = None  # The column that says whether a row deletes its key. Never null
    # Whether a row that deletes is kept, with its flag, so that an older row that comes later does not bring the key
    # back. Without it the key's rows are gone, and so is the time of the deletion.
    tombstones: bool = False

    @property
    def dropped(self) -> str | None:
        """The column that is not stored in the table; None when all are."""
        return None if self.tombstones else self.deleted_if

    def stored(self, schema: spark.StructType) -> spark.StructType:
        """The columns of the rows that the table has."""
        return spark.StructType([field for field in schema.fields if field.name != self.dropped])

    def check_columns(self, schema: spark.StructType, who: str) -> None:
        """Refuse columns by which rows cannot be found or compared."""
        kinds = {field.name: field.dataType for field in schema.fields}
        given = [("key", name) for name in self.key] + [("newest_by", name) for name in self.newest_by]
        for option, name in (*given, *([("deleted_if", self.deleted_if)] if self.deleted_if else ())):
            if name not in kinds:
                what = f"option '{option}': '{name}' is not a column of the query; it has: {', '.join(kinds)}"
                raise refused(what, who, f"correct the option '{option}'")
        for option, name in given:
            if not isinstance(kinds[name], _COMPARED):
                raise refused(
                    f"option '{option}': column '{name}' has the type {kinds[name].simpleString()}, whose values are "
                    "not equal or not ordered in the same way everywhere",
                    who,
                    f"cast '{name}' in the query to an integer, decimal, text, date or time",
                )
        if self.deleted_if and not isinstance(kinds[self.deleted_if], spark.BooleanType):
            raise refused(
                f"option 'deleted_if': column '{self.deleted_if}' has the type "
                f"{kinds[self.deleted_if].simpleString()}, and not boolean",
                who,
                f"make it boolean in the query, for example ({self.deleted_if} = 'd')",
            )
        bad = next((name for name in kinds if "`" in name or name.startswith(_RESERVED)), None)
        if bad is not None:
            why = "contains '`', which it does not quote" if "`" in bad else f"begins with {_RESERVED}, as its own do"
            what = f"column name '{bad}' cannot be used by the library that merges: it {why}"
            raise refused(what, who, "rename the column in the query, for example with .alias()")

    def check_values(self, batch: pa.RecordBatch, before: int, who: str) -> None:
        """Refuse rows that have no key, no time, or do not say whether they delete."""
        import pyarrow.compute as pc

        flag = (self.deleted_if,) if self.deleted_if else ()
        for option, names in (("key", self.key), ("newest_by", self.newest_by), ("deleted_if", flag)):
            for name in names:
                missing = pc.is_null(batch.column(name))
                if pc.any(missing).as_py():
                    row = before + pc.index(missing, True).as_py() + 1
                    raise DataError(
                        f"row {row}, column '{name}' is null; the option '{option}' does not allow that",
                        operator=who,
                        kept=NOTHING_VISIBLE,
                        do=f"filter such rows in the query, or give them a value: coalesce({name}, ...)",
                    )

    def winners(self, rows: pa.Table, who: str) -> pa.Table:
        """The row of each key that counts, of the rows of an epoch, whatever their order.

        Among rows of one key and the same time one that deletes comes before others, and then the one that is greatest
        when it is written out: a rule without meaning, by which a repeated epoch has the same result.
        """
        work = pa.table(
            [rows.column(name) for name in (*self.key, *self.newest_by)],
            names=[str(number) for number in range(len(self.key) + len(self.newest_by))],
        )
        keys, times = work.column_names[: len(self.key)], work.column_names[len(self.key) :]
        distinct = work.group_by(keys, use_threads=False).aggregate([]).num_rows
        if distinct == rows.num_rows:
            return rows
        order = _sorted(work, keys, times)
        placed = work.take(order)
        new_key = _changes(placed, keys)
        new_time = new_key | _changes(placed, times)
        group = np.cumsum(new_time)
        first_of_key = group[new_key]
        newest = group == first_of_key[np.cumsum(new_key) - 1]
        found, counts = np.unique(group[newest], return_counts=True)
        positions = order.to_numpy()
        chosen = positions[new_key]
        begins = np.append(np.flatnonzero(new_time), len(positions))
        for tied in found[counts > 1]:
            # Groups are numbered from 1, and the rows of one are next to each other.
            candidates = positions[begins[tied - 1] : begins[tied]]
            chosen[np.searchsorted(first_of_key, tied)] = candidates[self._of_equals(rows.take(candidates), who)]
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[chosen] = True
        return rows.filter(pa.array(mask))

    def _of_equals(self, rows: pa.Table, who: str) -> int:
        """The position of the one that counts, of rows of one key and one time."""
        values = rows.to_pylist()
        # Written out, so that a NaN equals itself, and what cannot be compared can.
        written = [repr(list(row.items())) for row in values]
        if not self.newest_by and len(set(written)) > 1:
            key = ", ".join(f"{name} {values[0][name]!r}" for name in self.key)
            raise DataError(
                f"the epoch has {len(values)} rows of the key ({key[:_SHOWN]}), and nothing says which one is the "
                f"newest: the rows of an epoch have no order",
                operator=who,
                kept=NOTHING_VISIBLE,
                do='name the column that orders them: .option("newest_by", "<a time or sequence number>"), or '
                "aggregate by the key in the query",
            )

        def rank(position: int) -> tuple[bool, str]:
            return bool(self.deleted_if and values[position][self.deleted_if]), written[position]

        return max(range(len(values)), key=rank)

    # -- as SQL -------------------------------------------------------------------------------------------------------

    def matches(self, old: str, new: str, as_text: Collection[str] = ()) -> str:
        """The condition under which two rows have one key."""

        def side(alias: str, name: str) -> str:
            column = f"{alias}.{quoted(name)}"
            # Of an expression that appends something delta-rs takes no bounds.
            return f"CAST({column} AS VARCHAR) || ''" if name in as_text else column

        return " AND ".join(f"{side(old, name)} = {side(new, name)}" for name in self.key)

    def replaces(self, old: str, new: str) -> str | None:
        """The condition under which a row replaces that of its key: it is as new, or newer. None: always."""
        condition: str | None = None
        for name in reversed(self.newest_by):
            one, other = f"{old}.{quoted(name)}", f"{new}.{quoted(name)}"
            later = (
                f"{other} >= {one}" if condition is None else f"({other} > {one} OR ({other} = {one} AND {condition}))"
            )
            condition = f"({one} IS NULL OR {later})"
        return condition


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _sorted(work: pa.Table, keys: Sequence[str], times: Sequence[str]) -> Any:
    """Positions by key, and those of a key from the newest on."""
    import pyarrow.compute as pc

    by = [(name, "ascending") for name in keys] + [(name, "descending") for name in times]
    return pc.sort_indices(work, sort_keys=by)


def _changes(placed: pa.Table, names: Sequence[str]) -> Any:
    """For each row, whether it differs in any of these columns from the row before; True for the first one."""
    import pyarrow.compute as pc

    count = placed.num_rows
    found = np.zeros(count, dtype=bool)
    for name in names:
        column = placed.column(name)
        differs = pc.not_equal(column.slice(1), column.slice(0, count - 1))
        found[1:] |= differs.to_numpy().astype(bool)
    if names:
        found[0] = True
    return found
