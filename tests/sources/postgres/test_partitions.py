"""The source `postgres` with increments over a table of partitions: what is attached is read, or refused by name."""

from typing import Any

import pytest

from spark_ext.errors import ReplayError
from spark_ext.sources.postgres.source import INCREMENT, Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import USER, Database
from tests.sources.postgres.postgres_runs import INCREMENTS, ids, options, run, to_rest

TABLE = (
    "CREATE TABLE t (id bigint, day int, word text, PRIMARY KEY (day, id)) PARTITION BY LIST (day)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1)",
    "INSERT INTO t SELECT n, 1, 'w' || n FROM generate_series(1, 20) n",
    "ANALYZE t",
)


def loaded(day: int, first: int, last: int) -> tuple[str, ...]:
    return (
        f"CREATE TABLE t_{day} (LIKE t INCLUDING ALL)",
        f"INSERT INTO t_{day} SELECT n, {day}, 'w' || n FROM generate_series({first}, {last}) n",
    )


def attached(day: int) -> str:
    return f"ALTER TABLE t ATTACH PARTITION t_{day} FOR VALUES IN ({day})"


def at(found: SourceRun) -> dict[str, Any]:
    position: dict[str, Any] = found.offset.running[INCREMENT].at
    return position


def read(database: Database, way: str, **more: Any) -> SourceRun:
    database.run(*TABLE)
    found = run(database, key="day,id", **more, **INCREMENTS[way])
    to_rest(found)
    database.run("INSERT INTO t VALUES (21, 1, 'more')")
    to_rest(found)
    assert ids(found) == list(range(1, 22))
    return found


@pytest.mark.parametrize("way", INCREMENTS)
@pytest.mark.parametrize("restart", [False, True])
def test_one_with_rows_already_passed_is_refused_when_attached(database: Database, way: str, restart: bool) -> None:
    found = read(database, way)
    first = 10 if way == "column" else 30
    database.run(*loaded(2, first, first + 4))
    database.run("INSERT INTO t VALUES (60, 1, 'later')")
    to_rest(found)
    database.run(attached(2))
    if restart:
        found.restart()
    with pytest.raises(ReplayError, match=r"the partition t_2 was attached to \"t\", and has rows") as refused:
        to_rest(found)
    assert "detach" in refused.value.do and "seek" in refused.value.do
    database.run("INSERT INTO t VALUES (61, 1, 'latest')")
    with pytest.raises(ReplayError, match="the partition t_2"):
        to_rest(found)
    before = ids(found)
    assert before == [*range(1, 22), 60]
    if not restart:
        found.seek(INCREMENT, at(found)["xid" if way == "xmin" else "value"])
        to_rest(found)
        assert ids(found) == [*before, 61]
        return
    database.run("ALTER TABLE t DETACH PARTITION t_2", "CREATE TABLE t_2b PARTITION OF t FOR VALUES IN (2)")
    database.run(f"INSERT INTO t SELECT id + {100 if way == 'column' else 0}, day, word FROM t_2")
    to_rest(found)
    assert len(ids(found)) == len(before) + 6


@pytest.mark.parametrize("way", INCREMENTS)
@pytest.mark.parametrize("restart", [False, True])
def test_new_partitions_with_new_rows_are_read(database: Database, way: str, restart: bool) -> None:
    """Empty when they come, filled and attached between two polls, or in one transaction; and some go."""
    found = read(database, way)
    for day, statements in enumerate(
        [
            ("CREATE TABLE t_2 PARTITION OF t FOR VALUES IN (2)", "INSERT INTO t VALUES (30, 2, 'x')"),
            (*loaded(3, 40, 49), attached(3)),
            ("BEGIN", *loaded(4, 50, 59), attached(4), "COMMIT"),
            ("ALTER TABLE t DETACH PARTITION t_1", "DROP TABLE t_3", "INSERT INTO t VALUES (70, 4, 'x')"),
            ("CREATE TABLE t_6 PARTITION OF t FOR VALUES IN (6) PARTITION BY RANGE (id)",),
            ("CREATE TABLE t_6a PARTITION OF t_6 DEFAULT", "INSERT INTO t VALUES (80, 6, 'x')"),
        ]
    ):
        database.run(*statements)
        if restart and day % 2:
            found.restart()
        to_rest(found)
        if restart:
            found.restart()
    assert ids(found) == [*range(1, 22), 30, *range(40, 60), 70, 80]
    assert at(found)["partitions"] == sorted(
        database.column("SELECT relid::oid::bigint FROM pg_partition_tree('t') WHERE isleaf")
    )


def test_one_attached_during_an_older_transaction_is_read_once(database: Database) -> None:
    """It is there in the step that stops before the open transaction, whose mark is older than the attachment."""
    found = read(database, "xmin")
    database.run(*loaded(2, 30, 34))
    with database.connect() as held, held.transaction():
        held.execute("INSERT INTO t VALUES (99, 1, 'late')")
        database.run(attached(2))
        to_rest(found)
        assert ids(found)[21:] == list(range(30, 35))
        database.run(*loaded(3, 40, 40), attached(3))
        to_rest(found)
    to_rest(found)
    assert ids(found)[21:] == [*range(30, 35), 40, 99]


@pytest.mark.parametrize("way", INCREMENTS)
def test_one_that_comes_during_the_ranges_is_refused_after_them(database: Database, way: str) -> None:
    database.run(*TABLE)
    given = options(database, rows_per_channel="4", key="day,id", **INCREMENTS[way])
    found = SourceRun(Postgres, given, limits=[{"max_rows_per_epoch": "4", "readers": "1"}], lag=0)
    database.run(*loaded(0, 10, 14))
    while len(ids(found)) < 8:
        assert found.epoch()
    found.source._view.lost()  # type: ignore[attr-defined]
    database.run(attached(0))
    found.restart()
    # In the order of the key, some of its rows come before what has been read, and all before the increment.
    with pytest.raises(ReplayError, match="t_0"):
        to_rest(found)


def test_conditions_and_privileges_of_the_table_hold_for_them(database: Database) -> None:
    """The source reads the table; a partition need not be its own to read, and only the rows that it reads count."""
    found = read(database, "xmin", where="t.id < 1000")
    database.run(*loaded(2, 2000, 2004), *loaded(3, 30, 34))
    database.run("INSERT INTO t VALUES (60, 1, 'later')")
    to_rest(found)
    database.run(attached(2))
    to_rest(found)
    with database.server.admin(database.name) as admin:
        admin.execute(f"ALTER TABLE t_3 OWNER TO postgres; ALTER TABLE t OWNER TO postgres; GRANT ALL ON t TO {USER}")
        admin.execute(attached(3))
    found.restart()
    with pytest.raises(ReplayError, match="the partition t_3"):
        to_rest(found)
