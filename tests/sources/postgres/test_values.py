"""The source `postgres`: whatever value a column has is the same in Arrow, as the server itself describes it.

The server says what it has in a form of its own for each type: bytes as hexadecimal digits, times as numbers. It does
so over a connection of psycopg, which shares nothing with the source's.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.schemas.ddl import columns
from tests.servers.postgres import Database, PostgresServer
from tests.sources.postgres.postgres_runs import few, ids, rows, run, to_end_with_replays, to_rest
from tests.values.cells import Unsayable, check_read
from tests.values.forms import plain
from tests.values.table import LEAP_SECOND, NANOS, ODD, TYPES, VALUES, Row

ENCODINGS: Final = ("UTF8", "LATIN1", "SQL_ASCII")


@pytest.fixture(scope="module", params=ENCODINGS)
def encoded(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.database(request.param)
    yield made
    postgres.drop(made)


def _shown(form: Callable[[Any], str], kind: pa.DataType | None = None) -> Callable[[pa.Array], list[Any]]:
    """An array's values, seen as those of a type, in the form in which the server sends them."""
    return lambda values: [
        None if one is None else form(one) for one in (values if kind is None else values.view(kind)).to_pylist()
    ]


def _bits(shape: str, quiet: str) -> Callable[[pa.Array], list[Any]]:
    """Floats; the server has one NaN only."""
    return _shown(lambda one: quiet if math.isnan(one) else struct.pack(shape, one).hex())


_texts, _hex = _shown(str), _shown(bytes.hex, pa.binary())
_decimals = _shown(lambda one: f"{one:.18f}".rstrip("0").rstrip("."))


def of(values: st.SearchStrategy[Any], shape: str = "{}") -> st.SearchStrategy[str]:
    return values.map(shape.format)


def _at(micros: int) -> str:
    days, rest = divmod(micros, 86_400_000_000)
    return f"{days} {rest // 1_000_000}.{rest % 1_000_000:06}"


TIME = "((date '1970-01-01' + split_part({0}, ' ', 1)::int)::timestamp + (split_part({0}, ' ', 2) || ' s')::interval)"
MICROS = "(('x' || encode({}_send({{}}), 'hex'))::bit(64)::bigint + 946684800000000::numeric)::text"
WORDS: Final = ["", " ", "\\", "\\N", '"', "'", "\t\n\r", "\x01\x7f", "Möhre ÿ", "x" * 70_000, "NULL", "{}"]
WIDE: Final = ["😀", "\ufeff", "e\u0301", "\u202e", "\uffff", "\U0010ffff", "ß" * 20_000]
DATES: Final = (-2_440_588, 2_145_042_905)
TIMES: Final = (-210_866_803_200_000_000, 2**63 - 1)

# Type; values as text; how a text becomes a value; what the server says of a value; the same of an Arrow array.
Kind = tuple[str, st.SearchStrategy[str], str, str, Callable[[pa.Array], list[Any]]]


