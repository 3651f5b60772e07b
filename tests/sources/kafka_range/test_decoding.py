"""Avro, Protobuf and JSON as columns, by a registry and without a broker: types, resolution, bad records, refusals."""

import datetime
import io
import json
import pickle
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.types import StructField, StructType

from spark_ext import masking
from spark_ext.clients import schema_registry
from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.clients.proto_compiler import compiled, descriptor
from spark_ext.clients.schema_registry import Registry, RegistryOptions
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StorageError
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.avro import Unsupported, spark_type
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import BadRow
from spark_ext.sources.kafka_range.decoding import decoded
from spark_ext.sources.kafka_range.options import KafkaRangeOptions
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.sources.registered import Avro, Decoder, Undecodable
from tests.servers.schema_registry import PASSWORD, USER, Client, SchemaRegistry, apicurio
from tests.sources.files.files_kit import read_bad
from tests.sources.files.files_kit import source as files_source
from tests.sources.files.test_avro import logical

BASE = {"uid": "in", "bootstrap_servers": "127.0.0.1:9", "topics": "orders"}


def _record(fields: list[dict[str, Any]], name: str = "R", **more: str) -> str:
    return json.dumps({"type": "record", "name": name, **more, "fields": fields})


def _field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


MILLIS = logical("long", "timestamp-millis")
LOCAL = logical("long", "local-timestamp-micros")
PRICE = logical("bytes", "decimal", precision=5, scale=2)
AMOUNT = logical("bytes", "decimal", precision=10, scale=2)
DATE, TIME, MICROS = logical("int", "date"), logical("int", "time-millis"), logical("long", "time-micros")
UUID = logical("string", "uuid")
ORDER_1 = _record([_field("id", "long"), _field("amount", AMOUNT), _field("at", MILLIS)], "Order", namespace="shop")
NOTE, STATE = _field("note", ["null", "string"], default=None), _field("state", "string", default="new")
ORDER_2 = _record([_field("id", "long"), _field("at", MILLIS), NOTE, STATE], "Order", namespace="shop")
PROTO_2 = 'syntax = "proto3"; package shop; message Other { string b = 1; }'
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { string a = 1; }
message Order {
  enum State { NEW = 0; SENT = 1; }
  message Line { string what = 1; uint64 count = 2; }
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  repeated Line lines = 4;
  map<string, double> prices = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int32Value rating = 7;
  Line main = 8;
  bytes raw = 9;
}
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_kept", {})
    monkeypatch.setattr(masking, "_known", frozenset())


def framed(id: int, schema: str, value: Any) -> bytes:
    """A record as a registry's serializers write it."""
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(schema)), value)
    return b"\0" + id.to_bytes(4, "big") + out.getvalue()


def source(registry: Client, **options: str) -> KafkaRange:
    given = {**BASE, "schema_registry_url": registry.url, "value_format": "avro", **options}
    return KafkaRange({**given, "topics": f"{registry.prefix}orders"})


def value_decoder(registry: Client, **options: str) -> Decoder:
    found = pickle.loads(pickle.dumps(_loaded(registry, **options)))._formats.decoder("value")
    assert found is not None
    return found


def _read(decoder: Decoder, content: bytes) -> Any:
    return pa.array([decoder.value(content)], arrow_type(decoder.kind)).to_pylist()[0]


def _loaded(registry: Client, **options: str) -> KafkaRange:
    made = source(registry, **options)
    made.schema()
    return made


