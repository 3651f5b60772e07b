"""Hostile values of each type are in the table as they were given, by the server's own functions, or are refused."""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns as ddl
from spark_ext.sinks.postgres_2pc.copy import ValueMisfit, encode
from spark_ext.sinks.postgres_2pc.types import Column as PostgresColumn
from spark_ext.sinks.postgres_2pc.types import new_type, takes
from spark_ext.testing.sink_driver import Driver
from tests.servers.postgres import Database, PostgresServer
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget
from tests.values.cells import check_cell
from tests.values.forms import SIMPLE, Column, batch_of, columns, from_json
from tests.values.table import BAD, SINKS, TYPES, VALUES, Row, words

# The server's quotients of large numbers have few digits after the point.
MICROS = (
    "extract(epoch FROM date_trunc('second', {0}))::bigint * 1000000 + extract(microseconds FROM {0})::bigint % 1000000"
)
# How a value is asked for, and made of the answer.
SHOWN: dict[type[T.DataType], tuple[str, Callable[[Any], Any]]] = {
    T.StringType: ("convert_to({0}, 'UTF8')", bytes),
    T.BinaryType: ("{0}", bytes),
    T.FloatType: ("{0}::text", lambda text: from_json(T.FloatType(), text)),
    T.DoubleType: ("{0}::text", lambda text: repr(float(text))),
    T.DateType: ("{0} - date '1970-01-01'", int),
    T.TimestampType: (MICROS, int),
    T.TimestampNTZType: (MICROS, int),
    T.DayTimeIntervalType: ("{0}", lambda value: value // timedelta(microseconds=1)),
}


def read(target: PostgresTarget, kind: T.DataType, where: str = "true", column: str = "v") -> list[Any]:
    shown, made = SHOWN.get(type(kind), ("{0}", lambda value: value))
    if isinstance(kind, (T.ArrayType, T.StructType, T.MapType)):
        made = partial(from_json, kind)  # psycopg gives lists and documents
    name = '"' + column.replace('"', '""') + '"'
    found = target.query(f"SELECT {shown.format(name)} AS v FROM {target.table} WHERE {where} ORDER BY id")
    return [None if row["v"] is None else made(row["v"]) for row in found]


def committed(target: PostgresTarget, schema: T.StructType, batch: pa.RecordBatch) -> None:
    driver = Driver(target, schema=schema).claim()
    driver.commit([driver.write_batches(0, iter([batch]))], 0)


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer) -> Iterator[tuple[Database, Iterator[str]]]:
    made = postgres.database()
    yield made, map("t{}".format, count())
    postgres.drop(made)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.type} {row.what}") for row in (*VALUES, *TYPES)])
def test_each_cell_is_what_the_sink_does(tables: tuple[Database, Iterator[str]], row: Row) -> None:
    database, names = tables

    def put(kind: T.DataType, values: list[Any]) -> list[Any]:
        target = PostgresTarget(database, next(names), inline_size="1m")
        committed(target, *batch_of(kind, values))
        return read(target, kind)

    check_cell("postgres_2pc", row, put)


@pytest.mark.parametrize("inline", ["0", "1m"], ids=["staged", "inline"])
def test_a_value_is_read_as_given_or_refused_before_the_write(database: Database, inline: str) -> None:
    numbers = count(step=10)
    drivers: dict[T.DataType, Driver] = {}

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(column=columns(nested=False))
    def check(column: Column) -> None:
        _, kind, values = column
        first, name = next(numbers), f"t{[one for one, _ in SIMPLE].index(kind)}"
        schema, batch = batch_of(kind, values)
        batch = batch.set_column(0, "id", pa.array(range(first, first + len(values))))
        target = PostgresTarget(database, name, inline_size=inline)
        if kind not in drivers:
            drivers[kind] = Driver(target, schema=schema)
            drivers[kind].claim()
        if any(value is not None and BAD in words(SINKS["postgres_2pc"], kind, value) for value in values):
            with pytest.raises(DataError):
                drivers[kind].commit([drivers[kind].write_batches(first, iter([batch]))], first)
            assert read(target, kind, f"id >= {first}") == []
        else:
            drivers[kind].commit([drivers[kind].write_batches(first, iter([batch]))], first)
            assert read(target, kind, f"id >= {first}") == values

    check()


PAIR = pa.struct([("a", pa.string()), ("b", pa.date32())])
AT = datetime(1969, 12, 31, 23, 59, 59, 120_000)
UUID = "0189f7e5-9a3c-7000-8000-000000000000"
# A column's type, the type of the rows, values that it takes, and one that the server would change on its way.
CHANGED: list[tuple[str, str, list[Any], Any]] = [
    ("varchar(2)", "string", ["ab", "€"], "ab "),
    ("varchar(2)[]", "array<string>", [["ab", None], []], ["ab", "ab "]),
    ("timestamp(2)", "timestamp_ntz", [AT], AT.replace(microsecond=995_000)),
    ("timestamptz(0)", "timestamp", [AT.replace(microsecond=0, tzinfo=timezone.utc)], AT.replace(tzinfo=timezone.utc)),
    ("timestamp(1)[]", "array<timestamp_ntz>", [[AT.replace(microsecond=0)]], [AT, None]),
    ("uuid", "string", [UUID, f"{{{UUID.upper()}}}", UUID.replace("-", "")], f"{UUID[:-2]}-{UUID[-2:]}-"),
]


