"""The rows that one epoch reads of a channel, as SQL. The planner counts and hashes them, an executor reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import types as spark

from spark_ext.sources.postgres.key import Bound, Key
from spark_ext.sources.postgres.relation import HASH_COLUMN, NO_LIST_COLUMN, XID, hash_of, literal, quoted

MOST_WRITERS = 100
"""Maximum number of transactions in a position: those that wrote planned rows and are newer than an open one."""


@dataclass(frozen=True)
class Slice:
    """Rows of a table or query."""

    source: str
    key: Key
    has_xid: bool
    conditions: tuple[str, ...]  # joined by AND
    order: str  # SQL after ORDER BY
    high: str | None = None  # of a range that has no smaller end yet: its upper condition

    @property
    def where(self) -> str:
        """SQL after WHERE."""
        every = (*self.conditions, *([self.high] if self.high else []))
        return " AND ".join(every) or "true"

    def with_(self, *conditions: str) -> Slice:
        """The slice with further conditions."""
        return replace(self, conditions=(*self.conditions, *conditions))

    def below_key(self, key: Bound) -> Slice:
        """The rows up to a key, exclusive, instead of to the range's end."""
        return replace(self.with_(self.key.compared("<", key)), high=None)

    def digest(self, least: int) -> str:
        """The statement that counts and hashes the rows, and lists their transactions from `least` on."""
        hashed = hash_of(self.key, self.has_xid)
        writers = f"(array_agg(DISTINCT {XID}) FILTER (WHERE {XID} >= {least}))[:{MOST_WRITERS + 1}]"
        return (
            f"SELECT count(*), coalesce(bit_xor({hashed}), 0), {writers if self.has_xid else 'NULL'} "
            f"FROM {self.source} t WHERE {self.where}"
        )

    def statement(self, declared: spark.StructType) -> str:
        """The statement that reads the declared columns, and each row's hash."""
        columns = [_selected(field) for field in declared.fields]
        arrays = [field.name for field in declared.fields if isinstance(field.dataType, spark.ArrayType)]
        if arrays:
            found = " ".join(f"WHEN {_no_list(name)} THEN {literal(name)}" for name in arrays)
            columns.append(f"CASE {found} END AS {NO_LIST_COLUMN}")
        hashed = f"{hash_of(self.key, self.has_xid)} AS {HASH_COLUMN}"
        return f"SELECT {', '.join([*columns, hashed])} FROM {self.source} t WHERE {self.where} ORDER BY {self.order}"


def _no_list(name: str) -> str:
    """The condition for an array that is not a plain list: of several dimensions, or not counted from 1."""
    return f"(array_ndims(t.{quoted(name)}) > 1 OR array_lower(t.{quoted(name)}, 1) <> 1)"


def _selected(field: spark.StructField) -> str:
    """A column in the form from which its declared type is made."""
    if isinstance(field.dataType, spark.ArrayType):
        # The client would flatten it, or fail.
        value = f"CASE WHEN NOT coalesce({_no_list(field.name)}, false) THEN t.{quoted(field.name)} END"
        return f"{value} AS {quoted(field.name)}"
    as_text = isinstance(field.dataType, (spark.StringType, spark.DecimalType, spark.CharType, spark.VarcharType))
    return f"t.{quoted(field.name)}::text AS {quoted(field.name)}" if as_text else f"t.{quoted(field.name)}"


def of_range(
    source: str,
    data: Mapping[str, Any],
    column: str | None,
    start: Mapping[str, Any],
    end: Mapping[str, Any] | None,
    where: str | None = None,
) -> Slice:
    """The rows of a range's channel; without `end` the whole rest of it, for planning."""
    low, high, last = data["range"]
    low = start.get("upto", low)
    key = Key.of(data["key"], data["type"])
    conditions = _condition(where)
    conditions += [] if low is None else [key.compared(">=", low)]
    begin = data.get("begin")
    if begin is not None:
        conditions.append(_before(begin, column, key))
    upper = key.compared("<=" if last else "<", high)
    if end is not None:
        if end.get("upto") is not None:
            upper = key.compared("<", end["upto"])
        conditions += written_before(end)
    return Slice(source, key, data["xid"], tuple(conditions), key.order, upper)


def _condition(where: str | None) -> list[str]:
    # On lines of its own: it may end with a comment.
    return [] if where is None else [f"({where}\n)"]


def _before(begin: Mapping[str, Any], column: str | None, key: Key) -> str:
    """The condition of the ranges, so that they and the increments together cover all rows."""
    if column is None:
        return f"{XID} < {int(begin['xid'])}"
    null = f"t.{quoted(column)} IS NULL"
    return null if begin["value"] is None else f"({up_to(column, begin, key)} OR {null})"


def of_increment(
    source: str,
    data: Mapping[str, Any],
    column: str | None,
    start: Mapping[str, Any],
    end: Mapping[str, Any] | None,
    where: str | None = None,
) -> Slice:
    """The rows of the increment's channel; without `end` all after `start`."""
    key = Key.of(data["key"], data["type"])
    whole = Slice(source, key, data["xid"], tuple(_condition(where)), key.order)
    if column is None:
        found = whole.with_(f"{XID} >= {int(start['xid'])}")
        return found if end is None else found.with_(f"{XID} < {int(end['xid'])}")
    found = replace(whole, order=f"t.{quoted(column)}, {key.order}").with_(_after(column, start, key))
    return found if end is None else found.with_(up_to(column, end, key), *written_before(end))


def up_to(column: str, at: Mapping[str, Any], key: Key) -> str:
    """The condition of the rows that were read up to a position by an increasing column."""
    name, value = f"t.{quoted(column)}", literal(at["value"])
    read = _read(at, key)
    # The first part is for an index on the column.
    return f"{name} <= {value}" + (f" AND ({name} < {value} OR {read})" if read else "")


def _after(column: str, at: Mapping[str, Any], key: Key) -> str:
    name = f"t.{quoted(column)}"
    if at["value"] is None:
        return f"{name} IS NOT NULL"
    value, read = literal(at["value"]), _read(at, key)
    return f"{name} >= {value} AND ({name} > {value} OR NOT {read})" if read else f"{name} > {value}"


def _read(at: Mapping[str, Any], key: Key) -> str | None:
    """The condition of the rows with a position's own value that were read; None: all, and no more will come."""
    if "xid" in at:
        return f"({XID} < {int(at['xid'])})"
    return f"({key.among(at['keys'])})" if "keys" in at else None


def written_before(end: Mapping[str, Any]) -> list[str]:
    """Conditions that exclude rows inserted or updated since planning, by the snapshot recorded in the plan."""
    if end.get("writers") is not None:
        # Some were still open during planning, between others that had ended; savepoints have their own numbers.
        among = "".join(f" OR {XID} = {int(one)}" for one in end["writers"])
        return [f"({XID} < {int(end['least'])}{among})"]
    return [f"{XID} < {int(end['next'])}"] if end.get("next") is not None else []