def _reads_old_and_new_records(registry: Client) -> None:
    """The query is defined with the second version; records of the first one have what that version says."""
    first, second = registry.register("orders-value", ORDER_1), registry.register("orders-value", ORDER_2)
    made = _loaded(registry)
    assert made.schema()["value"].dataType.simpleString() == "struct<id:bigint,at:timestamp,note:string,state:string>"
    decoder = value_decoder(registry)
    old = framed(first, ORDER_1, {"id": 1, "amount": Decimal("2.50"), "at": NOON})
    new = framed(second, ORDER_2, {"id": 2, "at": NOON, "note": "x", "state": "sent"})
    assert _read(decoder, old) == {"id": 1, "at": NOON, "note": None, "state": "new"}
    assert _read(decoder, new) == {"id": 2, "at": NOON, "note": "x", "state": "sent"}
    pinned = value_decoder(registry, value_version="1")
    assert pinned.kind.simpleString() == "struct<id:bigint,amount:decimal(10,2),at:timestamp>"
    assert _read(pinned, old) == {"id": 1, "amount": Decimal("2.50"), "at": NOON}
    with pytest.raises(Undecodable, match=f"not of the schema {second}: SchemaResolutionError"):
        pinned.value(new)  # the amount has no default
    with pytest.raises(Undecodable, match="schema 4711, which the registry does not have"):
        decoder.value(framed(4711, ORDER_1, {"id": 1, "amount": Decimal(1), "at": NOON}))


def _reads_messages(registry: Client) -> None:
    id = registry.register("orders-value", PROTO, "PROTOBUF")
    decoder = value_decoder(registry, value_format="protobuf", value_message="shop.Order")
    assert decoder.kind.simpleString() == (
        "struct<id:bigint,note:string,state:string,lines:array<struct<what:string,count:decimal(20,0)>>,"
        "prices:map<string,double>,at:timestamp,rating:int,main:struct<what:string,count:decimal(20,0)>,raw:binary>"
    )
    client = Registry(RegistryOptions(schema_registry_url=registry.url), 10.0, "test")
    text, _ = compiled(client, client.schema(id), "shop.Order")
    kind: Any = GetMessageClass(descriptor(text, "shop.Order"))
    message = kind(id=7, state=1, prices={"a": 1.5}, raw=b"\0")
    message.lines.add(what="x", count=2**64 - 1)
    message.at.FromDatetime(NOON)
    message.rating.value = 0
    head = b"\0" + id.to_bytes(4, "big")
    assert decoder.value(head + b"\2\2" + message.SerializeToString()) == {
        "id": 7, "note": None, "state": "SENT", "lines": [{"what": "x", "count": Decimal(2**64 - 1)}],
        "prices": [("a", 1.5)], "at": NOON, "rating": 0, "main": None, "raw": b"\0",
    }  # fmt: skip
    with pytest.raises(Undecodable, match=r"it is message \[0\] of its schema, and shop.Order is \[1\]"):
        decoder.value(head + b"\0" + message.SerializeToString())
    with pytest.raises(Undecodable, match=r"it is not a shop\.Order"):
        decoder.value(head + b"\2\2" + b"\xff\xff")
    with pytest.raises(Undecodable, match="place of its message"):
        decoder.value(head + b"\xff\xff")
    assert value_decoder(registry, value_format="protobuf").kind.simpleString() == "struct<a:string>"


def _resolves_references(registry: Client) -> None:
    registry.register("address", _record([_field("city", "string")], "Address", namespace="shop"))
    fields = [_field("home", "shop.Address"), _field("work", ["null", "shop.Address"])]
    customer = _record(fields, "Customer", namespace="shop")
    references = [{"name": "shop.Address", "subject": "address", "version": 1}]
    id = registry.register("customers", customer, references=references)
    decoder = value_decoder(registry, value_subject="customers")
    assert decoder.kind.simpleString() == "struct<home:struct<city:string>,work:struct<city:string>>"
    assert decoder.value(b"\0" + id.to_bytes(4, "big") + b"\2a\0") == {"home": {"city": "a"}, "work": None}


@pytest.mark.parametrize("reads", [_reads_old_and_new_records, _reads_messages, _resolves_references])
def test_keys_and_values_are_read(registry: SchemaRegistry, reads: Callable[[Client], None]) -> None:
    reads(registry)


@pytest.mark.slow(15, "starts a real registry")
def test_the_same_with_a_registry_that_is_not_ours(tmp_path: Path) -> None:
    with apicurio(tmp_path) as there:
        _reads_old_and_new_records(there)
        _resolves_references(there)
        there.prefix = "p-"
        _reads_messages(there)


