"""The source `postgres` with `incremental=column`, where rows come with a value that others had before."""

import uuid
from collections import Counter
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, ReplayError
from spark_ext.sources.postgres.source import INCREMENT
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import INCREMENTS, ids, rows, run, to_rest

BY_DAY: dict[str, Any] = {"incremental": "column", "incremental_column": "day"}


def days(database: Database, kind: str = "date", value: str = "current_date", more: str = "") -> None:
    database.run(
        f"CREATE TABLE t (id bigserial PRIMARY KEY, word text, day {kind} DEFAULT {value}{more})",
        "INSERT INTO t (word) SELECT 'w' FROM generate_series(1, 5)",
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "current_date"), ("timestamptz", "date_trunc('year', now())"), ("int", "7"), ("numeric", "1.5"),
        ("text", "'b'"), ("uuid", "'00000000-0000-7000-8000-000000000000'"),
    ],
)  # fmt: skip
def test_rows_that_come_with_the_last_value_are_read(database: Database, kind: str, value: str) -> None:
    days(database, kind, value)
    found = run(database, **BY_DAY)
    to_rest(found)
    for number, expected in ((1, 6), (2, 8)):
        database.run(f"INSERT INTO t (word) SELECT 'late' FROM generate_series(1, {number})")
        assert found.epoch(), "the value is not past, and nothing is waited for"
        found.replay()
        to_rest(found)
        found.restart()
        to_rest(found)
        assert ids(found) == list(range(1, expected + 1))


def test_a_key_that_does_not_grow(database: Database) -> None:
    """The second part of the mark is the transaction: keys may be in any order, and of several columns."""
    database.run("CREATE TABLE t (day date, id uuid, PRIMARY KEY (day, id))")
    found = run(database, limit=3, **BY_DAY)
    for number in range(4):
        added = ", ".join(f"(date '2024-01-01' + {number // 2}, '{uuid.uuid4()}')" for _ in range(5))
        database.run(f"INSERT INTO t VALUES {added}")
        to_rest(found)
        found.restart()
    assert sorted(row["id"] for row in rows(found)) == sorted(database.column("SELECT id::text FROM t"))


@pytest.mark.parametrize("of", ["table", "view"])
def test_an_available_now_run_ends_beside_a_writer(database: Database, of: str) -> None:
    """It reads what was there when it began; the next one the rest."""
    days(database, "int", "1")
    database.run("CREATE VIEW v AS SELECT * FROM t")
    more: dict[str, Any] = {"table": "v", "key": "id"} if of == "view" else {}
    found = run(database, limit=2 if of == "table" else 1000, now=True, **more, **BY_DAY)
    while found.epoch():
        database.run("INSERT INTO t (word) VALUES ('meanwhile')")
    assert ids(found) == [1, 2, 3, 4, 5]
    for _ in range(2):
        database.run("INSERT INTO t (word) VALUES ('then')")
        found.restart()
        to_rest(found)
    assert ids(found) == sorted(database.column("SELECT id FROM t"))


@pytest.mark.parametrize(("way", "times"), [({}, 2), ({"incremental_unique": "true"}, 1)])
def test_an_update_of_a_row_with_the_last_value(database: Database, way: dict[str, Any], times: int) -> None:
    """Is read as another row, as by its transaction; not where values are said to be unique."""
    days(database, "bigint", "currval('t_id_seq')")
    found = run(database, **BY_DAY, **way)
    to_rest(found)
    database.run("UPDATE t SET word = 'new' WHERE id >= 4")
    to_rest(found)
    assert Counter(ids(found)) == Counter({1: 1, 2: 1, 3: 1, 4: 1, 5: times})


