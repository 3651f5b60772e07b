"""What the source `postgres` refuses, a server that goes away, and statements that lock the table."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable

from spark_ext.errors import ConfigurationError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.source import Postgres
from tests.servers.postgres import PASSWORD, Database
from tests.sources.postgres.postgres_runs import ids, options, run, to_rest
from tests.support.jobs import JobHarness
from tests.support.refusals import delta_job, failures, first_epoch
from tests.support.waiting import until


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
        Postgres(options(table, **given))


def test_a_query_whose_key_repeats_does_not_hang(table: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"more than . rows have the same key '1'"):
        to_rest(run(table, limit=3, query="SELECT 1 AS id, word FROM t", key="id"))


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


QUEUED = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"


@contextmanager
def awaited(database: Database, statement: str) -> Iterator[None]:
    """A statement that waits for a lock on the table; it has ended at the end."""
    thread = threading.Thread(target=database.run, args=(statement,))
    thread.start()
    try:
        until(lambda: database.column(QUEUED) == [1], "the statement to wait for its lock")
        yield
    finally:
        thread.join(60)
    assert not thread.is_alive()


def test_a_reader_behind_a_table_change_ends_and_lets_it_happen(table: Database) -> None:
    schema = columns("id bigint, word string")
    found = run(table, schema=schema, limit=6, rows_per_channel="5", lock_timeout="300 ms")
    assert found.epoch()
    with awaited(table, "ALTER TABLE t ADD more int"):
        with pytest.raises(StorageError, match="a lock on the table was not granted in time"):
            found.epoch()
        # As after a failed query: the planner's process ends, its snapshot with it, and the statement has its turn.
        found.restart()
    found.offset = found.before
    to_rest(found)
    assert ids(found) == list(range(1, 21))


def test_a_planner_waits_for_a_lock_only_so_long(table: Database) -> None:
    with table.connect() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE t")
        with pytest.raises(StorageError, match="a lock on the table was not granted in time"):
            run(table, lock_timeout="100 ms").epoch()
    found = run(table)
    to_rest(found)
    assert ids(found) == list(range(1, 21))


def test_a_job_continues_after_a_change_of_its_table(lab: JobHarness, table: Database) -> None:
    reader = lab.spark.readStream.format("postgres").options(uid="in", table="t", **table.options)
    limits = reader.options(max_rows_per_epoch=1, rows_per_channel=5, readers=1, lock_timeout="500 ms")
    running = delta_job(lab, limits.load().select("id", "word"), restart_backoff="10 ms").start()
    first_epoch(lab)
    with awaited(table, "ALTER TABLE t ADD more int"):
        until(lambda: failures(running), "a reader to give up")
    assert running.await_termination().finished
    assert any("a lock on the table was not granted in time" in what for what, _ in failures(running))
    assert sorted(DeltaTable(lab.folder / "out").to_pyarrow_table()["id"].to_pylist()) == list(range(1, 21))
