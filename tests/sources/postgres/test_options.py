"""The source `postgres`: some of the columns, some of the rows, and limits of time."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, ReplayError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import WAYS, ids, options, run, table, to_end_with_replays, to_rest

__all__ = ["table"]  # a fixture


def resumed(found: SourceRun, database: Database, **more: str) -> Postgres:
    """A later start with other options."""
    made = Postgres(options(database, **more))
    made.resume([Channel(name, None, state.data) for name, state in found.offset.running.items()], frozenset())
    return made


# -- columns ---------------------------------------------------------------------------------------------------------


def test_only_the_named_columns_are_read_in_their_order(table: Database) -> None:
    made = Postgres(options(table, columns="word, id"))
    assert made.schema() == columns("word string, id bigint")
    found = run(table, columns="word")
    to_rest(found)
    assert found.trace.all_rows().column_names == ["word"]
    assert sorted(row["word"] for row in found.trace.all_rows().to_pylist()) == sorted(f"w{n}" for n in range(1, 21))
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
    given = {"table": "", "query": "SELECT id, word, at FROM t", "key": "id", "columns": "word"}
    found = SourceRun(Postgres, {name: value for name, value in options(table, **given).items() if value}, limits=[{}])
    to_rest(found)
    assert found.trace.all_rows().column_names == ["word"]


# -- where -----------------------------------------------------------------------------------------------------------


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


def test_a_condition_that_no_row_has_ends_the_source(table: Database) -> None:
    found = run(table, where="word = 'nowhere'")
    to_rest(found)
    assert found.offset.ended and found.trace.all_rows().num_rows == 0


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
        "incremental": "none",
        "server": f"127.0.0.1:{table.server.port}/{table.name}",
        "table": "t",
        "where": "id > 1",
    }


def test_a_view_with_a_null_key_outside_of_the_condition_is_read(table: Database) -> None:
    table.run("CREATE VIEW v AS SELECT nullif(id, 7) AS id, word FROM t")
    found = run(table, table="v", key="id", where="word <> 'w7'")
    to_rest(found)
    assert len(ids(found)) == 19


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_transient_and_names_the_option(table: Database) -> None:
    given = {"table": "", "query": "SELECT id, pg_sleep(1)::text AS s FROM t", "key": "id"}
    given = {name: value for name, value in options(table, **given, statement_timeout="150").items() if value}
    found = SourceRun(Postgres, given, limits=[{}])
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
