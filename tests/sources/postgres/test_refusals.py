"""What the source `postgres` refuses, and how it bears a server that goes away."""

from __future__ import annotations

import json

import pytest

from spark_ext.errors import ConfigurationError, StorageError
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.contract import Channel
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import drive
from tests.servers.postgres import PASSWORD, Database
from tests.sources.postgres.postgres_runs import ids, options, run, table, to_rest

__all__ = ["table"]  # a fixture


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"table": "nowhere"}, "does not exist"),
        ({"key": "nowhere"}, "key column 'nowhere' does not exist"),
        ({"key": "word"}, "'word' of .* is not unique and not null"),
        ({"table": "keyless"}, "no primary key by which"),
        ({"key": "word,at"}, "columns 'word,at' of .* are not unique and not null"),
        ({"key": "id,nowhere"}, "key column 'nowhere' does not exist"),
        ({"key": "id,id"}, "has a column twice"),
        ({"key": ","}, "key column ',' does not exist"),
        ({"columns": "id,nowhere"}, "column 'nowhere' does not exist; the columns are: id, word, at"),
        ({"where": "nowhere = 1"}, "option 'where'.*nowhere"),
        ({"where": "id"}, "option 'where'.*boolean"),
        ({"where": "id = 1) OR (id = 2"}, "option 'where'.*syntax"),
        ({"where": "true ORDER BY id"}, "option 'where'.*syntax"),
        ({"where": "true); DROP TABLE t; SELECT (true"}, "option 'where'"),
        ({"where": "count(*) > 1"}, "option 'where'.*aggregate"),
        ({"where": "id = 'x'"}, "option 'where'.*invalid input"),
        ({"table": "v", "key": "id", "incremental": "xmin"}, "a view or foreign table"),
        ({"incremental": "column", "incremental_column": "nowhere"}, "column 'nowhere' does not exist"),
        ({"password": "wrong" + PASSWORD}, "password authentication failed"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is(table: Database, given: dict[str, str], match: str) -> None:
    table.run("CREATE TABLE keyless (a int, b int UNIQUE)", "CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(ConfigurationError, match=match) as refused:
        Postgres(options(table, **given)).schema()
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"query": "SELECT 1"}, "either table or query"),
        ({"incremental": "column"}, "go together"),
        ({"table": "a b"}, "not a table's name"),
        ({"where": " "}, "'where'.*it is empty"),
        ({"table": "", "query": "SELECT 1 AS id", "where": "true"}, "where needs a table"),
        ({"columns": "id,word,id"}, "'columns'.*it has 'id' twice"),
        ({"statement_timeout": "soon"}, "'statement_timeout'.*not a duration"),
    ],
)
def test_options_that_do_not_go_together(table: Database, given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Postgres({name: value for name, value in options(table, **given).items() if value})


def test_another_key_in_a_later_run_is_refused(table: Database) -> None:
    table.run("CREATE UNIQUE INDEX ON t (word)", "ALTER TABLE t ALTER word SET NOT NULL")
    found = run(table, limit=3, rows_per_channel="5")
    assert found.epoch()
    other = Postgres(options(table, key="word"))
    other.resume([Channel(name, None, state.data) for name, state in found.offset.running.items()], frozenset())
    with pytest.raises(ConfigurationError, match="divided by 'id' so far"):
        other.discover()


def test_a_query_whose_key_repeats_does_not_hang(table: Database) -> None:
    given = {name: value for name, value in options(table).items() if name != "table"}
    given |= {"query": "SELECT 1 AS id, word FROM t", "key": "id", "max_rows_per_epoch": "3"}
    with pytest.raises(ConfigurationError, match=r"more than . rows have the same key '1'"):
        drive(Postgres, given, limits=[{"max_rows_per_epoch": "3"}])


def test_a_server_that_goes_away_is_transient_and_comes_back(table: Database) -> None:
    """Planned before and read after a restart of the server: the snapshot is gone, the rows are the same."""
    found = run(table, limit=6, rows_per_channel="5")
    assert found.epoch()
    table.server.stop()
    try:
        with pytest.raises(StorageError):
            found.epoch()
    finally:
        table.server.start()
    found.replay()
    to_rest(found)
    assert ids(found) == list(range(1, 21))


def test_positions_hold_no_secret_and_stay_small(table: Database) -> None:
    found = run(table, limit=3, rows_per_channel="5")
    assert found.epoch() and found.epoch()
    text = json.dumps(found.offset.to_json())
    assert PASSWORD not in text and len(text) < 2000
    assert SourceOffset.from_json(json.loads(text)).running


def test_odd_names(database: Database) -> None:
    database.run('CREATE SCHEMA "My Schema"', 'CREATE TABLE "My Schema"."T""1" ("Id" text PRIMARY KEY, "a b" int)')
    values = ["'", "\\", '"', "ä", "x' OR true --", ""]
    with database.connect() as connection:
        connection.cursor().executemany('INSERT INTO "My Schema"."T""1" VALUES (%s, 1)', [(value,) for value in values])
    found = run(database, limit=2, table='"My Schema"."T""1"', rows_per_channel="2")
    to_rest(found)
    assert sorted(row["Id"] for row in found.trace.all_rows().to_pylist()) == sorted(values)