def test_what_was_loaded_stays_when_a_newer_version_comes(registry: SchemaRegistry) -> None:
    """Planner and tasks have the source that Spark has asked for its schema, and ask for no version again."""
    registry.register("orders-value", ORDER_1)
    loaded = pickle.dumps(_loaded(registry))
    second = registry.register("orders-value", ORDER_2)
    asked = len(registry.asked)
    decoder = pickle.loads(loaded)._formats.decoder("value")
    assert "amount" in decoder.kind.names and len(registry.asked) == asked
    with pytest.raises(Undecodable, match="SchemaResolutionError"):
        decoder.value(framed(second, ORDER_2, {"id": 2, "at": NOON, "note": None, "state": "x"}))
    assert registry.asked[asked:] == [f"schemas/ids/{second}"]


def test_the_version_is_part_of_the_identity(registry: SchemaRegistry) -> None:
    registry.register("orders-value", ORDER_1)
    given = {**BASE, "schema_registry_url": registry.url, "value_format": "avro"}

    def identity(**more: str) -> dict[str, str]:
        return KafkaRangeOptions.parse("kafka_range", {**given, **more}).identity()

    first = identity()
    assert (first["value_format"], first["value_subject"]) == ("avro", "orders-value")
    assert first["value_version"].startswith("1 (schema ")
    assert first["schema_registry_url"] == registry.url
    registry.register("orders-value", ORDER_2)
    assert identity()["value_version"].startswith("2 "), "a start with 'latest' is another one, and is refused by name"
    assert identity(value_version="1") == first, "and the query continues with the version that it had"
    plain = KafkaRangeOptions.parse("kafka_range", BASE).identity()
    assert plain == {"bootstrap_servers": "127.0.0.1:9", "topics": "orders"}


def test_a_version_newer_than_the_definition_is_refused(registry: SchemaRegistry) -> None:
    registry.register("orders-value", ORDER_1)
    made = _loaded(registry)
    made.declared = made.schema()
    registry.register("orders-value", ORDER_2)
    with pytest.raises(ConfigurationError, match="version 2 of the subject 'orders-value' was registered while"):
        made.resume((), frozenset())
    older = _loaded(registry, value_version="1")
    older.declared = older.schema()
    older.resume((), frozenset())
    registry.delete("orders-value")
    registry.register("orders-value", ORDER_2)
    with pytest.raises(ConfigurationError, match="version 1 of the subject 'orders-value' became another schema"):
        older.resume((), frozenset())


@pytest.mark.parametrize(("kind", "first", "second"), [("avro", ORDER_1, ORDER_2), ("protobuf", PROTO, PROTO_2)])
def test_a_subject_deleted_and_registered_anew_is_another_one(
    registry: SchemaRegistry, kind: str, first: str, second: str
) -> None:
    """Its versions are counted from 1 again, so that the number alone would be the same."""
    given = {**BASE, "schema_registry_url": registry.url, "value_format": kind, "value_version": "1"}

    def identity(schema: str) -> dict[str, str]:
        registry.register("orders-value", schema, kind.upper())
        return KafkaRangeOptions.parse("kafka_range", given).identity()

    known = identity(first)
    registry.delete("orders-value")
    changed = identity(second)
    assert {name for name in known if known[name] != changed[name]} == {"value_version"}
    assert changed["value_version"].startswith("1 (schema ") and known["value_version"].startswith("1 (schema ")
    registry.delete("orders-value")
    same = json.dumps(json.loads(first), indent=2) if kind == "avro" else first
    assert identity(same) == known, "the same schema, registered anew, continues"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not begin with a zero"),
        (b"\1\0\0\0\1\2", "does not begin with a zero"),
        (b"\0\0\0\0", "does not begin with a zero"),
        (b"\0\0\0\0\1", "not of the schema 1: EOFError"),
        (b"\0\0\0\0\1\2\4", "not of the schema 1"),
        (b"\0\0\0\0\2\0\0", "longer than a value of the schema 2"),
        (b"\0\0\0\0\3\2a", "schema 3, which is of another format"),
        (b"\0\0\0\0\4\2a", "not of the schema 4: SchemaResolutionError"),
        (b"\0\0\0\0\x63\2a", "schema 99, which the registry does not have"),
    ],
)
def test_records_that_cannot_be_decoded(registry: SchemaRegistry, content: bytes, words: str) -> None:
    registry.register("orders-value", ORDER_1)
    registry.register("other", '"int"')
    registry.register("message", PROTO, "PROTOBUF")
    registry.register("text", '"string"')
    decoder = value_decoder(registry, **({"value_subject": "other"} if content[4:5] == b"\2" else {}))
    with pytest.raises(Undecodable, match=words):
        decoder.value(content)


