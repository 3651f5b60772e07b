"""Avro in `kafka_2pc`, by a registry: what is refused before anything is written, and histories with a broker."""

import datetime
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_ext import masking
from spark_ext.clients import schema_registry
from spark_ext.errors import ConfigurationError, DataError, StorageError
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.avro_rows import avro_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome
from spark_ext.sinks.kafka_2pc import formats
from spark_ext.sinks.kafka_2pc.formats import Formats
from spark_ext.sinks.kafka_2pc.sink import KafkaSinkOptions
from spark_ext.sources.kafka_range.source import KafkaRange
from tests.servers.kafka import Broker
from tests.servers.schema_registry import PASSWORD, USER, Client, SchemaRegistry, apicurio
from tests.sinks.kafka_2pc.kafka_kit import QUERY, Sink

ROWS = columns("key string, value struct<id: bigint, note: string, at: timestamp>")
WIDER = columns("key string, value struct<id: bigint, note: string, at: timestamp, more: int>")
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
AVRO = {"value_format": "avro", "schema_registry_url": "http://r"}
ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as there:
        yield there


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_kept", {})
    monkeypatch.setattr(formats, "_kept", {})
    monkeypatch.setattr(masking, "_known", frozenset())


def options(registry: Client | None = None, /, **given: Any) -> KafkaSinkOptions:
    base = {"uid": "out", "bootstrap_servers": "127.0.0.1:9", "topic": "orders"}
    if registry is not None:
        base |= {"schema_registry_url": registry.url, "value_format": "avro"}
    return KafkaSinkOptions.parse("kafka_2pc", {**base, **given})


