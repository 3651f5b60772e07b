"""A table or record of `postgres_2pc` that others change, and a record of an older release."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.errors import FencedError, StateError
from spark_ext.testing.sink_driver import STATES, Driver, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget


@pytest.fixture(autouse=True)
def states_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATES, str(tmp_path / "states"))


def used(database: Database) -> PostgresTarget:
    """A table with one epoch."""
    target = PostgresTarget(database)
    driver = Driver(target)
    driver.claim()
    driver.run(0, numbered(0, 5))
    return target


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE out RENAME TO gone; CREATE TABLE out (LIKE gone)",
        "DELETE FROM spark_ext.sinks",
        "DELETE FROM spark_ext.epochs",
    ],
)
@pytest.mark.parametrize("rows", [5, 0], ids=["rows", "empty"])
def test_another_table_or_record_under_a_running_job_is_refused(database: Database, statement: str, rows: int) -> None:
    """As for a Delta table, in PostgreSQL."""
    target = used(database)
    database.run(statement)
    with pytest.raises(StateError, match="not the target that was claimed"):
        Driver(target).run(1, numbered(5, 5 + rows))


def test_another_table_while_the_job_is_stopped_is_refused_until_the_user_says_that_it_was_moved(
    database: Database,
) -> None:
    target = used(database)
    database.run("ALTER TABLE out RENAME TO gone; CREATE TABLE out AS TABLE gone")
    with pytest.raises(StateError, match=r"UPDATE spark_ext\.sinks SET target_oid = NULL"):
        Driver(target, incarnation=2).claim()
    database.run("UPDATE spark_ext.sinks SET target_oid = NULL")
    moved = Driver(target, incarnation=2)
    moved.claim()
    moved.run(1, numbered(5, 10))
    assert target.ids() == list(range(10))


def test_rows_are_everybodys(database: Database) -> None:
    target = used(database)
    database.run("TRUNCATE out")
    Driver(target).run(1, numbered(5, 10))
    assert target.ids() == list(range(5, 10))


def test_a_record_of_an_older_release_gets_the_new_columns(database: Database) -> None:
    """It has neither the start's random number nor the table's."""
    target = used(database)
    database.run("ALTER TABLE spark_ext.sinks DROP COLUMN start_id, DROP COLUMN target_oid")
    next_one = Driver(target, incarnation=2)
    next_one.claim()
    next_one.run(1, numbered(5, 10))
    assert target.ids() == list(range(10))
    with pytest.raises(FencedError, match="started twice"):
        Driver(target, incarnation=2, start=5).claim()