def kinds(encoding: str) -> dict[str, Kind]:
    """By the names of their columns, some of which are those of our own aliases."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    if encoding == "LATIN1":
        letters = st.characters(max_codepoint=255, exclude_characters="\0")
    text = st.sampled_from(WORDS + (WIDE if encoding != "LATIN1" else [])) | st.text(letters, max_size=20)
    small = st.integers(-(10**6), 10**6)
    numeric = st.decimals(min_value=-(10**19), max_value=10**19, places=18)
    return {
        "t": ("text", text, "{}", "encode(convert_to({}, 'UTF8'), 'hex')", _hex),
        "r": ("varchar", text, "{}", "encode(convert_to({}, 'UTF8'), 'hex')", _hex),
        "s": ("smallint", of(st.integers(-(2**15), 2**15 - 1)), "{}::smallint", "{}::text", _texts),
        "u": ("integer", of(st.integers(-(2**31), 2**31 - 1)), "{}::int", "{}::text", _texts),
        "k": ("bigint", of(st.integers(-(2**63), 2**63 - 1)), "{}::bigint", "{}::text", _texts),
        "b": ("boolean", of(st.booleans()), "{}::boolean", "initcap({}::text)", _texts),
        "x": ("real", of(st.floats(width=32)), "{}::real", "encode(float4send({}), 'hex')", _bits(">f", "7fc00000")),
        "v": ("float8", of(st.floats()), "{}::float8", "encode(float8send({}), 'hex')", _bits(">d", "7ff8" + "0" * 12)),
        "n": ("numeric(20,4)", of(numeric, "{:.4f}").map(lambda one: one[-18:].lstrip("-")), "{}::numeric",
              "trim_scale({})::text", _decimals),
        "number": ("numeric", of(numeric, "{:f}"), "{}::numeric", "trim_scale({})::text", _decimals),
        "count": ("bytea", of(st.binary(max_size=9).map(bytes.hex), "\\x{}"), "{}::bytea", "encode({}, 'hex')", _hex),
        "value": ("date", of(st.sampled_from(DATES) | st.integers(*DATES)), "date '1970-01-01' + {}::int",
                  "({} - date '1970-01-01')::text", _shown(str, pa.int32())),
        "bounds": ("timestamp", (st.sampled_from(TIMES) | st.integers(*TIMES)).map(_at), TIME,
                   MICROS.format("timestamp"), _shown(str, pa.int64())),
        "e": ("timestamptz", (st.sampled_from(TIMES) | st.integers(*TIMES)).map(_at), TIME + " AT TIME ZONE 'UTC'",
              MICROS.format("timestamptz"), _shown(str, pa.int64())),
        "xid": ("time", of(st.times()) | st.just("24:00"), "{}::time", "{}::text", _texts),
        "found": ("interval", st.builds("{} mons {} days {} us".format, small, small, small), "{}::interval",
                  "{}::text", _texts),
        "_spark_ext_hash": ("uuid", of(st.uuids()), "{}::uuid", "{}::text", _texts),
        "_spark_ext_no_list": ("int[]", of(st.lists(st.none() | small)).map(_braces), "{}::int[]",
                               "array_to_json({})", pa.Array.to_pylist),
        'q"uote': ("json", st.sampled_from(['{"a":  1}', "1e400", '"\\u00e9"']), "{}::json", "{}::text", _texts),
        "sp ace": ("inet", of(st.ip_addresses()), "{}::inet", "{}::text", _texts),
        "n" * 63: ('"char"', st.sampled_from("azAZ019%- "), '{}::"char"', "{}::text", _texts),
        "excluded": ("int4range", of(small, "[{},)"), "{}::int4range", "{}::text", _texts),
    }  # fmt: skip


def _braces(text: str) -> str:
    return text.replace("[", "{").replace("]", "}").replace("None", "NULL")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("source", ["table", "view"])
def test_each_value_is_in_arrow_what_the_server_has(encoded: Database, source: str) -> None:
    """Of a table, whose rows are known by their keys, and of a view, whose rows are hashed as text."""
    (encoding,) = encoded.column("SHOW server_encoding")
    every = kinds(encoding)
    rows = st.fixed_dictionaries({name: st.none() | kind[1] for name, kind in every.items()})
    made = ", ".join(f"{quoted(name)} {kind[0]}" for name, kind in every.items())
    with encoded.connect(client_encoding="utf8") as connection:
        connection.execute(f"CREATE TABLE for_{source} (id serial PRIMARY KEY, {made})")
        connection.execute(f"CREATE VIEW of_{source} AS SELECT * FROM for_{source}")
        connection.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'")

        @given(st.lists(rows, min_size=20, max_size=20))
        @few(6)
        def check(drawn: list[dict[str, Any]]) -> None:
            connection.execute(f"DELETE FROM for_{source}")  # planners hold locks that TRUNCATE waits for
            for row in drawn:
                connection.execute(*_insert(f"for_{source}", every, row))
            said = ", ".join(kind[3].format(quoted(name)) for name, kind in every.items())
            expected = connection.execute(f"SELECT {said} FROM for_{source} ORDER BY id").fetchall()
            found = run(encoded, table=f"for_{source}" if source == "table" else f"of_{source}", key="id")
            to_rest(found)
            read = found.trace.all_rows().sort_by("id")
            for place, (name, kind) in enumerate(every.items()):
                column = pa.concat_arrays(read.column(name).chunks)
                assert kind[4](column) == [row[place] for row in expected], (name, kind[0])

        check()


def _insert(table: str, every: dict[str, Kind], row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    parts = [kind[2].format(f"%(c{place})s::text") for place, kind in enumerate(every.values())]
    values = {f"c{place}": row[name] for place, name in enumerate(every)}
    return f"INSERT INTO {table} ({', '.join(map(quoted, every))}) VALUES ({', '.join(parts)})", values


# -- the cells of the table -------------------------------------------------------------------------------------------

KINDS: Final[dict[type[T.DataType], tuple[str, str]]] = {
    T.LongType: ("bigint", "{0}::bigint"),
    T.ShortType: ("smallint", "{0}::smallint"),
    T.IntegerType: ("int", "{0}::int"),
    T.BooleanType: ("boolean", "{0}::boolean"),
    T.FloatType: ("real", "{0}::real"),
    T.DoubleType: ("float8", "{0}::float8"),
    T.DecimalType: ("{0}", "{0}::numeric"),
    T.StringType: ("text", "{0}"),
    T.BinaryType: ("bytea", "decode({0}, 'hex')"),
    T.DateType: ("date", "date '1970-01-01' + {0}::int"),
    T.TimestampType: ("timestamptz", TIME + " AT TIME ZONE 'UTC'"),
    T.TimestampNTZType: ("timestamp", TIME),
    T.ArrayType: ("text[]", "CASE WHEN {0} IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text({0}::jsonb)) END"),
}
"""A column's type, and how a text becomes a value of it."""