FIELDS = "id bigint, at timestamp, s struct<a: double, b: array<int>>"
ODD_OBJECTS = (
    '{"id": 1, "at": "2024-05-01T12:00:00Z", "s": {"a": 1, "b": [1, null]}}', '{"id": 2, "more": {"x": [1]}}', "{}",
    '{"id": "3"}', '{"id": 3.5}', '{"id": 1, "id": 2}', '{"id": 4', '{"id": 5}{"id": 6}', "7", "[]", "{",
    '{"s": {"a": 1, "a": 2}}', '{"at": "2024-02-30T00:00:00Z"}', '{"id": 9223372036854775808}', '{"s": {"b": [1.5]}}',
    '{"id": null}', '{"s": {"a": Infinity}}', '{"s": {"a": -NaN}}', '{"z": 1e999}',
)  # fmt: skip


def test_fields_of_json_are_those_of_files(tmp_path: Path) -> None:
    """By the same rules: the same values, and what is a bad row of one is a bad row of the other."""
    (tmp_path / "x.json").write_text("\n".join(ODD_OBJECTS))
    rows, bad = read_bad(files_source(tmp_path, FIELDS, on_bad_row="quarantine"))
    made = KafkaRange({**BASE, "value_format": "json"})
    made.declared = StructType([StructField("value", columns(FIELDS))])
    decoder = made._decoder("value")
    assert decoder is not None and made.schema()["value"].dataType == made.declared["value"].dataType
    texts = [text.encode() for text in ODD_OBJECTS]
    why: dict[int, str] = {}
    found = decoder.column([None, *texts, b"\0\0\0\0\1" + texts[0]], why.__setitem__).to_pylist()
    assert len(rows) > 3 and found[0] is None and found[-1] == rows[0]
    assert [row for n, row in enumerate(found[1:-1], 1) if n not in why] == rows
    assert [texts[n - 1] for n in sorted(why)] == [one.raw for one in bad]
    assert decoder.value(texts[0]) == rows[0]
    with pytest.raises(Undecodable, match="has the value"):
        decoder.value(b'{"id": "3"}')


def test_fields_that_json_cannot_have_are_refused() -> None:
    wrong = {
        "id bigint": "fields of JSON are declared within its column, such as value struct<id: bigint>",
        "value array<struct<a: int>>": "fields of JSON are declared within its column",
        "key struct<a: int>": "column 'key struct<a:int>' is not one of this source",
        "value struct<a: map<string, int>>": "column 'a' has the type map",
    }
    for declared, words in wrong.items():
        made = KafkaRange({**BASE, "value_format": "json"})
        made.declared = columns(declared)
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            made.resume((), frozenset())


def test_bad_rows_of_a_batch_are_left_out_with_their_places(registry: SchemaRegistry) -> None:
    """Of key and value, and of what decodes but has more digits than its type."""
    id = registry.register("orders-value", ORDER_1)
    good = framed(id, ORDER_1, {"id": 1, "amount": Decimal("2.50"), "at": NOON})
    long = b"\0" + id.to_bytes(4, "big") + b"\2" + b"\x14" + b"\x7f" * 10 + b"\0"
    made = source(registry, key_format="json")
    decoders = {name: made._formats.decoder(name) for name in ("key", "value")}
    batch = pa.RecordBatch.from_pydict(
        {
            "key": [b'{"a": 1}', None, b"{", b"1", b"[]", b"\0\0\0\0\1[]", b"[NaN]", b"9" * 5_000],
            "value": [good, None, good, b"garbage", long, good, None, None],
            "offset": pa.array([3, 4, 7, 8, 9, 10, 11, 12], pa.int64()),
        }
    )
    bad: list[tuple[BadRow, DataError]] = []
    found = decoded(batch, decoders, ["key", "value"], ("orders", 2), lambda *one: bad.append(one), "test")  # type: ignore[arg-type]
    assert found.column("key").to_pylist() == ['{"a": 1}', None, "[]", "9" * 5_000]
    row = {"id": 1, "amount": Decimal("2.50"), "at": NOON}
    assert found.column("value").to_pylist() == [row, None, row, None]
    places = [one.position for one, _ in bad]
    assert places == [{"topic": "orders", "partition": 2, "offset": offset} for offset in (7, 8, 9, 11)]
    assert [one.raw for one, _ in bad] == [b"{", b"garbage", long, b"[NaN]"]
    assert bad[0][0].reason.startswith("key: it is not JSON") and "does not fit struct" in bad[2][0].reason
    assert "the value of the message at offset 8 of partition 2 of topic 'orders' is bad" in str(bad[1][1])


