"""What the tests of the source `postgres` share: a table of twenty rows, and a run of the source over it."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database

INCREMENTS: dict[str, dict[str, str]] = {
    "xmin": {"incremental": "xmin"},
    "column": {"incremental": "column", "incremental_column": "id"},
}
"""The options by which a table is continued."""

GROWING = {**INCREMENTS, "repeated": {"incremental": "column", "incremental_column": "tick"}}
"""The same of `table`, also by a column whose values repeat."""

WAYS: dict[str, dict[str, str]] = {"bounded": {}, **INCREMENTS}
"""The options by which a table is read."""


def options(database: Database, **more: str) -> dict[str, str]:
    return {"uid": "pg", "dsn": database.dsn, "table": "t", "poll_interval": "0", **more}


def run(database: Database, *, schema: StructType | None = None, limit: int = 1_000_000, **more: str) -> SourceRun:
    limits = [{"max_rows_per_epoch": str(limit), "readers": "2"}]
    return SourceRun(Postgres, options(database, **more), schema=schema, limits=limits)


def ids(found: SourceRun) -> list[int]:
    return sorted(row["id"] for row in found.trace.all_rows().to_pylist())


def to_rest(found: SourceRun) -> None:
    """All epochs that there are; the source stands still afterwards."""
    while found.epoch():
        pass


def to_end_with_replays(found: SourceRun) -> None:
    """All epochs that there are, each of them planned by a new planner and read twice."""
    for _ in range(200):
        if not found.epoch():
            return
        found.replay()
    raise AssertionError(f"no end after 200 epochs: {found.offset.to_json()}")


@pytest.fixture
def table(database: Database) -> Database:
    database.run(
        "CREATE SEQUENCE ticks",
        "CREATE TABLE t (id bigserial PRIMARY KEY, word text, at timestamptz DEFAULT now(), "
        "tick bigint DEFAULT nextval('ticks') / 7)",
        "INSERT INTO t (word) SELECT 'w' || n FROM generate_series(1, 20) n",
        "ANALYZE t",
    )
    return database
