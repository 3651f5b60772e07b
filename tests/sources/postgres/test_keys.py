"""The source `postgres`: every type of key that PostgreSQL can order, in its own order and not in that of its text."""

import random
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.ranges import KeyRange, cut, parse
from spark_ext.sources.postgres.relation import Relation
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import few, rows, run, the_table, to_end_with_replays, view_of

INTEGER = st.integers(-(10**6), 10**6)
FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
WORD = st.text(st.sampled_from("aAäZz_-é \\'\"%{},19"), max_size=6)
SECONDS = st.integers(-(10**10), 10**10)


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

SEVERAL = [
    ("bigint", "numeric"), ("text", "bigint"), ("numeric", "text C", "date"), ("boolean", "uuid"), ("char", "real"),
]  # fmt: skip


def made(connection: psycopg.Connection[Any], kinds: tuple[str, ...]) -> None:
    names = ", ".join(f"k{n}" for n in range(len(kinds)))
    definitions = ", ".join(f"k{n} {KEYS[kind][0]}" for n, kind in enumerate(kinds))
    connection.execute(f"DROP TABLE IF EXISTS k; CREATE TABLE k ({definitions}, PRIMARY KEY ({names}))")


def fill(connection: psycopg.Connection[Any], kinds: tuple[str, ...], keys: list[tuple[str, ...]]) -> None:
    """As many of the keys as are different to PostgreSQL."""
    places = range(len(kinds))
    casts = ", ".join(f"v.k{n}::{KEYS[kinds[n]][0].split(' COLLATE')[0]}" for n in places)
    arrays = ", ".join("%s::text[]" for _ in places)
    names = ", ".join(f"k{n}" for n in places)
    insert = f"INSERT INTO k SELECT {casts} FROM unnest({arrays}) v({names}) ON CONFLICT DO NOTHING"
    connection.execute(insert, [[key[n] for key in keys] for n in places])


def keys_of(kinds: tuple[str, ...], least: int, most: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """Of several columns, the first ones repeat, so that the further ones decide."""
    repeated = st.sampled_from(["1", "2", "3"])
    first = [repeated if kind in ("bigint", "numeric") else KEYS[kind][1] for kind in kinds[:-1]]
    return st.lists(st.tuples(*first, KEYS[kinds[-1]][1]), min_size=least, max_size=most)


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KEYS), *SEVERAL], ids="-".join)
def test_each_key_is_in_exactly_one_range(german: Database, kinds: tuple[str, ...]) -> None:
    """In the order of the columns, not of their text; with or without statistics, while the last rows go."""
    view = view_of(german)
    with german.connect() as connection:
        made(connection, kinds)

        @given(keys_of(kinds, 1, 40), st.integers(2, 8), st.booleans(), st.randoms(use_true_random=False))
        @few(6)
        def check(keys: list[tuple[str, ...]], wide: int, analyzed: bool, chance: random.Random) -> None:
            view.release()  # of an example that failed
            connection.execute("TRUNCATE k")
            fill(connection, kinds, keys)
            if analyzed:
                connection.execute("ANALYZE k")
            done: list[KeyRange] = []
            for _ in range(3):
                relation = the_table(view.connection, "k")
                ranges = cut(view.connection, relation, wide, done)
                done += chance.sample(ranges, chance.randint(0, len(ranges)))
                view.release()  # the next plan sees what has changed
                last = f"SELECT ctid FROM k t ORDER BY {relation.key.descending} LIMIT {chance.randint(0, 3)}"
                connection.execute(f"DELETE FROM k WHERE ctid IN ({last})")
                wide = chance.randint(2, 8)
            done += cut(view.connection, relation, wide, done)
            # As they are stored, and read again.
            done = [parse(one.id(relation.key, "1.2.3.4"))[1] for one in done]
            count = " + ".join(f"({_holds(relation, one)})::int" for one in done) or "0"
            query = sql.SQL(f"SELECT * FROM (SELECT t::text, {count} AS n FROM k t) f WHERE n <> 1")
            assert not view.connection.execute(query).fetchall()
            view.release()

        try:
            check()
        finally:
            view.lost()


def _holds(relation: Relation, one: KeyRange) -> str:
    above = f"{relation.key.compared('>=', one.low)} AND " if one.low is not None else ""
    return above + relation.key.compared("<=" if one.last else "<", one.high)


RUNS = ("numeric", "double", "money", "inet", "text", "jsonb", "interval", "timestamptz", "bit", "char")


@pytest.mark.parametrize("kind", RUNS)
def test_rows_of_every_key_are_read_once(german: Database, kind: str) -> None:
    """Planned and read in several ranges, each epoch by a new planner, and read again."""
    with german.connect() as connection:
        made(connection, (kind,))
        chance = random.Random(7)
        values: list[tuple[str, ...]] = []

        # Shared by many draws, as the first ones are small and alike.
        @given(keys_of((kind,), 20, 30))
        @few(20)
        def draw(found: list[tuple[str, ...]]) -> None:
            values.extend(found)

        draw()
        fill(connection, (kind,), chance.sample(values, min(200, len(values))))
        connection.execute("ANALYZE k")
        connection.execute(
            "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 3"
        )
        expected = sorted(row[0] for row in connection.execute("SELECT k0::text FROM k").fetchall())
    found = run(german, schema=columns("k0 string"), limit=12, table="k", rows_per_channel="5")
    to_end_with_replays(found)
    assert found.offset.ended
    assert sorted(row["k0"] for row in rows(found)) == expected
