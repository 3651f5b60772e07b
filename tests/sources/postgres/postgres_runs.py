"""What the tests of the source `postgres` share: runs of the source over a table."""

from typing import Any

import psycopg
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql.types import StructType

from spark_ext.clients.postgres.connection import ConnectionOptions, Server
from spark_ext.sources.postgres.relation import Relation, look_up
from spark_ext.sources.postgres.snapshot import View
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database

INCREMENTS: dict[str, dict[str, Any]] = {
    "xmin": {"incremental": "xmin"},
    "column": {"incremental": "column", "incremental_column": "id"},
}
"""The options by which a table is continued."""

GROWING = {**INCREMENTS, "repeated": {"incremental": "column", "incremental_column": "tick"}}
"""The same of `table`, also by a column whose values repeat."""

WAYS: dict[str, dict[str, Any]] = {"bounded": {}, **INCREMENTS}
"""The options by which a table is read."""


def options(database: Database, **more: str) -> dict[str, str]:
    """Those of the table `t`, and others; an empty one is left out."""
    given = {"uid": "pg", "dsn": database.dsn, "table": "t", "poll_interval": "0", **more}
    return {name: value for name, value in given.items() if value}


def run(
    database: Database, *, schema: StructType | None = None, limit: int = 1_000_000, now: bool = False, **more: str
) -> SourceRun:
    """A run, for which a query is given as `query`; `now`: as AvailableNow."""
    given = options(database, **({"table": ""} if "query" in more else {}), **more)
    limits = [{"max_rows_per_epoch": str(limit), "readers": "2"}]
    return SourceRun(Postgres, given, schema=schema, limits=limits, available_now=now)


def rows(found: SourceRun) -> list[dict[str, Any]]:
    return found.trace.all_rows().to_pylist()


def few(examples: int) -> settings:
    """Of hypothesis, for tests that need a server for each example."""
    checks = list(HealthCheck)
    return settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=checks
    )


def view_of(database: Database) -> View:
    return View(Server.of(ConnectionOptions(uid="in", dsn=database.dsn), "test"), "test", 1000)


def the_table(connection: psycopg.Connection[Any], name: str) -> Relation:
    return look_up(connection, f'"{name}"', True, None, "test")


def ids(found: SourceRun) -> list[int]:
    return sorted(row["id"] for row in rows(found))


def to_rest(found: SourceRun) -> None:
    while found.epoch():
        pass


def to_end_with_replays(found: SourceRun) -> None:
    """All epochs that there are, each of them planned by a new planner and read twice."""
    for _ in range(200):
        if not found.epoch():
            return
        found.replay()
    raise AssertionError(f"no end after 200 epochs: {found.offset.to_json()}")
