"""What the tests of `postgres_2pc` share: a table as the target of a sink."""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import psycopg
import psycopg.sql
import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.sinks.contract import Claim, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.testing.every_type import EVERY_TYPE
from spark_ext.testing.sink_driver import NUMBERS, Driver, Row, SinkTarget
from tests.servers.postgres import PASSWORD, Database
from tests.sinks.files_2pc.files_target import from_json

# The options by which rows come into the table.
WAYS: dict[str, dict[str, str]] = {
    "staged": {},
    "inline": {"inline_size": "1m"},
    "prepared": {"prepared": "true"},
    "upsert": {"mode": "upsert", "key": "id"},
}
LEFT = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE nspname = 'spark_ext' AND relkind = 'r' AND relname LIKE 's\\_%'
UNION ALL SELECT gid FROM pg_prepared_xacts WHERE database = current_database()
"""

FULL = """
CREATE OR REPLACE FUNCTION spark_ext.no_space() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_space BEFORE INSERT OR UPDATE ON spark_ext.epochs EXECUTE FUNCTION spark_ext.no_space()
"""

# Settings of a reader, whatever those of the database are.
READABLE = {"DateStyle": "ISO, YMD", "TimeZone": "UTC", "IntervalStyle": "postgres", "extra_float_digits": "1"}


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
        self._run(f"CREATE TABLE {self.table} (id bigint UNIQUE, name text CHECK (name <> 'bad'))")

    def spoiled(self, row: Row) -> Row:
        """Half of them are refused when they are staged, and half by the table's constraint."""
        if self.options.get("prepared"):
            raise NotImplementedError
        return {**row, "name": "bad" if row["id"] % 2 else "a\0b"}

    def leftovers(self) -> set[str]:
        return {row["relname"] for row in self.query(LEFT)}

    def drop(self) -> None:
        self._run(f"DROP TABLE {self.table}")

    def damage(self) -> Callable[[], object]:
        """The server says that its disk is full whenever an epoch is recorded."""
        self._run(FULL)
        return lambda: self._run("DROP TRIGGER no_space ON spark_ext.epochs")

    def _run(self, text: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(text)


def driver(database: Database, schema: T.StructType = NUMBERS, incarnation: int = 1, /, **options: str) -> Driver:
    return Driver(PostgresTarget(database, **options), schema=schema, incarnation=incarnation)


def written(sink: TwoPhaseCommitSink, schema: T.StructType, batch: pa.RecordBatch, epoch: int = 0) -> None:
    if not epoch:
        sink.validate(schema)
        sink.claim(Claim("out", "job", "job-1", 1, 0))
    part = sink.write(schema, iter([batch]), Task("out", "q", epoch, 0, 0, 1, 0))
    sink.commit(schema, Epoch("out", 0, "q", epoch, 1), [part])


KINDS = {field.name: field.dataType for field in EVERY_TYPE.fields}


def plain(name: str, value: Any) -> Any:
    if isinstance(KINDS.get(name), (T.StructType, T.MapType)) or name == "list":
        return from_json(json.loads(value) if isinstance(value, str) else value, KINDS[name])
    return value
