"""Avro: what is staged is what fastavro reads, or is refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from pyspark.sql import types as T

from spark_ext.model.commits import Task
from spark_ext.model.identity import Identity
from spark_ext.schemas.arrow import arrow_type
from spark_ext.sinks.kafka_2pc.formats import Formats
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.sinks.runtime.writer import write_task
from tests.servers.schema_registry import SchemaRegistry
from tests.values.cells import check_cell
from tests.values.forms import batch_of, plain
from tests.values.table import TYPES, VALUES, Row


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as there:
        yield there


def bare(schema: Any) -> Any:
    """Without times, which are then numbers, as they are stored: Python does not have them all."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if isinstance(schema, dict):
        times = schema.get("logicalType") in ("date", "timestamp-micros", "local-timestamp-micros")
        return {name: bare(one) for name, one in schema.items() if name != "logicalType" or not times}
    return schema


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.type} {row.what}") for row in (*VALUES, *TYPES)])
def test_each_cell_is_what_the_sink_does(registry: SchemaRegistry, tmp_path: Path, row: Row) -> None:
    def put(kind: T.DataType, values: list[Any]) -> list[Any]:
        subject, staging = kind.simpleString(), str(tmp_path / str(len(list(tmp_path.iterdir()))))
        given = {"uid": "out", "topic": "t", "bootstrap_servers": "127.0.0.1:1", "staging": staging}
        given |= {"value_format": "avro", "value_subject": subject, "schema_registry_url": registry.url}
        sink = KafkaTwoPhaseCommit(given)
        messages = T.StructType([T.StructField("value", kind)])
        Formats(sink.options, messages, "test").check()
        _, batch = batch_of(kind, values)
        batches = [batch.select(["v"]).rename_columns(["value"])]
        write_task(sink, messages, iter(batches), Task("out", "q", 0, 0, 0, 0, 0), Identity())
        (file,) = Path(staging).rglob("*.arrow")
        contents = pa.ipc.open_stream(file).read_all()["value"].to_pylist()
        _, registered = registry.answer("GET", ["subjects", subject, "versions", "latest"], None, {})
        schema = parse_schema(bare(json.loads(registered["schema"])))
        read: list[Any] = [one and schemaless_reader(io.BytesIO(one[5:]), schema, None) for one in contents]
        if isinstance(kind, T.MapType):
            read = [[*one.items()] for one in read]
        return [plain(value) for value in pa.array(read, arrow_type(kind))]

    check_cell("kafka_2pc, Avro", row, put)
