"""The source `postgres`: keys of several columns, in the order in which rows are compared."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from spark_ext.clients.postgres.connection import ConnectionOptions, Server
from spark_ext.errors import ConfigurationError, DataError, ReplayError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel
from spark_ext.sources.postgres.key import Key
from spark_ext.sources.postgres.ranges import KeyRange, cut, parse
from spark_ext.sources.postgres.relation import look_up
from spark_ext.sources.postgres.snapshot import View
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database, PostgresServer
from tests.sources.postgres.postgres_runs import to_end_with_replays, to_rest
from tests.sources.postgres.test_keys import KEYS

KINDS = [
    ("bigint", "numeric"),
    ("text", "bigint"),
    ("numeric", "text C", "date"),
    ("boolean", "uuid"),
    ("char", "real"),
]


@pytest.fixture(scope="module")
def german(postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.german()
    yield made
    postgres.drop(made)


def made(connection: psycopg.Connection[Any], kinds: tuple[str, ...]) -> None:
    names = ", ".join(f"k{n}" for n in range(len(kinds)))
    definitions = ", ".join(f"k{n} {KEYS[kind][0]}" for n, kind in enumerate(kinds))
    connection.execute(f"DROP TABLE IF EXISTS c; CREATE TABLE c ({definitions}, PRIMARY KEY ({names}))")


def fill(connection: psycopg.Connection[Any], kinds: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """As many of the rows as are different to PostgreSQL."""
    places = range(len(kinds))
    casts = ", ".join(f"v.k{n}::{KEYS[kinds[n]][0].split(' COLLATE')[0]}" for n in places)
    arrays = ", ".join("%s::text[]" for _ in places)
    names = ", ".join(f"k{n}" for n in places)
    insert = f"INSERT INTO c SELECT {casts} FROM unnest({arrays}) v({names}) ON CONFLICT DO NOTHING"
    connection.execute(insert, [[row[n] for row in rows] for n in places])


def rows_of(kinds: tuple[str, ...], least: int, most: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """Rows whose first columns repeat, so that the further ones decide."""
    few = st.sampled_from(["1", "2", "3"])
    first = [few if kind in ("bigint", "numeric") else KEYS[kind][1] for kind in kinds[:-1]]
    parts = [*first, KEYS[kinds[-1]][1]]
    return st.lists(st.tuples(*parts), min_size=least, max_size=most)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_each_key_is_in_exactly_one_range_wherever_a_run_was_interrupted(
    german: Database, kinds: tuple[str, ...]
) -> None:
    view = View(Server.of(ConnectionOptions(uid="in", dsn=german.dsn), "test"), "test", 1000)
    with german.connect() as connection:
        made(connection, kinds)

        @given(rows_of(kinds, 1, 40), st.integers(2, 8), st.booleans(), st.randoms(use_true_random=False))
        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(rows: list[tuple[str, ...]], wide: int, analyzed: bool, chance: random.Random) -> None:
            view.release()  # of an example that failed
            connection.execute("TRUNCATE c")
            fill(connection, kinds, rows)
            if analyzed:
                connection.execute("ANALYZE c")
            done: list[KeyRange] = []
            relation = look_up(view.connection, '"c"', True, None, "test")
            for _ in range(3):
                ranges = cut(view.connection, relation, wide, done)
                done += chance.sample(ranges, chance.randint(0, len(ranges)))
                wide = chance.randint(2, 8)
            done += cut(view.connection, relation, wide, done)
            # As they are stored, and read again.
            done = [parse(one.id(relation.key, "1.2.3.4"))[1] for one in done]
            conditions = [
                "("
                + (f"{relation.key.compared('>=', one.low)} AND " if one.low is not None else "")
                + relation.key.compared("<=" if one.last else "<", one.high)
                + ")::int"
                for one in done
            ]
            count = " + ".join(conditions) or "0"
            query = sql.SQL(f"SELECT * FROM (SELECT t::text, {count} AS n FROM c t) f WHERE n <> 1")
            assert not view.connection.execute(query).fetchall()
            view.release()

        try:
            check()
        finally:
            view.lost()


@pytest.mark.parametrize("way", [{}, {"incremental": "xmin"}], ids=["bounded", "xmin"])
def test_rows_are_read_once_with_a_restart_at_every_point(german: Database, way: dict[str, str]) -> None:
    """Ten rows of each first column, limits that cut within them, and numbers that no float has."""
    with german.connect() as connection:
        connection.execute(
            "DROP TABLE IF EXISTS c; CREATE TABLE c (a text, b numeric, word text, PRIMARY KEY (a, b)); "
            "INSERT INTO c SELECT chr(65 + n % 7), 123456789012345678901234567890 + n / 10.0, 'w' || n "
            "FROM generate_series(1, 70) n; ANALYZE c"
        )
    found = SourceRun(
        Postgres,
        {"uid": "in", "dsn": german.dsn, "table": "c", "rows_per_channel": "9", "poll_interval": "0", **way},
        schema=columns("a string, b string, word string"),
        limits=[{"max_rows_per_epoch": "4", "readers": "2"}],
    )
    if way:
        idle = 0
        while idle < 3:
            idle = 0 if found.epoch() else idle + 1
            found.replay()
    else:
        to_end_with_replays(found)
        assert found.offset.ended
    rows = found.trace.all_rows().to_pylist()
    assert sorted(row["word"] for row in rows) == sorted(f"w{n}" for n in range(1, 71))
    assert "123456789012345678901234567897.0000000000000000" in {row["b"] for row in rows}


@pytest.fixture
def table(database: Database) -> Database:
    database.run(
        "CREATE TABLE t (a int, b text, word text, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT n / 4, 'b' || n % 4, 'w' || n FROM generate_series(0, 19) n",
        "ANALYZE t",
    )
    return database


def run(database: Database, **more: str) -> SourceRun:
    options = {"uid": "pg", "dsn": database.dsn, "table": "t", "poll_interval": "0", **more}
    return SourceRun(Postgres, options, limits=[{"max_rows_per_epoch": "3", "readers": "2"}])


def test_positions_are_lists_and_can_be_given(table: Database) -> None:
    found = run(table)
    assert found.epoch()
    (name,) = found.offset.running
    assert json.loads(name)[0] == ["a", "b"]
    assert found.offset.running[name].at["upto"] == ["0", "b3"]
    assert found.seek(name, [4, "b2"]) == {"upto": ["4", "b2"]}
    assert found.seek(name, {"upto": ["4", "b2"]}) == {"upto": ["4", "b2"]}
    for wrong in ("4", ["4"], ["4", "b", "c"], ["x", "b"], [None, "b"], [True, "b"], ["9", "b"], [["4"], "b"], 4):
        with pytest.raises(ConfigurationError, match=r"a list of values of 'a, b' up to \(4, b3\)"):
            found.seek(name, wrong)
    to_rest(found)
    assert [row["word"] for row in found.trace.rows(name).to_pylist()] == ["w0", "w1", "w2", "w18", "w19"]


@pytest.mark.parametrize("way", [{}, {"incremental": "xmin"}], ids=["bounded", "xmin"])
@pytest.mark.parametrize("key", ["b,a", "id", "a,b,id"])
def test_another_key_in_a_later_run_is_refused(table: Database, way: dict[str, str], key: str) -> None:
    """With increments as well: the ranges that were planned are of the other key."""
    table.run("ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY UNIQUE")
    found = run(table, key="a,b", **way)
    assert found.epoch()
    given = {"uid": "pg", "dsn": table.dsn, "table": "t", "poll_interval": "0", **way, "key": key}
    other = Postgres(given)
    other.resume([Channel(name, None, state.data) for name, state in found.offset.running.items()], frozenset())
    shown = key.replace(",", ", ")
    with pytest.raises(ConfigurationError, match=f"divided by 'a, b' so far, but the key is now '{shown}'"):
        other.discover()


def test_a_changed_order_of_a_part_of_the_key_is_refused(table: Database) -> None:
    found = run(table)
    assert found.epoch()
    found.source._view.lost()  # type: ignore[attr-defined]
    table.run('ALTER TABLE t ALTER b TYPE text COLLATE "C"')
    found.restart()
    with pytest.raises(ReplayError, match="key 'a, b'"):
        to_rest(found)


def test_a_null_in_a_part_of_a_querys_key_is_refused(table: Database) -> None:
    options = {"uid": "pg", "dsn": table.dsn, "query": "SELECT a, nullif(b, 'b3') AS b FROM t", "key": "a, b"}
    found = SourceRun(Postgres, options, limits=[{}])
    with pytest.raises(DataError, match="key 'a, b' is null"):
        found.epoch()


def test_the_primary_key_is_the_default_unless_a_column_is_unique(table: Database) -> None:
    def key_of(**given: str) -> Key:
        made = Postgres({"uid": "pg", "dsn": table.dsn, "table": "t", **given})
        made.schema()
        return made._relation.key

    assert key_of() == Key(("a", "b"), ('pg_catalog."int4"', 'pg_catalog."text"'), ("int4", "text"))
    table.run("ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY UNIQUE")
    assert key_of().columns == ("id",)
    assert key_of(key="b, a").columns == ("b", "a")
    assert key_of(key="a,b,id").columns == ("a", "b", "id")


def test_statistics_of_the_first_column_give_whole_keys(database: Database) -> None:
    """Without frequent values; with them the rows are counted."""
    database.run(
        "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT n, 1 FROM generate_series(1, 3000) n",
        "ANALYZE t",
    )
    view = View(Server.of(ConnectionOptions(uid="in", dsn=database.dsn), "test"), "test", 1000)
    for rows in (300, 20):
        relation = look_up(view.connection, '"t"', True, None, "test")
        ranges = cut(view.connection, relation, rows)
        assert 3000 / rows <= len(ranges) <= 3 * 3000 / rows
        assert all(isinstance(one.high, tuple) and len(one.high) == 2 for one in ranges)
    view.release()
    database.run("UPDATE t SET b = a + 10, a = 7 WHERE a > 100", "ANALYZE t")
    relation = look_up(view.connection, '"t"', True, None, "test")
    assert 9 <= len(cut(view.connection, relation, 300)) <= 12
    view.lost()