def text(kind: T.DataType, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(kind, T.ArrayType):
        return json.dumps([one.decode() if isinstance(one, bytes) else one for one in value])
    if isinstance(value, bytes):
        return value.hex() if isinstance(kind, T.BinaryType) else value.decode()
    return _at(value) if isinstance(kind, (T.TimestampType, T.TimestampNTZType)) else str(value)


WIDER: Final[dict[type[T.DataType], str]] = {T.LongType: "numeric", T.DecimalType: "numeric", T.FloatType: "float8"}
"""Types of columns with values that the declared type does not have."""


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer) -> Iterator[tuple[Database, Iterator[str]]]:
    """A database for all cells, and names of tables in it."""
    made = postgres.database()
    yield made, map("t{}".format, count())
    postgres.drop(made)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.type} {row.what}") for row in (*VALUES, *ODD, *TYPES)])
def test_each_cell_is_what_the_source_does(tables: tuple[Database, Iterator[str]], row: Row) -> None:
    database, names = tables

    def get(kind: T.DataType, values: list[Any]) -> tuple[dict[int, Any], int]:
        if type(kind) not in KINDS or (isinstance(kind, T.StringType) and kind != T.StringType()):
            raise Unsayable
        name, (of, made) = next(names), KINDS[type(kind)]
        of = WIDER.get(type(kind), of) if row in ODD else of
        if isinstance(kind, T.ArrayType):
            of = {"string": "text[]", "double": "float8[]"}[kind.elementType.simpleString()]
            made = f"({made})::{of}"
        elif row in ODD:
            made = "{0}::" + of
        with database.connect(client_encoding="utf8") as connection:
            connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v {of.format(kind.simpleString())})")
            for n, value in enumerate(values):
                try:
                    connection.execute(
                        f"INSERT INTO {name} VALUES ({n}, {made.format('%(v)s::text')})", {"v": text(kind, value)}
                    )
                except (psycopg.Error, UnicodeDecodeError):
                    raise Unsayable from None
                if row in (LEAP_SECOND, NANOS):
                    raise Unsayable  # the server has stored another time
        schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", kind)])
        found = run(database, table=name, schema=schema, on_bad_row="quarantine")
        to_rest(found)
        rows = found.trace.all_rows()
        good = zip(rows["id"].to_pylist(), map(plain, rows["v"]), strict=True)
        return dict(good), sum(map(len, found.trace.bad_rows.values()))

    check_read("postgres", row, get)


