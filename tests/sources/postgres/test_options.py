"""The source `postgres`: some of the columns, some of the rows, limits of time, and settings of the server."""

import random
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, ReplayError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_kit import PostgresWorld
from tests.sources.postgres.postgres_runs import WAYS, ids, options, rows, run, to_end_with_replays, to_rest


def resumed(found: SourceRun, database: Database, **more: str) -> Postgres:
    made = Postgres(options(database, **more))
    made.resume([Channel(name, None, state.data) for name, state in found.offset.running.items()], frozenset())
    return made


def test_only_the_named_columns_are_read_in_their_order(table: Database) -> None:
    assert Postgres(options(table, columns="word, id")).schema() == columns("word string, id bigint")
    found = run(table, columns="word")
    to_rest(found)
    assert found.trace.all_rows().column_names == ["word"]
    assert sorted(row["word"] for row in rows(found)) == sorted(f"w{n}" for n in range(1, 21))
    # Key and increasing column need not be among them.
    grown = run(table, columns="word", incremental="column", incremental_column="id")
    to_rest(grown)
    assert grown.trace.all_rows().num_rows == 20


def test_a_declared_column_that_is_not_among_them_is_refused(table: Database) -> None:
    with pytest.raises(ConfigurationError, match="column 'at' does not exist; the columns are: id, word"):
        run(table, schema=columns("id bigint, at timestamp"), columns="id,word").epoch()


def test_other_columns_in_a_later_run(table: Database) -> None:
    """What was read is known by the rows, whichever columns of them were read."""
    found = run(table, limit=5, rows_per_channel="5", columns="id")
    assert found.epoch()
    first = set(found.trace.batches)
    found._options["columns"] = "word,id"
    found.restart()
    to_rest(found)
    read = found.trace.batches
    assert sorted(n for one in read.values() for batch in one for n in batch["id"].to_pylist()) == list(range(1, 21))
    later = {tuple(batch.schema.names) for name in read.keys() - first for batch in read[name]}
    assert later == {("word", "id")}


