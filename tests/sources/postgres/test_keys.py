"""The source `postgres`: every type of key that PostgreSQL can order, in its own order and not in that of its text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from spark_ext.clients.postgres.connection import ConnectionOptions, Server
from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.ranges import KeyRange, cut
from spark_ext.sources.postgres.relation import Relation, look_up
from spark_ext.sources.postgres.snapshot import View
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database, PostgresServer
from tests.sources.postgres.postgres_runs import to_end_with_replays

INTEGER = st.integers(-(10**6), 10**6)
FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
WORD = st.text(st.sampled_from("aAäZz_-é \\'\"%{},19"), max_size=6)
SECONDS = st.integers(-(10**10), 10**10)


@pytest.fixture(scope="module")
def german(postgres: PostgresServer) -> Iterator[Database]:
    """One database for all keys, whose values are shown otherwise than in the sessions of the source."""
    made = postgres.german()
    yield made
    postgres.drop(made)


def of(values: st.SearchStrategy[Any], shape: str = "{}") -> st.SearchStrategy[str]:
    return values.map(shape.format)


def days(number: int) -> str:
    return f"{2000 + number % 997:04}-{1 + number % 12:02}-{1 + number % 28:02}"


KEYS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "smallint": ("smallint", of(st.integers(-32768, 32767))),
    "bigint": ("bigint", of(st.integers(-(2**63), 2**63 - 1))),
    "numeric": ("numeric", of(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9))),
    "numeric(20,0)": ("numeric(20,0)", of(st.integers(0, 10**19))),
    "real": ("real", of(FLOAT)),
    "double": ("double precision", of(st.floats())),
    "money": ("money", of(st.integers(-(10**9), 10**9), "{},05")),
    "oid": ("oid", of(st.integers(0, 2**32 - 1))),
    "inet": ("inet", of(st.ip_addresses())),
    "cidr": ("cidr", of(st.ip_addresses(v=4))),
    "macaddr": ("macaddr", of(st.integers(0, 2**48 - 1), "{:012x}")),
    "uuid": ("uuid", of(st.uuids())),
    "boolean": ("boolean", of(st.booleans())),
    "text": ("text", WORD),
    "text C": ('text COLLATE "C"', WORD),
    "text by code": ("text COLLATE pg_c_utf8", WORD),
    "varchar": ("varchar(9)", WORD),
    "char": ("char(5)", st.text(st.sampled_from("aAäZ 19"), max_size=5)),
    "one byte": ('"char"', st.sampled_from("azAZ019%- ")),
    "name": ("name", WORD),
    "date": ("date", of(INTEGER.map(days))),
    "timestamp": ("timestamp", of(SECONDS.map(lambda n: f"{days(n)} {n % 24:02}:{n % 60:02}:00.{n % 1000:03}"))),
    "timestamptz": ("timestamptz", of(SECONDS.map(lambda n: f"{days(n)} {n % 24:02}:00:00{n % 25 - 12:+03}"))),
    "time": ("time", of(SECONDS.map(lambda n: f"{n % 24:02}:{n % 60:02}:00.{n % 1000:03}"))),
    "timetz": ("timetz", of(SECONDS.map(lambda n: f"{n % 24:02}:{n % 60:02}:00{n % 25 - 12:+03}"))),
    "interval": ("interval", of(SECONDS.map(lambda n: f"{n % 40 - 20} mons {n % 99 - 50} days {n % 10**6} sec"))),
    "jsonb": ("jsonb", of(st.one_of(INTEGER, st.lists(st.integers(0, 99), max_size=3)))),
    "bytea": ("bytea", of(st.binary(max_size=5).map(bytes.hex), "\\x{}")),
    "bit": ("bit(7)", of(st.integers(0, 127), "{:07b}")),
    "varbit": ("varbit", of(st.integers(0, 999), "{:b}")),
    "pg_lsn": ("pg_lsn", of(st.integers(0, 2**32 - 1), "{0:X}/{0:X}")),
    "int4range": ("int4range", of(st.tuples(INTEGER, st.integers(1, 99)).map(lambda p: f"[{p[0]},{sum(p)})"))),
}


def made(connection: psycopg.Connection[Any], kind: str) -> None:
    """A table with such a key."""
    connection.execute(f"DROP TABLE IF EXISTS k; CREATE TABLE k (key {KEYS[kind][0]} PRIMARY KEY)")


def fill(connection: psycopg.Connection[Any], values: list[str]) -> None:
    """As many of the values as are different to PostgreSQL."""
    found = connection.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'k'::regclass AND attname = 'key'"
    ).fetchone()
    assert found is not None
    insert = f"INSERT INTO k SELECT v::{found[0]} FROM unnest(%s::text[]) v ON CONFLICT DO NOTHING"
    connection.execute(insert, (values,))


def holders(connection: psycopg.Connection[Any], relation: Relation, every: list[KeyRange]) -> list[tuple[str, int]]:
    """The keys that are not in exactly one range."""
    conditions = [
        "("
        + (f"t.key >= {relation.bound(one.low)} AND " if one.low is not None else "")
        + f"t.key {'<=' if one.last else '<'} {relation.bound(one.high)})::int"
        for one in every
    ]
    count = " + ".join(conditions) or "0"
    query = sql.SQL(f"SELECT * FROM (SELECT t.key::text, {count} AS n FROM k t) f WHERE n <> 1")
    return connection.execute(query).fetchall()


@pytest.mark.parametrize("kind", KEYS)
def test_each_key_is_in_exactly_one_range_wherever_a_run_was_interrupted(german: Database, kind: str) -> None:
    """Ranges follow the order of the column, not of its text; with or without statistics."""
    view = View(Server.of(ConnectionOptions(uid="in", dsn=german.dsn), "test"), "test", 1000)
    with german.connect() as connection:
        made(connection, kind)

        def relation() -> Relation:
            return look_up(view.connection, '"k"', True, None, "test")

        @given(
            st.lists(KEYS[kind][1], min_size=1, max_size=40),
            st.integers(2, 8),
            st.booleans(),
            st.randoms(use_true_random=False),
        )
        @settings(
            max_examples=6,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(values: list[str], rows: int, analyzed: bool, chance: random.Random) -> None:
            view.release()  # of an example that failed
            connection.execute("TRUNCATE k")
            fill(connection, values)
            if analyzed:
                connection.execute("ANALYZE k")
            done: list[KeyRange] = []
            for _ in range(3):
                ranges = cut(view.connection, relation(), rows, done)
                done += chance.sample(ranges, chance.randint(0, len(ranges)))
                rows = chance.randint(2, 8)
            done += cut(view.connection, relation(), rows, done)
            assert not holders(view.connection, relation(), done)
            view.release()

        try:
            check()
        finally:
            view.lost()


RUNS = ("numeric", "double", "money", "inet", "text", "jsonb", "interval", "timestamptz", "bit", "char")


@pytest.mark.parametrize("kind", RUNS)
def test_rows_of_every_key_are_read_once_with_a_restart_at_every_point(german: Database, kind: str) -> None:
    """Planned and read in several ranges, each epoch by a new planner, and read again."""
    with german.connect() as connection:
        made(connection, kind)
        chance = random.Random(7)
        values: list[str] = []

        # Shared by many draws, as the first ones are small and alike.
        @given(st.lists(KEYS[kind][1], min_size=20, max_size=30))
        @settings(
            max_examples=20,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def draw(found: list[str]) -> None:
            values.extend(found)

        draw()
        fill(connection, chance.sample(values, min(200, len(values))))
        connection.execute("ANALYZE k")
        connection.execute(
            "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 3"
        )
        expected = sorted(row[0] for row in connection.execute("SELECT key::text FROM k").fetchall())
    found = SourceRun(
        Postgres,
        {"uid": "in", "dsn": german.dsn, "table": "k", "rows_per_channel": "5"},
        schema=columns("key string"),
        limits=[{"max_rows_per_epoch": "12", "readers": "2"}],
    )
    to_end_with_replays(found)
    assert found.offset.ended
    read = sorted(row["key"] for row in found.trace.all_rows().to_pylist())
    assert read == expected
