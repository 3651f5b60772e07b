"""The columns of rows in the table: under which names, and what is done about those that the table lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from spark_ext.clients.postgres.connection import LONGEST
from spark_ext.errors import refused
from spark_ext.sinks.postgres_2pc.types import Column, new_type

if TYPE_CHECKING:
    import psycopg

    from spark_ext.clients.postgres.connection import Name

_SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def mapping(value: object) -> object:
    """`"a=x, b=y"` or a JSON object as a mapping of names; anything but text is returned as it is."""
    if not isinstance(value, str):
        return value
    if value.strip().startswith("{"):
        try:
            pairs = json.loads(value, object_pairs_hook=list)
        except json.JSONDecodeError:
            raise ValueError('this is not a JSON object of names such as {"name in rows": "name in table"}') from None
    else:
        pairs = [tuple(name.strip() for name in part.split("=")) for part in value.split(",") if part.strip()]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(name, str) and name for name in pair):
            raise ValueError(f"{value!r} is not of the form 'name in rows=name in table, ...', or a JSON object")
    for place, what in enumerate(("renamed twice", "the new name of two columns")):
        names = [pair[place] for pair in pairs]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"'{twice[0]}' is {what}")
    return dict(pairs)


def renamed(schema: StructType, names: Mapping[str, str], who: str) -> StructType:
    """The rows' columns under their names in the table."""
    if not names:
        return schema
    for name in names:
        if name not in schema.names:
            raise refused(
                f"the option 'column_map' renames a column '{name}' that the query does not have; it has: "
                f"{', '.join(schema.names)}",
                who,
                "correct the option, or add the column to the query",
            )
    fields = [StructField(names.get(one.name, one.name), one.dataType, one.nullable, one.metadata) for one in schema]
    every = [field.name for field in fields]
    for name in every:
        if every.count(name) > 1:
            raise refused(
                f"with the option 'column_map' two columns of the query have the name '{name}' in the table",
                who,
                "rename the other one too, or drop it in the query",
            )
    return StructType(fields)


def lacking(schema: StructType, columns: Sequence[Column], who: str) -> list[StructField]:
    """The columns of the rows that the table lacks, and that can be added."""
    known = {column.name for column in columns}
    lower = {column.name.lower(): column.name for column in columns}
    out = [field for field in schema.fields if field.name not in known]
    for field in out:
        name = field.name
        new_type(field.dataType, name, who)
        why = None
        if name.lower() in lower:
            why = f"the table has a column '{lower[name.lower()]}', which differs only in case"
        elif name in _SYSTEM:
            why = "PostgreSQL has this name for a column of its own"
        elif len(name.encode()) > LONGEST:
            why = f"names in PostgreSQL have at most {LONGEST} bytes"
        if why is not None:
            raise refused(
                f"column '{name}' cannot be added to the table: {why}",
                who,
                "rename the column in the query or with the option 'column_map', or drop it",
            )
    return out


def add(connection: psycopg.Connection[Any], name: Name, fields: Sequence[StructField], who: str) -> None:
    """Add columns to a table, as nullable ones, unless it has them."""
    from psycopg import sql

    if fields:
        parts = [
            sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
                sql.Identifier(field.name), sql.SQL(new_type(field.dataType, field.name, who))
            )
            for field in fields
        ]
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(name.identifier, sql.SQL(", ").join(parts)))
