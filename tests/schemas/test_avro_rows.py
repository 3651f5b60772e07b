"""Spark's types as Avro schemas: what is written is what the source reads, and what a given schema does not take."""

import datetime
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, settings
from pyspark.sql import types as T

from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.errors import DataError
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.avro import Unsupported, spark_type
from spark_ext.schemas.avro_rows import Unfit, avro_schema, writer
from spark_ext.schemas.ddl import columns
from spark_ext.schemas.values import undecodable
from spark_ext.sinks.kafka_2pc.formats import Encoder
from spark_ext.sources.registered import Avro
from tests.values.forms import Column, batch_of, plain
from tests.values.forms import columns as columns_of_values


@settings(max_examples=3 * settings().max_examples // 2)
@given(columns_of_values())
def test_what_is_encoded_is_what_the_source_decodes(drawn: Column) -> None:
    _, of, values = drawn
    column = batch_of(of, values)[1].column("v")
    pinned = Pinned("avro", "s", 0, 258, json.dumps(avro_schema(of)))
    encoder, decoder = Encoder("value", of, pinned, "test"), Avro(pinned, lambda: pytest.fail("no registry"), "test")
    for n, value in enumerate(values):
        try:
            (content,) = encoder.encoded(column.slice(n, 1)).to_pylist()
        except DataError:
            assert undecodable(pa.record_batch({"v": column.slice(n, 1)})) is not None
            continue
        assert content is None or content[:5] == b"\0\0\0\1\2"
        back = pa.array([None if content is None else decoder.value(content)], arrow_type(decoder.kind))
        assert plain(back.cast(column.type)[0]) == value


def test_the_schema_of_a_struct() -> None:
    def field(name: str, kind: Any) -> dict[str, Any]:
        return {"name": name, "type": ["null", kind], "default": None}

    found = avro_schema(columns("id bigint NOT NULL, lines array<struct<n: decimal(10,2)>>"))
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    line = {"type": "record", "name": "topLevelRecord.lines.element", "fields": [field("n", price)]}
    fields = [field("id", "long"), field("lines", {"type": "array", "items": ["null", line]})]
    assert found == {"type": "record", "name": "topLevelRecord", "fields": fields}
    assert avro_schema(columns("id bigint"), "shop.Order")["name"] == "shop.Order"
    parse_schema(found)


def test_records_of_the_same_shape_have_different_names() -> None:
    one = "struct<x: int, y: struct<x: int>>"
    ddl = f"a {one}, b array<{one}>, c map<string, {one}>, element {one}, topLevelRecord {one}"
    parse_schema(avro_schema(columns(ddl)))


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (columns("a map<int, string>"), "'a' is a map with keys of the type int, not string"),
        (columns("a struct<b: map<date, int>>"), r"'a\.b' is a map with keys of the type date"),
        (T.StructType().add("a", T.ArrayType(T.DayTimeIntervalType())), r"'a\.element' has the type interval day to"),
        (T.StructType().add("a", T.NullType()), "'a' has the type void"),
        (T.StructType().add("a b", T.IntegerType()), "'a b' has a name that Avro does not allow"),
        (T.StructType().add("ä", T.IntegerType()), "'ä' has a name that Avro does not allow"),
        (T.StructType().add("1", T.IntegerType()), "'1' has a name that Avro does not allow"),
        (columns("a int, A int"), "'a' is there twice, or as another name that differs in case only"),
        (T.StructType([]), "it is a struct without fields"),
    ],
)
def test_types_without_a_form_are_refused_by_their_place(of: T.DataType, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        avro_schema(of)


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "sent", "type": "boolean"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Two", "size": 2}},
    ],
}
COLUMNS = "id int, sent boolean, state string, at timestamp, amount decimal(10,2), tags array<string>, hash binary"
AT = datetime.datetime(2024, 5, 1, 12, 0, 0, 1000, datetime.timezone.utc)
ROW = {"id": 1, "sent": True, "state": "NEW", "at": AT, "amount": Decimal("12.50"), "tags": ["a"], "hash": b"ab"}


def test_rows_are_written_by_an_existing_schema() -> None:
    content = _order().encoded(pa.array([ROW], arrow_type(columns(COLUMNS))))[0].as_py()
    found: Any = schemaless_reader(io.BytesIO(content[5:]), parse_schema(dict(ORDER)), None)
    assert found == {**ROW, "note": None}