def row(id: int, key: str | None = None) -> dict[str, Any]:
    return {"key": key, "value": {"id": id, "note": None, "at": NOON}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"value_format": "avro"}, "value_format=avro needs schema_registry_url"),
        ({"key_format": "avro"}, "key_format=avro needs schema_registry_url"),
        ({"value_format": "protobuf"}, "value_format"),
        ({"schema_registry_url": "http://r"}, "schema_registry_url needs value_format=avro or key_format=avro"),
        ({"auto_register": "false"}, "auto_register needs value_format=avro"),
        ({"value_subject": "s"}, "value_subject needs value_format=avro"),
        ({**AVRO, "key_version": "1"}, "key_version needs key_format"),
        ({**AVRO, "value_version": "latest"}, "by its number"),
        ({**AVRO, "value_version": "0"}, "value_version"),
        ({**AVRO, "value_record": "a b"}, "value_record"),
        ({**AVRO, "value_record": "A", "value_version": "1"}, "value_record needs a schema that is made from the rows"),
        ({**AVRO, "schema_registry_url": "http://me:pass-word@r"}, "credentials belong into"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        options(**given)
    assert "pass-word" not in str(refused.value)


def test_without_a_topic_a_subject_is_needed() -> None:
    given = {"uid": "out", "bootstrap_servers": "b:1", **AVRO}
    with pytest.raises(ConfigurationError, match="value_subject is needed, because the option 'topic' is not set"):
        KafkaSinkOptions.parse("kafka_2pc", given)
    assert KafkaSinkOptions.parse("kafka_2pc", {**given, "value_subject": "s"}).subject("value") == "s"


def test_the_registry_is_part_of_the_identity_if_there_is_one(registry: SchemaRegistry) -> None:
    with_one = options(registry, schema_registry_options=f'{{"basic.auth.user.info": "{USER}:{PASSWORD}"}}')
    assert with_one.identity()["schema_registry_url"] == registry.url
    assert PASSWORD not in repr(with_one) and with_one.public()["schema_registry_options"] == "***"
    plain = {"bootstrap_servers": "127.0.0.1:9", "epochs_topic": "spark-ext-epochs", "topic": "orders"}
    assert options().identity() == plain


def check(given: KafkaSinkOptions, schema: Any = ROWS) -> None:
    Formats(given, schema, "sink 'out'").check()


def _compatible_schemas_are_registered_and_others_refused(registry: Client) -> None:
    subject = {"value_subject": f"{registry.prefix}checked"}
    given = options(registry, **subject)
    check(given)
    with pytest.raises(ConfigurationError, match="does not have the schema of the rows, and auto_register=false"):
        check(options(registry, auto_register="false", **subject))
    first = Formats(given, ROWS, "test").take()["value"]
    assert Formats(given, ROWS, "test").take()["value"]._id == first._id, "and by the next start again"
    check(options(registry, auto_register="false", **subject))
    # Which ids a registry gives is its own matter; another schema has another one.
    assert Formats(given, WIDER, "test").take()["value"]._id != first._id
    assert Formats(given, ROWS, "test").take()["value"]._id == first._id


def test_schemas_are_registered_by_the_start_and_not_the_check(registry: SchemaRegistry) -> None:
    check(options(registry))
    assert registry.asked == ["subjects/orders-value", "compatibility/subjects/orders-value/versions/latest"]
    _compatible_schemas_are_registered_and_others_refused(registry)


def test_an_incompatible_schema_is_refused_by_name(registry: SchemaRegistry) -> None:
    registry.register("orders-value", ORDER)
    registry.fixed.add("orders-value")
    with pytest.raises(ConfigurationError, match="not compatible with the subject 'orders-value'") as refused:
        check(options(registry))
    assert "topLevelRecord" in str(refused.value), "the schema, to register it otherwise"
    with pytest.raises(ConfigurationError, match=r"not compatible with the subject 'orders-value'.*incompatible with"):
        Formats(options(registry), ROWS, "test").take()  # it became so after the check
    check(options(registry, value_subject="another"))


@pytest.mark.slow(15, "starts a real registry")
def test_the_same_with_a_registry_that_is_not_ours(tmp_path: Path) -> None:
    with apicurio(tmp_path) as there:
        _compatible_schemas_are_registered_and_others_refused(there)
        there.register("orders-value", ORDER)
        body = json.dumps({"compatibility": "FULL"}).encode()
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{there.url}/config/orders-value", body, kind, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        with pytest.raises(ConfigurationError, match="not compatible with the subject 'orders-value'"):
            check(options(there), columns("value struct<id: string>"))


@pytest.mark.parametrize(
    ("schema", "given", "words"),
    [
        ("key string", {}, "column 'value' does not exist, and value_format=avro"),
        ("value map<int, int>", {}, "the column 'value' has no form in Avro: it is a map with keys of the type int"),
        ("value struct<a: map<date, int>>", {}, "no form in Avro: 'a' is a map"),
        ("value struct<id: bigint>", {"value_version": "7"}, "does not have version 7"),
        ("value struct<id: string>", {"value_version": "1"}, "'id' is string, and in the schema bigint"),
        ("value struct<x: int>", {"value_version": "1"}, "version 1 of the subject 'orders-value': 'x' is not in the"),
        ("value struct<id: bigint>", {"value_version": "1", "value_subject": "m"}, "of the format protobuf, not avro"),
    ],
)
def test_columns_without_form(registry: SchemaRegistry, schema: str, given: dict[str, str], words: str) -> None:
    registry.register("orders-value", ORDER)
    registry.register("m", 'syntax = "proto3"; message A { int64 id = 1; }', "PROTOBUF")
    with pytest.raises(ConfigurationError, match=words):
        check(options(registry, **given), columns(schema))


def test_a_registry_that_does_not_answer_or_wants_a_password(registry: SchemaRegistry) -> None:
    registry.closed = True
    with pytest.raises(ConfigurationError, match="Unauthorized"):
        check(options(registry))
    check(options(registry, schema_registry_options=f'{{"basic.auth.user.info": "{USER}:{PASSWORD}"}}'))
    registry.status = 503
    with pytest.raises(StorageError, match="did not answer"):
        check(options(registry))
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9 did not answer"):
        check(options(registry, schema_registry_url="http://127.0.0.1:9"))


def avro_sink(kafka: Broker, folder: Path, registry: Client, topic: str, schema: Any = ROWS, **given: Any) -> Sink:
    more = {"schema_registry_url": registry.url, "value_format": "avro", "topic": topic, **given}
    return Sink(kafka, folder, schema, **more)


def contents(kafka: Broker, topic: str) -> list[bytes]:
    return [message.value() or b"" for message in kafka.messages(topic)]


def decoded(registry: Client, topic: str, content: bytes) -> Any:
    given = {"uid": "in", "bootstrap_servers": "127.0.0.1:9", "topics": topic, "value_format": "avro"}
    decoder = KafkaRange({**given, "schema_registry_url": registry.url})._formats.decoder("value")
    assert decoder is not None
    return pa.array([decoder.value(content)], arrow_type(decoder.kind)).to_pylist()[0]


def test_what_is_published_is_what_the_source_reads(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    sink = avro_sink(kafka, tmp_path, registry, topic)
    rows = [row(1, "a"), {"key": "b", "value": None}]
    first = sink.write(0, rows)
    again = sink.write(0, rows)  # the task of another attempt
    assert [batch.to_pydict() for batch in sink.sink()._staging.read(first)] == [
        batch.to_pydict() for batch in sink.sink()._staging.read(again)
    ]
    assert sink.commit(0, first) is CommitOutcome.COMMITTED
    assert sink.commit(0, again) is CommitOutcome.ALREADY_COMMITTED
    found = {message.key(): message.value() for message in kafka.messages(topic)}
    assert found.keys() == {b"a", b"b"} and found[b"b"] is None
    assert decoded(registry, topic, found[b"a"] or b"") == row(1)["value"]


def test_a_start_with_other_columns_has_another_id(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    sink = avro_sink(kafka, tmp_path, registry, topic, incarnation=1).claim()
    sink.commit(0, sink.write(0, [row(1)]))
    lost = sink.write(1, [row(2)])  # staged, and its driver dies
    later = avro_sink(kafka, tmp_path, registry, topic, WIDER, incarnation=2)
    later.claim(previous=0)
    assert not Path(lost.path).exists()
    later.commit(1, later.write(1, [{"key": None, "value": {**row(2)["value"], "more": 5}}]))
    found = contents(kafka, topic)
    assert [content[:5] for content in found] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]
    assert [decoded(registry, topic, content) for content in found] == [
        {**row(1)["value"], "more": None},
        {**row(2)["value"], "more": 5},
    ]


def test_the_registry_is_asked_once_by_a_start(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    sink = avro_sink(kafka, tmp_path, registry, topic, start=7)
    sink.write(0, [row(1)])
    registry.status = 503
    sink.write(1, [row(2)])
    with pytest.raises(StorageError, match="did not answer"):
        avro_sink(kafka, tmp_path, registry, topic, columns("value struct<id: int>")).write(1, [{"value": {"id": 1}}])


def test_a_row_that_does_not_fit_is_a_bad_row(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    registry.register(f"{topic}-value", ORDER)
    schema = columns("value struct<id: bigint>")
    rows = [{"value": {"id": id}} for id in (1, None, 3)]
    sink = avro_sink(kafka, tmp_path, registry, topic, schema, value_version="1", on_bad_row="quarantine")
    with pytest.raises(DataError, match="the value of a row does not fit the schema 1: 'id' is null"):
        avro_sink(kafka, tmp_path, registry, topic, schema, value_version="1").write(0, rows)
    held, made = Mock(**{"keep.return_value": None}), sink.sink()
    made.collect_bad_rows(held)
    sink.sink = lambda: made  # type: ignore[method-assign]
    assert sink.write(0, rows).rows == 2
    held.add.assert_called_once()
    (bad,) = held.add.call_args.args
    assert (bad.position, json.loads(bad.raw)) == ({"partition": 0, "row": 1}, {"value": {"id": None}})
    assert "'id' is null, which the schema does not allow" in bad.reason


def test_keys_have_a_subject_of_their_own(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    schema = columns("key struct<id: int>, value string")
    sink = avro_sink(kafka, tmp_path, registry, topic, schema, value_format="bytes", key_format="avro")
    sink.sink().validate(schema)
    sink.commit(0, sink.write(0, [{"key": {"id": 4}, "value": "x"}]))
    (message,) = kafka.messages(topic)
    version = registry.answer("GET", ["subjects", f"{topic}-key", "versions", "latest"], None, {})[1]
    assert json.loads(version["schema"]) == avro_schema(columns("id int"))
    assert (message.key(), message.value()) == (b"\0\0\0\0\1\2\x08", b"x")


def test_outside_a_session_types_are_checked_as_before(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    sink = avro_sink(kafka, tmp_path, registry, kafka.topic())
    with pytest.raises(ConfigurationError, match="column 'key' has the type bigint, it must be string or binary"):
        sink.sink().validate(columns("key bigint, value struct<id: int>"))


def test_the_start_registers(kafka: Broker, registry: SchemaRegistry, tmp_path: Path) -> None:
    topic = kafka.topic()
    made = avro_sink(kafka, tmp_path, registry, topic).sink()
    made.validate(ROWS)
    subject = ["subjects", f"{topic}-value", "versions", "latest"]
    assert registry.answer("GET", subject, None, {})[0] == 404
    made.claim(Claim("out", "job", "job-1", 1, 0, start=3, query_id=QUERY))
    assert registry.answer("GET", subject, None, {})[1]["version"] == 1
