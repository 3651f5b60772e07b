"""What the tests of `postgres_2pc` share: a table as the target of a sink."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar

import psycopg
import psycopg.sql
from pyspark.sql import types as T

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.testing.every_type import EVERY_TYPE
from spark_ext.testing.sink_driver import Row, SinkTarget
from tests.servers.postgres import PASSWORD, Database

WAYS: dict[str, dict[str, str]] = {
    "staged": {},
    "inline": {"inline_size": "1m"},
    "prepared": {"prepared": "true"},
    "upsert": {"mode": "upsert", "key": "id"},
}
"""The options by which rows come into the table."""

LEFT = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE nspname = 'spark_ext' AND relkind = 'r' AND relname LIKE 's\\_%'
UNION ALL SELECT gid FROM pg_prepared_xacts WHERE database = current_database()
"""

FULL = """
CREATE OR REPLACE FUNCTION spark_ext.no_space() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$
"""


TRIGGER = """
CREATE TRIGGER no_space BEFORE INSERT OR UPDATE ON spark_ext.epochs EXECUTE FUNCTION spark_ext.no_space()
"""


READABLE = {"DateStyle": "ISO, YMD", "TimeZone": "UTC", "IntervalStyle": "postgres", "extra_float_digits": "1"}
"""Settings of a reader, whatever those of the database are."""


class PostgresTarget(SinkTarget):
    """A table of a database of its own. Nothing is sent inline unless the options say so: that leaves nothing."""

    before_commit = "postgres.before_commit"
    after_commit = "postgres.committed"
    points: ClassVar[tuple[str, ...]] = ("postgres.fenced", "postgres.cleaned", "postgres.recorded")

    def __init__(self, database: Database, table: str = "out", **options: str) -> None:
        self.dsn, self.table = database.dsn, table
        self.options: Mapping[str, str] = {"inline_size": "0", **options}

    @property
    def secrets(self) -> tuple[str, ...]:
        return (PASSWORD,)

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return PostgresTwoPhaseCommit({"uid": uid, "dsn": self.dsn, "table": self.table, **self.options, **options})

    def query(self, text: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
            # psycopg reads no other forms, whatever the database's own settings are.
            for name, value in READABLE.items():
                connection.execute(psycopg.sql.SQL("SET {} = {}").format(psycopg.sql.Identifier(name), value))
            return connection.execute(text).fetchall()

    def rows(self) -> list[dict[str, Any]]:
        if self.query(f"SELECT to_regclass('{self.table}') AS found") == [{"found": None}]:
            return []
        return [{name: plain(name, value) for name, value in row.items()} for row in self.query(f"TABLE {self.table}")]

    def make_strict(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {self.table} (id bigint UNIQUE, name text CHECK (name <> 'bad'))")

    def spoiled(self, row: Row) -> Row:
        """Half of them are refused when they are staged, and half by the table's constraint."""
        if self.options.get("prepared"):
            raise NotImplementedError
        return {**row, "name": "bad" if row["id"] % 2 else "a\0b"}

    def leftovers(self) -> set[str]:
        return {row["relname"] for row in self.query(LEFT)}

    def drop(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {self.table}")

    def damage(self) -> Callable[[], object]:
        """The server says that its disk is full whenever an epoch is recorded."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(FULL)
            connection.execute(TRIGGER)
        return self._mend

    def _mend(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DROP TRIGGER no_space ON spark_ext.epochs")


KINDS = {field.name: field.dataType for field in EVERY_TYPE.fields}


def plain(name: str, value: Any) -> Any:
    """A value as the kit wrote it: nested ones are JSON in the table."""
    if isinstance(KINDS.get(name), (T.StructType, T.MapType)) or name == "list":
        return from_json(KINDS[name], json.loads(value) if isinstance(value, str) else value)
    return value


def from_json(kind: T.DataType, value: Any) -> Any:
    """A nested value from its JSON."""
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return {field.name: from_json(field.dataType, value[field.name]) for field in kind.fields}
    if isinstance(kind, T.MapType):
        return [(key, from_json(kind.valueType, item)) for key, item in value.items()]
    if isinstance(kind, T.ArrayType):
        return [from_json(kind.elementType, item) for item in value]
    if isinstance(kind, T.DecimalType):
        return Decimal(value)
    if isinstance(kind, T.TimestampType):
        return datetime.datetime.fromisoformat(value)
    return value
