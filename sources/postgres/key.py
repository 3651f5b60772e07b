"""The key by which a table is divided: a column, or several that are compared one after the other, as rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_ext.model.offsets import Json

Bound: TypeAlias = "str | tuple[str, ...]"
"""A key as text: of one column, or of each of several. Text is exact, also for a `numeric` of many digits."""


@dataclass(frozen=True)
class Key:
    """The columns of a key, in their order."""

    columns: tuple[str, ...]
    types: tuple[str, ...]  # of the columns, for casts
    kinds: tuple[str, ...] = ()  # names of the types in `pg_type`

    @classmethod
    def of(cls, columns: Json, types: Json) -> Key:
        """From a channel's data, where the key of one column is no list."""
        one = isinstance(columns, str)
        return cls((columns,), (types,)) if one else cls(tuple(columns), tuple(types))

    @property
    def name(self) -> str:
        """For messages."""
        return ", ".join(self.columns)

    def stored(self, values: Sequence[str]) -> Json:
        """One value of each column, as it is stored: of one column the value alone."""
        return values[0] if len(self.columns) == 1 else list(values)

    def bound(self, row: Sequence[Any]) -> Bound:
        """A key from the columns that `texts` selects."""
        return str(row[0]) if len(self.columns) == 1 else tuple(str(value) for value in row[: len(self.columns)])

    @property
    def quoted(self) -> tuple[str, ...]:
        """The columns of a row of `t`."""
        return tuple(f"t.{quoted(name)}" for name in self.columns)

    @property
    def order(self) -> str:
        """After ORDER BY."""
        return ", ".join(self.quoted)

    @property
    def descending(self) -> str:
        """After ORDER BY, the greatest key first."""
        return ", ".join(f"{name} DESC" for name in self.quoted)

    @property
    def texts(self) -> str:
        """After SELECT: each column as text."""
        return ", ".join(f"{name}::text" for name in self.quoted)

    @property
    def text(self) -> str:
        """The whole key as one text."""
        return f"{self.quoted[0]}::text" if len(self.columns) == 1 else f"ROW({self.order})::text"

    @property
    def is_null(self) -> str:
        """The condition for a key with a null part."""
        return "(" + " OR ".join(f"{name} IS NULL" for name in self.quoted) + ")"

    @property
    def is_complete(self) -> str:
        """The condition for a key without nulls."""
        return "(" + " AND ".join(f"{name} IS NOT NULL" for name in self.quoted) + ")"

    def value(self, bound: Bound | list[str]) -> str:
        """A key that is given as text."""
        parts = [bound] if isinstance(bound, str) else bound
        values = [f"{literal(part)}::{kind}" for part, kind in zip(parts, self.types, strict=True)]
        # The server has no collation for statistics of "char", and fails; of a subquery it makes no estimate by them.
        values = [f"(SELECT {one})" if one.endswith('pg_catalog."char"') else one for one in values]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def compared(self, operator: str, bound: Bound | list[str]) -> str:
        """The condition for keys that are less or greater than another one, in the order of an index on the columns."""
        return f"{self._whole} {operator} {self.value(bound)}"

    def among(self, keys: Sequence[Any]) -> str:
        """The condition for one of these keys, as they are stored."""
        return f"{self._whole} IN ({', '.join(map(self.value, keys))})" if keys else "false"

    @property
    def _whole(self) -> str:
        return self.order if len(self.columns) == 1 else f"({self.order})"


def bound_of(stored: Json) -> Bound | None:
    """A key as it is in a position or in a channel's data."""
    return tuple(stored) if isinstance(stored, list) else stored


def shown(bound: Bound) -> str:
    """A key in messages."""
    return bound if isinstance(bound, str) else f"({', '.join(bound)})"


def quoted(name: str) -> str:
    """An identifier for a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal for a statement, whatever the server's setting for backslashes."""
    plain = "'" + text.replace("'", "''") + "'"
    return "E" + plain.replace("\\", "\\\\") if "\\" in plain else plain