def test_a_registry_that_is_down_is_no_bad_row(registry: SchemaRegistry) -> None:
    first = registry.register("orders-value", ORDER_1)
    registry.register("orders-value", ORDER_2)
    decoder = value_decoder(registry)
    registry.status = 503
    with pytest.raises(StorageError, match="did not answer, the schema 1: not now"):
        decoder.value(framed(first, ORDER_1, {"id": 1, "amount": Decimal(1), "at": NOON}))
    registry.status = 200
    assert decoder.value(framed(first, ORDER_1, {"id": 1, "amount": Decimal(1), "at": NOON}))["id"] == 1


def test_types_of_avro() -> None:
    """Their values are those of `tests/schemas`, for any schema."""
    kinds: list[tuple[Any, str]] = [
        ("int", "int"), ({"type": "boolean"}, "boolean"), (["null", "double"], "double"),
        (["int", "long", "null"], "bigint"), (["float", "double"], "double"), (DATE, "date"), (TIME, "int"),
        (MICROS, "bigint"), (logical("long", "unknown"), "bigint"), (UUID, "string"), (AMOUNT, "decimal(10,2)"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"), (MILLIS, "timestamp"),
        ({"type": "fixed", "name": "F", "size": 2}, "binary"), (LOCAL, "timestamp_ntz"),
        (logical("fixed", "uuid", name="U", size=16), "binary"), ({"type": "map", "values": "int"}, "map<string,int>"),
        ({"type": "array", "items": ["null", UUID]}, "array<string>"),
    ]  # fmt: skip
    fields = [_field(f"f{number}", schema) for number, (schema, _) in enumerate(kinds)]
    found: Any = spark_type(json.loads(_record(fields)))
    assert [field.dataType.simpleString() for field in found] == [kind for _, kind in kinds]


NOON_MILLIS = int(NOON.timestamp() * 1000)
SHOUTED = "ABCDEF00-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("long", MILLIS, NOON_MILLIS, NOON),
        (["null", "long"], ["null", MILLIS], NOON_MILLIS, NOON),
        ("long", LOCAL, NOON_MILLIS * 1000, NOON.replace(tzinfo=None)),
        ("int", DATE, NOON_MILLIS // 86_400_000, NOON.date()),
        ("int", TIME, 1005, 1005),
        ("long", MICROS, 1005, 1005),
        ("bytes", PRICE, b"\xff\x85", Decimal("-1.23")),
        (UUID, "string", uuid.UUID(int=1), str(uuid.UUID(int=1))),
        # what a version drops
        (MILLIS, "long", NOON, NOON_MILLIS),
        (["null", MILLIS], ["null", "long"], NOON, NOON_MILLIS),
        (LOCAL, "long", NOON.replace(tzinfo=None), NOON_MILLIS * 1000),
        (DATE, "int", NOON.date(), NOON_MILLIS // 86_400_000),
        (DATE, "double", NOON.date(), NOON_MILLIS // 86_400_000),
        (TIME, "int", datetime.time(0, 0, 1, 5000), 1005),
        (MICROS, "long", datetime.time(0, 0, 1), 1_000_000),
        (PRICE, "bytes", Decimal("-1.23"), b"\x85"),
        (PRICE, "bytes", Decimal("1.28"), b"\0\x80"),
        # other units and scales
        (MILLIS, logical("long", "timestamp-micros"), NOON, NOON),
        (LOCAL, logical("long", "local-timestamp-millis"), *[NOON.replace(tzinfo=None, microsecond=7)] * 2),
        (logical("long", "timestamp-nanos"), MILLIS, NOON_MILLIS * 10**6, NOON),
        (TIME, MICROS, 5, 5000),
        (PRICE, {**PRICE, "scale": 3, "precision": 6}, Decimal("-1.23"), Decimal("-1.230")),
        (UUID, "string", SHOUTED, SHOUTED),
        (UUID, UUID, SHOUTED, SHOUTED),
    ],
)
def test_a_value_has_the_logical_type_of_the_pinned_version(
    registry: SchemaRegistry, writer: Any, reader: Any, value: Any, found: Any
) -> None:
    """As in Avro for Java."""
    first, second = (_record([{"name": "x", "type": one}]) for one in (writer, reader))
    id = registry.register("orders-value", first)
    registry.register("orders-value", second)
    assert _read(value_decoder(registry), framed(id, first, {"x": value})) == {"x": found}


@pytest.mark.parametrize(
    ("schema", "content", "words"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\1", "an index is -1, and there are 2"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\4", "an index is 2, and there are 2"),
        (["null", "int"], b"\1\2", "an index is -1, and there are 2"),
        ("long", b"\x80" * 10 + b"\1", "a number has more than 64 bits"),
        ("long", b"\xff" * 9 + b"\2", "a number has more than 64 bits"),
        ("int", b"\xff" * 5 + b"\1", "an int is "),
        ("boolean", b"\2", "a boolean is 2"),
        ("string", b"\1", "a length is -1"),
        ("string", b"\4\xed\xa0", "UnicodeDecodeError"),
        (logical("string", "uuid"), b"\4ab", "'ab' is no UUID"),
        (logical("int", "time-millis"), b"\1", "a time of day is -1"),
        (logical("bytes", "decimal", precision=38), b"\x28" + b"\x7f" * 20, "a decimal has more than 38 digits"),
        ({"type": "array", "items": "int"}, b"\4\2\2\x80\x80\x80\x80\x20", "it has more items than bytes"),
        ({"type": "array", "items": "int"}, b"\3\2\2\2\0", "a block does not have its 1 bytes"),
        ({"type": "map", "values": "int"}, b"\1\2", "EOFError"),
    ],
)
def test_damaged_bytes_are_no_value(schema: Any, content: bytes, words: str) -> None:
    """As an index -1 would be the last symbol or type; a number of any length would be cut off."""
    decoder = Avro(Pinned("avro", "s", 1, 1, json.dumps(schema)), lambda: pytest.fail("asked the registry"), "test")
    with pytest.raises(Undecodable, match=f"it is not of the schema 1: .*{words}"):
        decoder.value(b"\0\0\0\0\1" + content)


@pytest.mark.parametrize(
    ("writer", "reader", "value"),
    [
        ("long", "double", 2**53 + 1),
        ("int", "float", 2**24 + 1),
        (logical("long", "timestamp-nanos"), MILLIS, 1),
        (DATE, logical("int", "time-millis"), NOON.date()),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"ab"),
        (["null", "int"], "int", None),
        (["string", "int"], "int", "x"),
    ],
)
def test_values_that_another_version_cannot_have(
    registry: SchemaRegistry, writer: Any, reader: Any, value: Any
) -> None:
    first, second = (_record([{"name": "x", "type": one}]) for one in (writer, reader))
    id = registry.register("orders-value", first)
    registry.register("orders-value", second)
    with pytest.raises(Undecodable, match="SchemaResolutionError"):
        value_decoder(registry).value(framed(id, first, {"x": value}))