def test_columns_of_a_query(table: Database) -> None:
    found = run(table, query="SELECT id, word, at FROM t", key="id", columns="word")
    to_rest(found)
    assert found.trace.all_rows().column_names == ["word"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_only_rows_of_the_condition_are_read(table: Database, way: dict[str, Any]) -> None:
    condition = "id % 3 = 1 OR word LIKE '%2' -- with a percent sign, and a comment"
    found = run(table, limit=2, rows_per_channel="5", where=condition, **way)
    wanted = [n for n in range(1, 21) if n % 3 == 1 or str(n).endswith("2")]
    if way:
        for _ in range(40):
            found.epoch()
        table.run("INSERT INTO t (word) SELECT 'w' || n FROM generate_series(21, 32) n")
        for _ in range(60):
            found.epoch()
        wanted += [22, 25, 28, 31, 32]
    else:
        to_end_with_replays(found)
        assert found.offset.ended
    assert ids(found) == wanted


def test_a_table_without_any_or_matching_rows_ends_at_once(table: Database) -> None:
    for where in ("word = 'nowhere'", ""):
        found = run(table, where=where)
        to_rest(found)
        assert found.offset.ended and ids(found) == []
        table.run("DELETE FROM t")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("where", ["id > 2", None])
def test_another_condition_in_a_later_run_is_refused(table: Database, way: dict[str, Any], where: str | None) -> None:
    """Rows of the new one that the ranges read so far did not have would be left out."""
    found = run(table, limit=3, rows_per_channel="5", where="id > 1", **way)
    assert found.epoch()
    more: dict[str, str] = way if where is None else {**way, "where": where}
    with pytest.raises(ReplayError, match="not what was read before"):
        list(resumed(found, table, **more).discover())
    list(resumed(found, table, **way, where="id > 1 ").discover())


def test_the_condition_is_a_part_of_what_a_job_remembers(table: Database) -> None:
    made: Any = Postgres(options(table, where=" id > 1 ", columns="id"))
    assert made.options.identity() == {
        "incremental": "none", "server": f"127.0.0.1:{table.server.port}/{table.name}", "table": "t", "where": "id > 1",
    }  # fmt: skip


def test_a_view_with_a_null_key_outside_of_the_condition_is_read(table: Database) -> None:
    table.run("CREATE VIEW v AS SELECT nullif(id, 7) AS id, word FROM t")
    found = run(table, table="v", key="id", where="word <> 'w7'")
    to_rest(found)
    assert len(ids(found)) == 19


def test_too_slow_a_statement_is_transient_and_names_the_option(table: Database) -> None:
    found = run(table, query="SELECT id, pg_sleep(1)::text AS s FROM t", key="id", statement_timeout="150")
    with pytest.raises(StorageError, match="longer than statement_timeout") as failed:
        found.epoch()
    assert "raise the option 'statement_timeout'" in failed.value.do


def test_a_limit_of_the_database_is_lifted_by_zero(table: Database) -> None:
    table.run(f'ALTER DATABASE "{table.name}" SET statement_timeout = 100')
    table.run("CREATE VIEW slow AS SELECT id, word, pg_sleep(0.02)::text AS s FROM t")
    slow = run(table, table="slow", key="id", columns="id")
    with pytest.raises(StorageError, match="statement_timeout"):
        to_rest(slow)
    patient = run(table, table="slow", key="id", columns="id", statement_timeout="0")
    to_rest(patient)
    assert ids(patient) == list(range(1, 21))


@pytest.mark.parametrize("what", ["table", "view", "query"])
def test_values_that_settings_show_in_other_ways(german_database: Database, what: str) -> None:
    """Rows are hashed as text, by the planner and by an executor, whatever the server's settings are."""
    german_database.run(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, took interval, day date, price float8, "
        "cost money, b bytea)",
        "INSERT INTO t SELECT n, '2024-03-30 23:30Z'::timestamptz + n * interval '1 hour', n * interval '-25:01:01.5', "
        "'2024-01-02'::date + n, n / 3.0, n / 4.0::float8::numeric, int4send(n) FROM generate_series(1, 30) n",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    ways: dict[str, dict[str, Any]] = {
        "table": {}, "view": {"table": "v", "key": "id"}, "query": {"query": "SELECT * FROM t", "key": "id"}
    }  # fmt: skip
    found = run(german_database, limit=7, **ways[what])
    to_end_with_replays(found)
    assert ids(found) == list(range(1, 31))
    row = rows(found)[0]
    assert row["at"].isoformat() == "2024-03-31T00:30:00+00:00" and row["price"] == 1 / 3
    assert row["took"] == "-25:01:01.5" and row["b"] == b"\0\0\0\1"


@pytest.mark.parametrize("key", ["at timestamptz", "at interval", "at date", "at timestamp"])
@pytest.mark.parametrize("variable", ["PGDATESTYLE", "PGTZ"])
def test_an_executor_with_another_environment_reads_the_same(
    german_database: Database, monkeypatch: pytest.MonkeyPatch, key: str, variable: str
) -> None:
    german_database.run(
        f"CREATE TABLE t ({key} PRIMARY KEY)",
        f"INSERT INTO t SELECT {'' if 'interval' in key else chr(39) + '2024-01-01' + chr(39) + '::timestamp +'} "
        "n * interval '25 hours' FROM generate_series(1, 30) n ON CONFLICT DO NOTHING",
        "ANALYZE t",
    )
    found = run(german_database, schema=columns("at string"), limit=4, rows_per_channel="5")
    assert found.epoch()
    monkeypatch.setenv(variable, {"PGDATESTYLE": "German", "PGTZ": "Asia/Kathmandu"}[variable])
    to_end_with_replays(found)
    read = [row["at"] for row in rows(found)]
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
    query = """SELECT * FROM "100%s" WHERE "%(id)s" LIKE 'a%'"""
    found = run(database, limit=3, query=query, key="%(id)s", rows_per_channel="4")
    to_end_with_replays(found)
    assert sorted(row["n"] for row in rows(found)) == list(range(3, 61, 3))
