"""Conditions on rows as SQL, by which delta-rs reads and deletes; it skips files by their statistics, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

Where: TypeAlias = Sequence[tuple[str, str, Any]]  # Conditions that must all hold: column, operator, value
_OPERATORS = frozenset({"=", "!=", "<", "<=", ">", ">="})


def sql(where: Where) -> str | None:
    """The conditions as SQL, or None."""
    return " AND ".join(_condition(*it) for it in where) or None


def _condition(column: str, operator: str, value: Any) -> str:
    if operator in ("in", "not in"):
        return _among(column, operator, value)
    if operator not in _OPERATORS:
        raise ValueError(f"unknown operator {operator!r}")
    return f"{column} {operator} {_literal(value)}"


def _among(column: str, operator: str, values: Iterable[Any]) -> str:
    given = ", ".join(_literal(value) for value in values)
    if not given:
        return "1 = 0" if operator == "in" else "1 = 1"
    return f"{column} {operator.upper()} ({given})"


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"arrow_cast({int(value.timestamp() * 1_000_000)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)