def _order(ddl: str = COLUMNS) -> Encoder:
    return Encoder("value", columns(ddl), Pinned("avro", "orders-value", 1, 9, json.dumps(ORDER)), "test")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sent": None}, "'sent' is null, which the schema does not allow"),  # the library writes false
        ({"id": None}, "'id' is null"),
        ({"tags": ["a", None]}, r"'tags\.element' is null"),
        ({"tags": None}, "'tags' is null"),
        ({"at": AT.replace(microsecond=1999)}, "'at' is 2024-05-01 12:00:00.001999.*, and would be written as"),
        ({"state": "LOST"}, "schema 9: ValueError"),
        ({"hash": b"abc"}, "schema 9: ValueError"),
        ({"amount": Decimal("12345.00")}, "'amount' is 12345.00, and the schema has 2 digits before the point"),
    ],
)
def test_a_value_that_an_existing_schema_does_not_take(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        _order().encoded(pa.array([{**ROW, **change}], arrow_type(columns(COLUMNS))))


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "string", "logicalType": "uuid"}, "no-uuid", "'no-uuid' is no UUID"),
        ({"type": "string", "logicalType": "uuid"}, f"{{{uuid.UUID(int=1)}}}", "is no UUID"),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=0xABCDEF)).upper(), None),
        ({"type": "int", "logicalType": "time-millis"}, 86_400_000, "a time of day is 86400000"),
        (["float", "double"], float("nan"), None),
        ({"type": "map", "values": "int"}, [("a", 1), ("a", 2)], r"it is \[\('a', 1\), \('a', 2\)\]"),
    ],
)
def test_what_a_reader_of_the_schema_would_not_have(schema: Any, value: Any, words: str | None) -> None:
    of = spark_type(schema)
    encoder = Encoder("value", of, Pinned("avro", "s", 1, 9, json.dumps(schema)), "test")
    if words is None:
        assert encoder.encoded(pa.array([value], arrow_type(of)))
        return
    with pytest.raises(DataError, match=f"the value of a row does not fit the schema 9: .*{words}"):
        encoder.encoded(pa.array([value], arrow_type(of)))


@pytest.mark.parametrize("amount", [99, -99, 0, 100, -1000, 12345])
def test_a_decimal_of_fewer_places_keeps_its_integer_digits(amount: int) -> None:
    """The library counts the digits of 1000, and not those of 1000.00, which it writes where four are allowed."""
    ddl = COLUMNS.replace("decimal(10,2)", "decimal(5,0)")
    encoder = _order(ddl)
    rows = pa.array([{**ROW, "amount": Decimal(amount)}], arrow_type(columns(ddl)))
    if abs(amount) >= 100:
        with pytest.raises(DataError, match=f"'amount' is {amount}, and the schema has 2 digits before the point"):
            encoder.encoded(rows)
        return
    content = encoder.encoded(rows)[0].as_py()
    found: Any = schemaless_reader(io.BytesIO(content[5:]), parse_schema(dict(ORDER)), None)
    assert found["amount"] == amount


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        (COLUMNS.replace("id int", "id string"), "'id' is string, and in the schema bigint"),
        (COLUMNS.replace("id int", "id decimal(3,0)"), "'id' is decimal"),
        (COLUMNS.replace("tags array<string>", "tags array<int>"), r"'tags\.element' is int, and in the schema string"),
        (COLUMNS.replace("decimal(10,2)", "decimal(10,3)"), "'amount' is decimal"),
        (COLUMNS.replace("at timestamp", "at timestamp_ntz"), "'at' is timestamp_ntz"),
        (COLUMNS + ", more int", "'more' is not in the schema"),
        (COLUMNS.replace("sent boolean, ", ""), "'sent' of the schema is not there, and must not be null"),
    ],
)
def test_columns_that_an_existing_schema_does_not_take(ddl: str, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        writer(columns(ddl), spark_type(ORDER))


def test_a_long_does_not_fit_an_int() -> None:
    with pytest.raises(Unsupported, match="it is bigint, and in the schema int"):
        writer(T.LongType(), T.IntegerType())
    assert writer(T.ByteType(), T.LongType()) is None


def test_maps_within_maps_keep_the_check_for_null() -> None:
    convert = writer(
        T.MapType(T.StringType(), T.MapType(T.StringType(), T.IntegerType())),
        T.MapType(T.StringType(), T.MapType(T.StringType(), T.IntegerType(), False), True),
    )
    assert convert is not None and convert([("a", [("b", 1)]), ("c", None)]) == {"a": {"b": 1}, "c": None}
    with pytest.raises(Unfit, match=r"'value\.value' is null"):
        convert([("a", [("b", None)])])
