"""A job that reads values by a schema registry: its columns stay those of one version until it is changed."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from spark_ext.errors import ConfigurationError
from tests.servers.kafka import Broker
from tests.servers.schema_registry import PASSWORD, USER, SchemaRegistry
from tests.sources.kafka_range.test_decoding import NOON, ORDER_1, ORDER_2, framed
from tests.support.jobs import JobHarness
from tests.support.refusals import delta_job, refused


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as there:
        there.closed = True
        yield there


def values(lab: JobHarness, kafka: Broker, registry: SchemaRegistry, topic: str, **given: Any) -> DataFrame:
    options = {
        "uid": "in", "bootstrap_servers": kafka.bootstrap, "topics": topic, "ending": "none",
        "schema_registry_url": registry.url,
        "schema_registry_options": f'{{"basic.auth.user.info": "{USER}:{PASSWORD}"}}', "value_format": "avro",
        "on_bad_row": "quarantine", **given,
    }  # fmt: skip
    return lab.spark.readStream.format("kafka_range").options(**options).load().select("offset", "value.*")


def ran(lab: JobHarness, frame: DataFrame) -> list[tuple[int, int]]:
    """Run a job up to what is there; the places of all bad rows so far."""
    delta_job(lab, frame).run(progress=False, until="now")
    bad = DeltaTable(lab.folder / "state" / "bad_rows" / "table").to_pyarrow_table()
    places = [json.loads(position) for position in bad["position"].to_pylist()]
    return sorted((place["partition"], place["offset"]) for place in places)


@pytest.mark.slow(40, "starts a job three times, which reads from a broker")
def test_a_newer_one_is_refused_or_the_older_goes_on(lab: JobHarness, kafka: Broker, registry: SchemaRegistry) -> None:
    topic = kafka.topic("orders")
    first = registry.register(f"{topic}-value", ORDER_1)
    kafka.send(topic, [framed(first, ORDER_1, {"id": n, "amount": Decimal(n), "at": NOON}) for n in range(3)])
    kafka.send(topic, [b"no record"])
    assert ran(lab, values(lab, kafka, registry, topic)) == [(0, 3)]
    second = registry.register(f"{topic}-value", ORDER_2)
    kafka.send(topic, [framed(second, ORDER_2, {"id": 4, "at": NOON, "note": None, "state": "new"})])
    kafka.send(topic, [framed(first, ORDER_1, {"id": 5, "amount": Decimal(5), "at": NOON})])
    with refused(ConfigurationError, "option 'value_version' of source 'in' was '1 (schema ", "in.value_version"):
        delta_job(lab, values(lab, kafka, registry, topic)).run(progress=False)
    pinned = values(lab, kafka, registry, topic, value_version="1")
    assert ran(lab, pinned) == [(0, 3), (0, 4)], "the new one has no amount"
    table = DeltaTable(lab.folder / "out").to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [0, 1, 2, 5]
    assert table.schema.names == ["offset", "id", "amount", "at"]
    for path in (lab.folder / "state").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