def test_what_a_version_leaves_out_is_passed_over(registry: SchemaRegistry) -> None:
    """However it is made: a list within itself, a union, a block with its size; and an alias is another name."""
    node = json.loads(_record([_field("next", ["null", "Node"])], "Node"))
    either = _field("either", ["string", {"type": "array", "items": "int"}])
    first = _record([_field("list", node), either, _field("old", ["int", "null"])])
    id = registry.register("orders-value", first)
    registry.register("orders-value", _record([_field("new", "long", aliases=["old"])]))
    decoder = value_decoder(registry)
    content = framed(id, first, {"list": {"next": {"next": None}}, "either": [1, 2], "old": 7})
    assert decoder.value(content) == {"new": 7}
    assert decoder.value(content.replace(b"\4\2\4\0", b"\3\4\2\4\0")) == {"new": 7}
    with pytest.raises(Undecodable, match="RecursionError"):
        decoder.value(content[:5] + b"\2" * 100_000)


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        (MILLIS, NOON_MILLIS, NOON),
        ("bytes", "\u00ff1", b"\xff1"),
        ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
        ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, [("a", b"\xff")]),
        (PRICE, "\u00ff\u0085", Decimal("-1.23")),
        (TIME, 7, 7),
        (json.loads(_record([_field("t", MILLIS)], "S")), {"t": NOON_MILLIS}, {"t": NOON}),
        (json.loads(_record([_field("n", "int", default=7)], "S")), {}, {"n": 7}),
    ],
)
def test_a_default_is_a_value_of_its_type(registry: SchemaRegistry, kind: Any, default: Any, found: Any) -> None:
    first = _record([{"name": "id", "type": "int"}])
    id = registry.register("orders-value", first)
    registry.register("orders-value", _record([{"name": "x", "type": kind, "default": default}]))
    assert _read(value_decoder(registry), framed(id, first, {"id": 1})) == {"x": found}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('"null"', "the schema is always null"),
        ('["int", "string"]', "the schema is a union of 2 types"),
        (_record([]), "record R, which has no fields"),
        (_record([_field("next", ["null", "R"])]), "'next' contains itself: the record R"),
        (_record([_field("a", "int"), _field("A", "int")]), "differ in case only"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 50}', "decimal of 50 digits"),
        (_record([_field("a", {"type": "array", "items": ["int", "string"]})]), "'a.element' is a union"),
    ],
)
def test_schemas_without_a_form_are_refused_at_definition(registry: SchemaRegistry, schema: str, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        spark_type(json.loads(schema))
    registry.register("orders-value", schema)
    with pytest.raises(ConfigurationError, match=f"version 1 of the .* 'orders-value' has no form in Spark: .*{words}"):
        source(registry).schema()


def _branching(levels: int, branches: int) -> str:
    """A record of records, each of which refers to the one below it again and again."""
    kind: Any = "int"
    for level in range(levels):
        others = [_field(f"f{number}", f"R{level - 1}" if level else "int") for number in range(1, branches)]
        kind = json.loads(_record([_field("f0", kind), *others], f"R{level}"))
    return json.dumps(kind)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (_branching(9, 10), "has no form in Spark: it has more than 10000 parts"),
        (_branching(150, 1), "more than 100 types within one another"),
        ('{"type": "array", "items": ' * 150 + '"int"' + "}" * 150, "more than 100 types within one another"),
        ('{"type": "array", "items": ' * 3000 + '"int"' + "}" * 3000, "cannot be parsed: RecursionError"),
        ('{"type": "nothing"}', "cannot be parsed: "),
        ("{", "cannot be parsed: JSONDecodeError"),
    ],
)
def test_hostile_schemas_are_refused_by_name(registry: SchemaRegistry, schema: str, words: str) -> None:
    id = registry.register("orders-value", schema)
    with pytest.raises(ConfigurationError, match=f"version 1 of the subject 'orders-value' .*{words}"):
        source(registry).schema()
    registry.register("other", _record([_field("x", "int")]))
    with pytest.raises(Undecodable):  # as the schema of a writer
        value_decoder(registry, value_subject="other").value(b"\0" + id.to_bytes(4, "big") + b"\2")