def test_unique_values_need_no_second_part(table: Database) -> None:
    """By an index on the column, or as the key of a view; an update of the last row is not seen."""
    table.run("CREATE VIEW v AS SELECT * FROM t")
    ways: list[dict[str, Any]] = [{}, {"table": "v", "key": "id"}]
    for more in ways:
        found = run(table, **INCREMENTS["column"], **more)
        to_rest(found)
        table.run("UPDATE t SET word = 'new' WHERE id = (SELECT max(id) FROM t)")
        to_rest(found)
        assert "xid" not in found.offset.running[INCREMENT].at
        assert ids(found) == sorted(table.column("SELECT id FROM t"))
        table.run("INSERT INTO t (word) VALUES ('more')")
        to_rest(found)
        assert ids(found) == sorted(table.column("SELECT id FROM t"))


@pytest.mark.parametrize("most", [1000, 3])
@pytest.mark.parametrize("key", ["id", "id, word"])
def test_rows_of_a_view_are_known_by_their_keys(
    database: Database, monkeypatch: pytest.MonkeyPatch, most: int, key: str
) -> None:
    """They do not say who wrote them. Of a value of too many rows nothing more is read until it is past."""
    monkeypatch.setattr("spark_ext.sources.postgres.increments.MOST_KEYS", most)
    days(database, "int", "1")
    database.run("CREATE VIEW v AS SELECT * FROM t")
    given = {"table": "v", "key": key, **BY_DAY}
    found = run(database, limit=3, **given)
    to_rest(found)
    assert ids(found) == ([1, 2, 3, 4, 5] if most > 5 else [])
    database.run("INSERT INTO t (day, word) VALUES (1, 'a'), (2, 'b')", "UPDATE t SET word = 'w' WHERE id < 3")
    to_rest(found)
    found.replay()
    assert ids(found) == [1, 2, 3, 4, 5, 6, 7], "the last value has few rows"
    found.restart()
    database.run("INSERT INTO t (day, word) SELECT 2, 'c' FROM generate_series(1, 4)")
    to_rest(found)
    assert ids(found) == list(range(1, 12 if most > 5 else 8))
    database.run("INSERT INTO t (day, word) VALUES (3, 'd')")
    to_rest(found)
    assert ids(found) == list(range(1, 13))
    every = run(database, incremental_unique="true", **given)
    to_rest(every)
    assert ids(every) == list(range(1, 13))


def test_seek_passes_the_rows_that_are_there(database: Database) -> None:
    """Of the value; those that come with it later are read. A position that was read before is taken as it was."""
    days(database)
    found = run(database, **BY_DAY)
    to_rest(found)
    before = found.offset.running[INCREMENT].at
    database.run("INSERT INTO t (word) VALUES ('passed')")
    (today,) = database.column("SELECT current_date::text")
    found.seek(INCREMENT, today)
    database.run("INSERT INTO t (word) VALUES ('read')")
    to_rest(found)
    assert ids(found) == [1, 2, 3, 4, 5, 7]
    found.seek(INCREMENT, {"value": before["value"], "xid": before["xid"]})
    to_rest(found)
    assert ids(found) == [1, 2, 3, 4, 5, 6, 7, 7]


def test_a_partition_with_rows_of_the_last_value(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int, day int, part int, PRIMARY KEY (part, id)) PARTITION BY LIST (part)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)",
        "INSERT INTO t VALUES (1, 7, 1)",
        "CREATE TABLE old (id int NOT NULL, day int, part int NOT NULL)",
        "CREATE TABLE new (LIKE old)",
        "INSERT INTO old VALUES (2, 7, 2)",
    )
    found = run(database, **BY_DAY)
    to_rest(found)
    database.run("INSERT INTO new VALUES (3, 7, 3)", "ALTER TABLE t ATTACH PARTITION new FOR VALUES IN (3)")
    to_rest(found)
    assert ids(found) == [1, 3]
    database.run("ALTER TABLE t ATTACH PARTITION old FOR VALUES IN (2)")
    with pytest.raises(ReplayError, match="old was attached"):
        to_rest(found)


@pytest.mark.parametrize("kind", ["json", "point", '"char"'])
def test_a_column_that_cannot_increase_is_refused(table: Database, kind: str) -> None:
    table.run(f"ALTER TABLE t ADD day {kind}")
    with pytest.raises(ConfigurationError, match="column 'day' cannot increase"):
        run(table, **BY_DAY).epoch()
