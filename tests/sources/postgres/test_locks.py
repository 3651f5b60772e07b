"""The source `postgres` beside statements that lock the table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable

from spark_ext.errors import StorageError
from spark_ext.schemas.ddl import columns
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import ids, run, table, to_rest
from tests.support.jobs import JobHarness
from tests.support.refusals import delta_job, failures, first_epoch
from tests.support.waiting import until

__all__ = ["table"]  # a fixture

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


def test_a_reader_behind_a_change_of_the_table_ends_by_name_and_lets_it_happen(table: Database) -> None:
    given = {"rows_per_channel": "5", "lock_timeout": "300 ms"}
    found = run(table, schema=columns("id bigint, word string"), limit=6, **given)
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
    """A change of the table that takes hours."""
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
