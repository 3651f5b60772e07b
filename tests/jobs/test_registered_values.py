"""A job that reads values by a schema registry: its columns stay those of one version until it is changed."""

from __future__ import annotations

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
from tests.support.waiting import until


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as there:
        there.closed = True
        yield there


def values(lab: JobHarness, kafka: Broker, registry: SchemaRegistry, topic: str, **given: Any) -> DataFrame:
    options = {
        "uid": "in",
        "bootstrap_servers": kafka.bootstrap,
        "topics": topic,
        "ending": "none",
        "schema_registry_url": registry.url,
        "schema_registry_options": f'{{"basic.auth.user.info": "{USER}:{PASSWORD}"}}',
        "value_format": "avro",
        "on_bad_row": "quarantine",
        **given,
    }
    return lab.spark.readStream.format("kafka_range").options(**options).load().select("offset", "value.*")


def ran(lab: JobHarness, frame: DataFrame, rows: int) -> int:
    """Run a job until its table has so many rows, and stop it; its bad rows."""
    running = delta_job(lab, frame).start()
    table = str(lab.folder / "out")

    def there() -> bool:
        found = DeltaTable(table).to_pyarrow_table().num_rows if DeltaTable.is_deltatable(table) else 0
        return running.done or found >= rows

    until(there, f"{rows} rows")
    running.stop()
    return running.await_termination(90).query("q").bad_rows


@pytest.mark.slow(40, "starts a job three times, which reads from a broker")
def test_a_newer_version_is_refused_by_name_or_the_older_one_continues(
    lab: JobHarness, kafka: Broker, registry: SchemaRegistry
) -> None:
    topic = kafka.topic("orders")
    first = registry.register(f"{topic}-value", ORDER_1)
    kafka.send(topic, [framed(first, ORDER_1, {"id": n, "amount": Decimal(n), "at": NOON}) for n in range(3)])
    kafka.send(topic, [b"no record"])
    assert ran(lab, values(lab, kafka, registry, topic), rows=3) == 1

    second = registry.register(f"{topic}-value", ORDER_2)
    kafka.send(topic, [framed(second, ORDER_2, {"id": 4, "at": NOON, "note": None, "state": "new"})])
    kafka.send(topic, [framed(first, ORDER_1, {"id": 5, "amount": Decimal(5), "at": NOON})])
    with refused(ConfigurationError, "option 'value_version' of source 'in' was '1', and is '2'", "in.value_version"):
        delta_job(lab, values(lab, kafka, registry, topic)).run(progress=False)

    assert ran(lab, values(lab, kafka, registry, topic, value_version="1"), rows=4) == 1, "the new one has no amount"
    table = DeltaTable(lab.folder / "out").to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [0, 1, 2, 5]
    assert table.schema.names == ["offset", "id", "amount", "at"]
    bad = DeltaTable(lab.folder / "state" / "bad_rows" / "table").to_pyarrow_table().to_pylist()
    assert sorted(row["position"] for row in bad) == [
        f'{{"offset": {offset}, "partition": 0, "topic": "{topic}"}}' for offset in (3, 4)
    ]
    for path in (lab.folder / "state").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
