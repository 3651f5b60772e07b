"""Rows of the ledger as Arrow tables and back: the columns are derived from the fields of the row classes."""

from __future__ import annotations

import json
import secrets
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from spark_ext.delta import light_arrow
from spark_ext.errors import StateError
from spark_ext.ledger.schema import JSON, Row

R = TypeVar("R", bound=Row)

_ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True)
class Column:
    """A column as derived from a field."""

    name: str
    arrow: pa.DataType
    nullable: bool = False
    json: bool = False
    values: tuple[str, ...] = ()  # the values that may be written; (): any


def columns(row_type: type[Row]) -> tuple[Column, ...]:
    """The columns of a table, in order."""
    key: Any = row_type  # to the type checker a class with a __hash__ for its objects is not hashable itself
    return _columns(key)


@cache
def _columns(row_type: Any) -> tuple[Column, ...]:
    hints = get_type_hints(row_type, include_extras=True)
    return tuple(_column(field.name, hints[field.name]) for field in fields(row_type))


def _column(name: str, hint: Any) -> Column:
    if get_origin(hint) is Annotated:
        kind = get_args(hint)[1]
        if kind == JSON:
            return Column(name, pa.string(), nullable=True, json=True)
        assert issubclass(kind, Enum)
        optional = type(None) in get_args(get_args(hint)[0])
        return Column(name, pa.string(), nullable=optional, values=tuple(value.value for value in kind))
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return Column(name, _ARROW[inner], nullable=True)
    return Column(name, _ARROW[hint])


def arrow_schema(row_type: type[Row]) -> pa.Schema:
    """The table's schema in Arrow; Delta's follows from it."""
    return pa.schema([pa.field(it.name, it.arrow, it.nullable) for it in columns(row_type)])


def to_arrow(row_type: type[R], rows: Sequence[R]) -> pa.Table:
    """Rows as an Arrow table."""
    arrays = []
    for it in columns(row_type):
        values = [getattr(row, it.name) for row in rows]
        if it.json:
            values = [None if value is None else to_json(value) for value in values]
        elif pa.types.is_timestamp(it.arrow):
            for value in values:
                if value is not None and value.utcoffset() != timedelta(0):
                    raise ValueError(f"{row_type.__name__}.{it.name}: {value!r} is not a time in UTC")
        elif it.values:
            for value in values:
                if value not in it.values and not (value is None and it.nullable):
                    raise ValueError(f"{row_type.__name__}.{it.name}: {value!r} is not one of {', '.join(it.values)}")
            values = [None if value is None else str(value) for value in values]
        array = pa.array(values, it.arrow)
        if array.null_count and not it.nullable:
            raise ValueError(f"{row_type.__name__}.{it.name} is missing in a row, and is not optional")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=arrow_schema(row_type))


def from_arrow(row_type: type[R], table: pa.Table) -> list[R]:
    """The rows of an Arrow table that has all columns."""
    by_name: dict[str, list[Any]] = {}
    for it in columns(row_type):
        column = table.column(it.name)
        values: list[Any] = [*light_arrow.times(column)] if pa.types.is_timestamp(it.arrow) else column.to_pylist()
        by_name[it.name] = from_json_many(values, row_type, it.name) if it.json else values
    return [row_type(**dict(zip(by_name, values, strict=True))) for values in zip(*by_name.values(), strict=True)]


def to_json(value: object) -> str:
    """JSON text, the same for equal values. What JSON does not support (in an incident's evidence) becomes text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True, default=str)


_BETWEEN: Final = json.dumps(secrets.token_hex(16))  # so that a text which is torn does not end within the next


def from_json_many(texts: Sequence[str | None], row_type: type[Row], column: str) -> list[Any]:
    """Values of many JSON texts of a column; parsed at once, which makes 100,000 of them cheap."""
    with suppress(ValueError, RecursionError):
        whole = f",{_BETWEEN},".join("null" if text is None else text for text in texts)
        values: list[Any] = json.loads(f"[{whole}]")
        if len(values) == max(0, 2 * len(texts) - 1) and set(map(str, values[1::2])) <= {_BETWEEN[1:-1]}:
            return values[::2]
    raise StateError(
        f"column '{column}' of the ledger's table '{row_type.table}' has a text that is not JSON: the table is damaged",
        operator=f"ledger table '{row_type.table}'",
        kept="the table is unchanged",
        do="restore the table from a backup; to start over instead, delete the whole state directory and the job's "
        "output",
    )


def from_json(text: str | None, row_type: type[Row], column: str) -> Any:
    """The value of a JSON text of a column; raises as `from_json_many` does."""
    return from_json_many([text], row_type, column)[0]