@pytest.mark.parametrize("key", ["id", "x"])
def test_bytes_that_are_no_text_are_refused(postgres: PostgresServer, key: str) -> None:
    """A SQL_ASCII database takes any; they can be read as binary."""
    database = postgres.database("SQL_ASCII")
    try:
        database.run("CREATE TABLE t (id int PRIMARY KEY, x text UNIQUE NOT NULL)")
        database.run("INSERT INTO t SELECT n, 'w' || n FROM generate_series(1, 20) n")
        database.run("INSERT INTO t VALUES (21, E'M\\xf6hre')")
        with pytest.raises(DataError, match="invalid byte sequence"):
            to_rest(run(database, key=key))
        found = run(database, query="SELECT id, convert_to(x, 'SQL_ASCII') AS x FROM t", key="id")
        to_rest(found)
        assert {row["id"]: row["x"] for row in rows(found)}[21] == b"M\xf6hre"
    finally:
        postgres.drop(database)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("timestamptz", "'infinity'", "contains infinity"),
        ("timestamp", "'-infinity'", "contains infinity"),
        ("date", "'-infinity'", "contains infinity"),
        ("timestamp", "'294250-01-01'", "contains infinity or a time after the year 294246"),
        ("numeric", "1.79e308::float8::numeric", "has a value that is not a decimal128"),
        ("numeric", "-(2::numeric ^ 256)", "has a value that is not a decimal128"),
        ("numeric", "2::numeric ^ 512 * 3", "has a value that is not a decimal128"),
        ("numeric", "12345e260 + 0.25", "has a value that is not a decimal128"),
        ("numeric", "1e25", "has a value that is not a decimal128"),
        ("numeric", "1e20", "has a value that is not a decimal128"),
        ("numeric", "4447143252387525393675", "has a value that is not a decimal128"),
        ("numeric", "'NaN'", "has a value that is not a decimal128"),
        ("int[]", "'{{1,2},{3,4}}'", "contains an array of several dimensions"),
    ],
)
def test_a_value_that_spark_has_not(table: Database, column: str, value: str, reason: str) -> None:
    """Refused by its column, collected on request, and read as text digit by digit."""
    table.run(f"ALTER TABLE t ADD x {column}", f"UPDATE t SET x = {value} WHERE id IN (3, 9)", "ANALYZE t")
    with pytest.raises(DataError, match=f"column 'x' {reason}"):
        to_rest(run(table))
    found = run(table, limit=7, on_bad_row="quarantine")
    to_end_with_replays(found)
    assert ids(found) == [id for id in range(1, 21) if id not in (3, 9)]
    bad = [row for part in found.trace.bad_rows.values() for row in part]
    assert [json.loads(str(row.raw))["id"] for row in bad] == [3, 9]
    assert all(f"column 'x' {reason}" in row.reason and row.position.keys() == {"row", "hash"} for row in bad)
    assert len({row.position["hash"] for row in bad}) == 2
    as_text = run(table, schema=columns("id bigint, x string"))
    to_rest(as_text)
    if column == "numeric":
        read = {row["id"]: row["x"] for row in rows(as_text)}
        assert [read[3]] == table.column("SELECT x::text FROM t WHERE id = 3")
    assert len(ids(as_text)) == 20


def test_declared_decimals_that_are_too_small(table: Database) -> None:
    found = run(table, schema=columns("id decimal(1,0), word string"), on_bad_row="quarantine")
    to_end_with_replays(found)
    assert ids(found) == list(range(1, 10))
    bad = [row for part in found.trace.bad_rows.values() for row in part]
    assert [json.loads(str(row.raw)) for row in bad] == [{"id": str(n), "word": f"w{n}"} for n in range(10, 21)]


@pytest.mark.parametrize("value", ["{{1,2},{3,4}}", "[5:6]={1,2}", "[0:1]={1,2}", "{{{1}}}"])
@pytest.mark.parametrize("kind", ["int[]", "text[]"])
def test_an_array_that_is_not_a_list_is_refused_by_its_column(table: Database, value: str, kind: str) -> None:
    table.run(f"ALTER TABLE t ADD fine {kind}, ADD a {kind}", "UPDATE t SET fine = '{3,null}', a = '{}' WHERE id < 9")
    table.run(f"UPDATE t SET a = '{value}' WHERE id = 17")
    with pytest.raises(DataError, match="column 'a' contains an array of several dimensions, or one whose first index"):
        to_rest(run(table))
    found = run(table, schema=columns("id bigint, a string"))
    to_rest(found)
    assert {row["a"] for row in rows(found)} == {None, "{}", value}
