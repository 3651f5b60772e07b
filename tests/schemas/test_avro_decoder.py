"""Avro into Arrow and from Arrow: each value is unchanged to an independent decoder, fastavro, or is refused."""

import datetime
import io
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.errors import DataError
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.avro import spark_type
from spark_ext.schemas.avro_decoder import decoder
from spark_ext.sinks.kafka_2pc.formats import Encoder
from spark_ext.sources.registered import Avro
from tests.sources.files.test_avro import logical

UTC = datetime.timezone.utc
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
CENTS = st.integers(-9999, 9999).map(lambda cents: Decimal(cents).scaleb(-2))
UNIQUE = count()


class Kind(NamedTuple):
    """A schema, values of its Spark type, of which it may not take each, and fastavro's form of such a value."""

    schema: Any
    values: st.SearchStrategy[Any]
    of_library: Callable[[Any], Any] = lambda value: value


def _of_day(unit: int) -> Callable[[Any], Any]:
    def convert(value: datetime.time) -> int:
        return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) // unit

    return convert


SIMPLE = [
    Kind("boolean", st.booleans()), Kind("int", INTS), Kind("long", LONGS),
    Kind("float", st.floats(width=32, allow_nan=False)), Kind("double", st.floats(allow_nan=False)),
    Kind(["float", "double"], st.floats(allow_nan=False)), Kind(["int", "long"], LONGS), Kind("string", TEXTS),
    Kind("bytes", st.binary(max_size=5)), Kind(logical("string", "uuid"), st.uuids().map(str) | TEXTS, str),
    Kind(logical("int", "date"), st.dates()),
    Kind(logical("int", "time-millis"), st.integers(-5, 86_400_005), _of_day(1000)),
    Kind(logical("long", "time-micros"), st.integers(-5, 86_400_000_005), _of_day(1)),
    Kind(logical("long", "timestamp-millis"), st.datetimes(timezones=st.just(UTC))),
    Kind(logical("long", "timestamp-micros"), st.datetimes(timezones=st.just(UTC))),
    Kind(logical("long", "local-timestamp-millis"), st.datetimes()),
    Kind(logical("long", "local-timestamp-micros"), st.datetimes()),
    Kind(logical("bytes", "decimal", precision=4, scale=2), CENTS),
    Kind({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from("ABC")),
    Kind({"type": "fixed", "name": "F", "size": 3}, st.binary(min_size=2, max_size=4)),
    Kind(logical("fixed", "decimal", name="D", size=2, precision=4, scale=2), CENTS),
    Kind(logical("fixed", "uuid", name="U", size=16), st.binary(min_size=16, max_size=16)),
]  # fmt: skip


def _named(kind: Kind) -> Kind:
    if isinstance(kind.schema, dict) and "name" in kind.schema:
        return kind._replace(schema={**kind.schema, "name": f"shop.{kind.schema['name']}{next(UNIQUE)}"})
    return kind


def _nullable(kind: Kind) -> Kind:
    schema = kind.schema if isinstance(kind.schema, list) else [kind.schema]
    return Kind([*schema, "null"], st.none() | kind.values, lambda value: None if value is None else kind[2](value))


def _array(kind: Kind) -> Kind:
    schema = {"type": "array", "items": kind.schema}
    return Kind(schema, st.lists(kind.values, max_size=3), lambda values: [kind.of_library(one) for one in values])


def _map(kind: Kind) -> Kind:
    values = st.dictionaries(st.text("ab", max_size=2), kind.values, max_size=2)
    return Kind(
        {"type": "map", "values": kind.schema},
        values.map(lambda found: list(found.items())),
        lambda found: [(key, kind.of_library(value)) for key, value in found.items()],
    )


def _record(kinds: list[Kind]) -> Kind:
    parts = {f"f{number}": kind for number, kind in enumerate(kinds)}
    fields = [{"name": name, "type": kind.schema} for name, kind in parts.items()]
    return Kind(
        {"type": "record", "name": f"shop.R{next(UNIQUE)}", "fields": fields},
        st.fixed_dictionaries({name: kind.values for name, kind in parts.items()}),
        lambda value: {name: kind.of_library(value[name]) for name, kind in parts.items()},
    )


KINDS = st.recursive(
    st.sampled_from(SIMPLE).map(_named),
    lambda inner: (
        inner.filter(lambda one: "null" not in one.schema).map(_nullable)
        | inner.map(_array)
        | inner.map(_map)
        | st.lists(inner, min_size=1, max_size=3).map(_record)
    ),
    max_leaves=5,
)


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name != "logicalType"}
    return schema