@pytest.mark.parametrize(("declared", "kind", "good", "bad"), CHANGED, ids=[row[0] for row in CHANGED])
def test_what_the_server_would_change(database: Database, declared: str, kind: str, good: list[Any], bad: Any) -> None:
    database.run(f"CREATE TABLE out (id bigint, v {declared})")
    target = PostgresTarget(database, inline_size="1m")
    one = Driver(target, schema=ddl(f"id bigint, v {kind}")).claim()
    rows = [{"id": number, "v": value} for number, value in enumerate([*good, None])]
    one.run(0, rows)
    if declared != "uuid":
        assert [row["v"] for row in target.query("SELECT v FROM out ORDER BY id")] == [*good, None]
    with pytest.raises(DataError, match="row 2, column 'v'"):
        one.run(1, [rows[0], {"id": 9, "v": bad}])
    assert target.query("SELECT count(*) AS rows FROM out") == [{"rows": len(rows)}]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('<?xml version="1.0" encoding="latin1"?><a>ö</a>', False),
        ("<?xml version='1.0' encoding = 'UTF-16'?><a>ö</a>", False),
        ('<?xml version="1.0" encoding="utf-8"?><a>ö</a>', True),
        ('<?xml version="1.0" encoding="latin1"?><a/>', True),
        ('<a encoding="latin1">ö</a>', True),
    ],
)
def test_xml_that_would_be_read_in_another_encoding_is_refused(text: str, taken: bool) -> None:
    sent = encode(pa.record_batch({"v": pa.array([None, text])}), [PostgresColumn("v", "xml", "xml")])
    if taken:
        assert text.encode() in b"".join(sent)
    else:
        with pytest.raises(ValueMisfit, match="another encoding than UTF-8"):
            list(sent)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (PAIR, {"a": "x'\"", "b": date(2024, 1, 31)}, '{"a": "x\'\\"", "b": "2024-01-31"}'),
        (pa.list_(pa.bool_()), [True, None], "[true, null]"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(4, 2), Decimal("1.50"), "1.50"),
    ],
)
def test_keys_of_maps_are_json_in_json(key: pa.DataType, value: Any, text: str) -> None:
    batch = pa.record_batch({"v": pa.array([[(value, 1)]], pa.map_(key, pa.int32()))})
    assert json.loads(b"".join(encode(batch, [PostgresColumn("v", "json", "json")]))[6:]) == {text: 1}


def test_numbers_in_documents_are_decimal(database: Database) -> None:
    kind = T.StructType([T.StructField("x", T.DoubleType()), T.StructField("n", T.LongType())])
    numbers = ["5e-324", "1.7976931348623157e+308", "0.1", "1e+16", "0.0", "-0.0"]
    target = PostgresTarget(database, "t")
    committed(target, *batch_of(kind, [{"x": number, "n": 2**63 - 1} for number in numbers]))
    assert read(target, kind) == [{"x": number.removeprefix("-"), "n": 2**63 - 1} for number in numbers]


def test_intervals_in_arrays_are_those_of_the_query(database: Database) -> None:
    micros = timedelta(microseconds=1)
    values = [[0, None, -1, 86_400_000_000], [], None, [2**62]]
    target = PostgresTarget(database, "t")
    committed(target, *batch_of(T.ArrayType(T.DayTimeIntervalType()), values))
    found = [row["v"] for row in target.query("SELECT v FROM t ORDER BY id")]
    assert found == [of and [one if one is None else one * micros for one in of] for of in values]
    assert target.query("SELECT v[4]::text AS v FROM t WHERE id = 0") == [{"v": "24:00:00"}], "as it came, in hours"


INTERVAL = T.DayTimeIntervalType()


@pytest.mark.parametrize(
    ("column", "kind", "taken"),
    [
        (PostgresColumn("v", "interval", "interval"), INTERVAL, True),
        (PostgresColumn("v", "interval", "interval(3)", modifier=0x7FFF0003), INTERVAL, False),
        (PostgresColumn("v", "interval", "interval day", modifier=0x0008FFFF), INTERVAL, False),
        (PostgresColumn("v", "_interval", "interval[]", element="interval"), T.ArrayType(INTERVAL), True),
        (PostgresColumn("v", "jsonb", "jsonb"), T.ArrayType(INTERVAL), False),
        (PostgresColumn("v", "text", "text"), INTERVAL, False),
    ],
)
def test_columns_for_intervals_have_all_digits(column: PostgresColumn, kind: T.DataType, taken: bool) -> None:
    assert takes(column, kind) is taken


@pytest.mark.parametrize(
    "kind",
    [T.StructType([T.StructField("a", INTERVAL)]), T.MapType(T.StringType(), INTERVAL), T.YearMonthIntervalType()],
)
def test_intervals_that_postgresql_has_no_form_for_are_refused(kind: T.DataType) -> None:
    with pytest.raises(ConfigurationError, match="which this sink does not support"):
        new_type(kind, "v", "sink 'out'")
