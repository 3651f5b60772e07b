"""The source `postgres` beside settings of the server, and beside texts that look like a client's placeholders."""

from __future__ import annotations

import random

import pytest

from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_kit import PostgresWorld
from tests.sources.postgres.postgres_runs import ids, options, run, to_end_with_replays, to_rest


@pytest.mark.parametrize("what", ["table", "view", "query"])
def test_values_that_settings_show_in_other_ways_are_planned_and_read_alike(
    german_database: Database, what: str
) -> None:
    """Rows are hashed as text, by the planner and by an executor, whatever the server's settings are."""
    german_database.run(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, took interval, day date, price float8, "
        "cost money, b bytea)",
        "INSERT INTO t SELECT n, '2024-03-30 23:30Z'::timestamptz + n * interval '1 hour', n * interval '-25:01:01.5', "
        "'2024-01-02'::date + n, n / 3.0, n / 4.0::float8::numeric, int4send(n) FROM generate_series(1, 30) n",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    more = {"table": {}, "view": {"table": "v", "key": "id"}, "query": {"query": "SELECT * FROM t", "key": "id"}}[what]
    given = {name: value for name, value in options(german_database).items() if what != "query" or name != "table"}
    found = SourceRun(Postgres, {**given, **more}, limits=[{"max_rows_per_epoch": "7"}])
    to_end_with_replays(found)
    assert ids(found) == list(range(1, 31))
    row = found.trace.all_rows().to_pylist()[0]
    assert row["at"].isoformat() == "2024-03-31T00:30:00+00:00" and row["price"] == 1 / 3
    assert row["took"] == "-25:01:01.5" and row["b"] == b"\0\0\0\1"


@pytest.mark.parametrize("key", ["at timestamptz", "at interval", "at date", "at timestamp"])
@pytest.mark.parametrize("variable", ["PGDATESTYLE", "PGTZ"])
def test_an_executor_with_another_environment_reads_the_same_rows(
    german_database: Database, monkeypatch: pytest.MonkeyPatch, key: str, variable: str
) -> None:
    """Libpq takes settings from the environment of each process."""
    german_database.run(
        f"CREATE TABLE t ({key} PRIMARY KEY)",
        f"INSERT INTO t SELECT {'' if 'interval' in key else chr(39) + '2024-01-01' + chr(39) + '::timestamp +'} "
        "n * interval '25 hours' FROM generate_series(1, 30) n ON CONFLICT DO NOTHING",
        "ANALYZE t",
    )
    given = options(german_database, rows_per_channel="5")
    found = SourceRun(Postgres, given, schema=columns("at string"), limits=[{"max_rows_per_epoch": "4"}])
    assert found.epoch()
    monkeypatch.setenv(variable, {"PGDATESTYLE": "German", "PGTZ": "Asia/Kathmandu"}[variable])
    to_end_with_replays(found)
    read = [row["at"] for row in found.trace.all_rows().to_pylist()]
    assert len(read) == len(set(read)) == german_database.column("SELECT count(*) FROM t")[0]


@pytest.mark.parametrize("way", [{}, {"incremental": "xmin"}, {"incremental": "column", "incremental_column": "at"}])
def test_the_contract_holds_with_other_settings(german_database: Database, way: dict[str, str]) -> None:
    """Planned, read, interrupted and read again, with a time as key as well."""
    world = PostgresWorld(german_database, **way)
    german_database.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (at), ADD UNIQUE (id)", "ANALYZE t")
    trace = drive(lambda given: world.source(**given), {}, rng=random.Random(5), available_now=bool(way))
    assert sorted(row["id"] for row in trace.all_rows().to_pylist()) == [n * 3 for n in range(1, 44)]


def test_a_percent_sign_in_keys_names_and_queries(database: Database) -> None:
    """Statements are composed, and nothing in them is taken for a place for a parameter."""
    database.run(
        'CREATE TABLE "100%s" ("%(id)s" text PRIMARY KEY, n int)',
        "INSERT INTO \"100%s\" SELECT chr(97 + n % 3) || '%' || n || '%s%(x)s%%', n FROM generate_series(1, 60) n",
        'ANALYZE "100%s"',
    )
    every = run(database, limit=7, table='"100%s"', rows_per_channel="5")
    to_rest(every)
    assert sorted(row["n"] for row in every.trace.all_rows().to_pylist()) == list(range(1, 61))
    more = {"query": """SELECT * FROM "100%s" WHERE "%(id)s" LIKE 'a%'""", "key": "%(id)s", "rows_per_channel": "4"}
    given = {name: value for name, value in options(database, **more).items() if name != "table"}
    found = SourceRun(Postgres, given, limits=[{"max_rows_per_epoch": "3"}])
    to_end_with_replays(found)
    assert sorted(row["n"] for row in found.trace.all_rows().to_pylist()) == list(range(3, 61, 3))