def _source(schema: Any) -> Avro:
    return Avro(Pinned("avro", "s", 1, 7, json.dumps(schema)), lambda: pytest.fail("asked the registry"), "test")


@given(st.data())
def test_what_is_published_reads_alike_elsewhere_or_is_refused(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = data.draw(kind.values)
    of = spark_type(kind.schema)
    pinned = Pinned("avro", "s", 1, 7, json.dumps(kind.schema))
    try:
        (content,) = Encoder("value", of, pinned, "test").encoded(pa.array([value], arrow_type(of))).to_pylist()
    except DataError:
        return
    if value is None:
        assert content is None
        return
    library: Any = schemaless_reader(io.BytesIO(content[5:]), parse_schema(kind.schema), None)
    assert kind.of_library(library) == value
    assert pa.array([_source(kind.schema).value(content)], arrow_type(of)).to_pylist() == [value]


@given(st.data())
def test_damaged_bytes_are_what_others_decode_or_no_value(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    schema, bare = parse_schema(kind.schema), parse_schema(_bare(kind.schema))
    out = io.BytesIO()
    try:
        schemaless_writer(out, schema, _for_library(kind.schema, data.draw(kind.values)))
    except Exception:
        return  # not a value of the schema
    content = bytearray(out.getvalue())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)) if content else ():
        content[at] = data.draw(st.integers(0, 255))
    try:
        found, end = decoder(schema, bare)(bytes(content), 0)
    except (EOFError, ValueError, OverflowError):
        return
    library: Any = schemaless_reader(io.BytesIO(content[:end]), bare, None)
    assert repr(_for_library(bare, found)) == repr(library)


def _for_library(schema: Any, value: Any) -> Any:
    if isinstance(schema, list):
        return _for_library(schema[0], value)
    if isinstance(value, dict):
        return {one["name"]: _for_library(one["type"], value[one["name"]]) for one in schema["fields"]}
    if isinstance(value, list):
        if schema["type"] == "map":
            return {key: _for_library(schema["values"], one) for key, one in value}
        return [_for_library(schema["items"], one) for one in value]
    return value


def test_a_field_of_its_own_name_comes_before_one_of_an_alias() -> None:
    field = {"name": "a", "type": "int", "aliases": ["b"]}
    reader = parse_schema({"type": "record", "name": "R", "fields": [field]})
    for names in ("ab", "ba", "b"):
        fields = [{"name": name, "type": "int"} for name in names]
        writer = parse_schema({"type": "record", "name": "R", "fields": fields})
        out = io.BytesIO()
        schemaless_writer(out, writer, {name: number for number, name in enumerate("ab")})
        assert decoder(writer, reader)(out.getvalue(), 0)[0] == {"a": 0 if "a" in names else 1}, names


@pytest.mark.parametrize(
    "schema",
    [
        logical("int", "date"),
        logical("long", "timestamp-micros"),
        {"type": "array", "items": logical("long", "local-timestamp-micros")},
    ],
)
def test_times_of_any_year_are_written_by_an_existing_schema(schema: Any) -> None:
    of, pinned = spark_type(schema), Pinned("avro", "s", 1, 7, json.dumps(schema))
    least: Any = {"int": -(2**31), "long": -(2**63), "array": [2**63 - 1]}[schema["type"]]
    given = pa.array([least], arrow_type(of))
    (content,) = Encoder("value", of, pinned, "test").encoded(given).to_pylist()
    assert schemaless_reader(io.BytesIO(content[5:]), parse_schema(_bare(schema)), None) == least
    assert pa.array([_source(schema).value(content)], arrow_type(of)).equals(given)


def test_a_time_that_milliseconds_do_not_hold_is_refused() -> None:
    schema = logical("long", "timestamp-millis")
    of, pinned = spark_type(schema), Pinned("avro", "s", 1, 7, json.dumps(schema))
    for micros in (1999, 2**63 - 1):
        with pytest.raises(DataError):
            Encoder("value", of, pinned, "test").encoded(pa.array([micros], arrow_type(of)))
