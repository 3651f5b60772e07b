"""The source `postgres`: replays of epochs that were planned while others were writing."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ext.errors import DataError
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database

WAYS: list[dict[str, str]] = [{}, {"incremental": "column", "incremental_column": "at"}, {"incremental": "xmin"}]


@pytest.fixture
def table(database: Database) -> Database:
    database.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, at bigint GENERATED ALWAYS AS IDENTITY, word text)",
        "INSERT INTO t (id, word) SELECT 10 * n, 'w' || n FROM generate_series(1, 20) n",
    )
    return database


def run(database: Database, **more: str) -> SourceRun:
    return SourceRun(Postgres, {"uid": "in", "dsn": database.dsn, "table": "t", **more}, limits=[{"readers": "2"}])


def ids(found: SourceRun) -> list[Any]:
    return sorted(row["id"] for row in found.trace.all_rows().to_pylist())


def to_rest(found: SourceRun) -> None:
    idle = 0
    while idle < 3:
        idle = 0 if found.epoch() else idle + 1


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=["bounded", "xmin"])
def test_rows_of_transactions_that_were_open_at_the_plan_do_not_hinder_a_replay(
    table: Database, way: dict[str, str]
) -> None:
    """With keys among those that were planned, younger and older than what was committed then, and in savepoints."""
    with table.connect() as old, table.connect() as young:
        old.execute("BEGIN")
        old.execute("INSERT INTO t (id, word) VALUES (11, 'old'), (41, 'old')")
        old.execute("SAVEPOINT s")
        old.execute("INSERT INTO t (id, word) VALUES (12, 'old')")
        table.run("INSERT INTO t (id, word) VALUES (13, 'committed')")
        young.execute("BEGIN")
        young.execute("INSERT INTO t (id, word) VALUES (14, 'young')")
        young.execute("SAVEPOINT s")
        young.execute("INSERT INTO t (id, word) VALUES (15, 'young')")
        table.run("BEGIN; SAVEPOINT a; INSERT INTO t (id, word) VALUES (16, 'committed'); RELEASE a; COMMIT")
        found = run(table, **way)
        while not found.trace.all_rows().num_rows:
            assert found.epoch()
        old.execute("COMMIT")
        young.execute("COMMIT")
    found.replay()
    read = set(ids(found))
    assert {10, 200} <= read and not {11, 12, 14, 15, 41} & read


def test_many_transactions_behind_an_old_one_keep_positions_small(table: Database) -> None:
    """A transaction that has been open for long: those that have ended since are not all written down."""
    with table.connect() as old:
        old.execute("BEGIN")
        old.execute("INSERT INTO t (id, word) VALUES (11, 'old')")
        with table.connect() as writer:
            for number in range(300):
                writer.execute("INSERT INTO t (id, word) VALUES (%s, 'more')", (1000 + number,))
        found = run(table)
        assert found.epoch()
        assert len(found.offset.to_json()) < 8000
        found.replay()
    to_rest(found)
    assert len(ids(found)) == 320


def test_a_view_is_read_by_a_growing_column(table: Database) -> None:
    """Its rows do not say who wrote them."""
    table.run("CREATE VIEW v AS SELECT * FROM t")
    found = run(table, table="v", key="id", incremental="column", incremental_column="at")
    to_rest(found)
    table.run("INSERT INTO t (id, word) VALUES (500, 'more')")
    while 500 not in ids(found):
        found.epoch()
    found.replay()
    assert ids(found) == [*range(10, 201, 10), 500]


@pytest.mark.parametrize("what", ["query", "table"])
def test_a_null_in_the_key_of_a_query_or_view_is_refused(table: Database, what: str) -> None:
    """No range holds it: the row would be left out without a word. Of a table's key the server sees to it."""
    select = "SELECT nullif(id, 70) AS id, word FROM t"
    table.run(f"CREATE VIEW v AS {select}")
    given = {"query": select} if what == "query" else {"table": "v"}
    found = SourceRun(Postgres, {"uid": "in", "dsn": table.dsn, "key": "id", **given}, limits=[{"readers": "2"}])
    with pytest.raises(DataError, match="'id' is null"):
        to_rest(found)