def test_a_message_that_contains_itself_is_refused(registry: SchemaRegistry) -> None:
    registry.register("orders-value", 'syntax = "proto3"; message Node { Node next = 1; }', "PROTOBUF")
    with pytest.raises(ConfigurationError, match="'next' contains itself: the message Node"):
        source(registry, value_format="protobuf").schema()


AVRO = {"value_format": "avro", "schema_registry_url": "http://r"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"value_format": "avro"}, "value_format=avro needs schema_registry_url"),
        ({"key_format": "protobuf"}, "key_format=protobuf needs schema_registry_url"),
        ({"value_format": "xml"}, "'bytes', 'json', 'avro' or 'protobuf'"),
        ({"schema_registry_url": "http://r"}, "schema_registry_url needs value_format or key_format"),
        ({"schema_registry_options": '{"a": "b"}'}, "schema_registry_options needs value_format"),
        ({"value_format": "json", "schema_registry_url": "http://r"}, "schema_registry_url needs value_format or"),
        ({"value_subject": "s"}, "value_subject needs value_format=avro or protobuf"),
        ({"value_version": "3"}, "value_version needs value_format=avro or protobuf"),
        ({"key_message": "a.B"}, "key_message needs key_format=protobuf"),
        ({"value_format": "avro", "schema_registry_url": "r:8081"}, "not an address such as https://registry"),
        ({"value_format": "avro", "schema_registry_url": "http://me:pass-word@r"}, "credentials belong into"),
        ({**AVRO, "value_version": "0"}, "versions count from 1"),
        ({**AVRO, "value_version": "new"}, "value_version"),
        ({**AVRO, "topics": "a,b"}, "value_subject is needed"),
        ({**AVRO, "schema_registry_options": '{"url": "x"}'}, "'url' is set by the connector"),
        ({**AVRO, "schema_registry_options": "pass-word"}, "not a JSON object"),
        ({"min_partitions": "0"}, "greater than 0"),
        ({"min_partitions": "4", "readers": "2"}, "readers=2 is less than min_partitions=4"),
        ({"internal_topics": "true"}, "internal_topics needs pattern"),
        ({"starting_timestamp_unmatched": "refuse"}, "starting_timestamp_unmatched needs starting_timestamp"),
        ({"starting_timestamp": "2024-01-01", "starting_timestamp_unmatched": "error"}, "'latest' or 'refuse'"),
        ({"value_formats": "avro"}, "did you mean 'value_format'"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        KafkaRange({**BASE, **options})
    assert "pass-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"value_subject": "none"}, ConfigurationError, "does not have the latest version of 'none'"),
        ({"value_version": "9"}, ConfigurationError, "does not have version 9 of 'orders-value'"),
        ({"value_format": "protobuf"}, ConfigurationError, "is a schema of the format avro, not protobuf"),
        ({"value_format": "protobuf", "value_subject": "message", "value_message": "shop.Nothing"}, ConfigurationError,
         "has no message 'shop.Nothing'"),
        ({"schema_registry_options": '{"basic.auth.user": "a"}'}, ConfigurationError, "Unrecognized properties"),
        ({"schema_registry_options": '{"basic.auth.user.info": "${NOT_SET_ANYWHERE}"}'}, ConfigurationError,
         "variable NOT_SET_ANYWHERE, which is not set"),
        ({"schema_registry_url": "http://127.0.0.1:9"}, StorageError, "http://127.0.0.1:9 did not answer"),
    ],
)  # fmt: skip
def test_what_is_refused_when_the_query_is_defined(
    registry: SchemaRegistry, options: dict[str, str], kind: type[SparkExtError], words: str
) -> None:
    registry.register("orders-value", ORDER_1)
    registry.register("message", PROTO, "PROTOBUF")
    with pytest.raises(kind, match=words):
        source(registry, **options).schema()


def test_a_registry_that_asks_for_a_password(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.closed = True
    registry.register("orders-value", ORDER_1)
    with pytest.raises(ConfigurationError, match=r"refuses .*orders-value.*Unauthorized"):
        source(registry).schema()
    monkeypatch.setenv("OF_THE_REGISTRY", PASSWORD)
    options = {"schema_registry_options": f'{{"basic.auth.user.info": "{USER}:${{OF_THE_REGISTRY}}"}}'}
    made = source(registry, **options)
    assert "amount" in made.schema()["value"].dataType.simpleString()
    assert masking.mask(f"x {PASSWORD}") == "x ***"
    assert PASSWORD not in repr(made.options) and made.options.public()["schema_registry_options"] == "***"
