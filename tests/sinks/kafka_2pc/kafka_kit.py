"""`kafka_2pc` as a target of the contract kit: rows of any schema travel as one pickled value each."""

from __future__ import annotations

import ast
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import types as T

from spark_ext.sinks.contract import Task, TwoPhaseCommitSink
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.testing.sink_driver import Row, SinkTarget
from tests.servers.kafka import Broker
from tests.servers.kafka_reader import QUICK, messages
from tests.support.waiting import until

VALUES = T.StructType([T.StructField("value", T.BinaryType())])


class RowsToKafka(KafkaTwoPhaseCommit):
    """Each row is a message; its value is the row."""

    @classmethod
    def name(cls) -> str:
        return "rows_to_kafka"

    def validate(self, schema: T.StructType) -> None:
        super().validate(VALUES)

    def write(self, schema: T.StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        return super().write(VALUES, map(_values, batches), task)


def _values(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array([pickle.dumps(row) for row in batch.to_pylist()], pa.binary())}
    )


class KafkaTarget(SinkTarget):
    """A topic of its own, of two partitions; the topic of epochs is shared by all tests."""

    before_commit = "kafka.before_commit"
    after_commit = "kafka.committed"
    points = ("kafka.before_fence", "kafka.fenced", "kafka.cleaned")
    huge = 200_000  # more messages than the client's queue takes
    wide_value = 5_000_000

    def __init__(self, kafka: Broker, folder: Path, patience: str = "20 s") -> None:
        self.bootstrap, self.data, self.pid = kafka.bootstrap, kafka.data, kafka.pid
        self._patience = patience
        self.topic = kafka.topic("contract", partitions=2, max_message_bytes=8_000_000)
        self.staging = folder / "staging"

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        given = {"uid": uid, "bootstrap_servers": self.bootstrap, "topic": self.topic, "staging": str(self.staging)}
        given |= {"max_message_bytes": "6m", "request_timeout": self._patience}
        given["client_options"] = '{"client.id": "s3cret-id"}'
        return RowsToKafka({**given, **options})

    spoiling = MappingProxyType({"max_message_bytes": "500"})

    def spoiled(self, row: Row) -> Row:
        return {**row, "name": "x" * 600}

    def id_of_bad(self, raw: str) -> int:
        return int(pickle.loads(ast.literal_eval(json.loads(raw)["value"]))["id"])

    @property
    def secrets(self) -> tuple[str, ...]:
        return ("s3cret-id",)

    def rows(self) -> list[dict[str, Any]]:
        if self.topic not in self._topics():  # to read it would make it
            return []
        return [pickle.loads(message.value() or b"") for message in messages(self.bootstrap, self.data, self.topic)]

    def leftovers(self) -> set[str]:
        return {str(path.relative_to(self.staging)) for path in self.staging.rglob("*.arrow")}

    def drop(self) -> None:
        self._asked(lambda client: client.delete_topics([self.topic])[self.topic])
        until(lambda: self.topic not in self._topics(), "the topic is deleted")

    def make_anew(self) -> None:
        self._asked(lambda client: client.create_topics([NewTopic(self.topic, 2, 1)])[self.topic])

    def _asked(self, request: Callable[[AdminClient], Any]) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})
        request(client).result(20)

    def _topics(self) -> dict[str, Any]:
        return dict(AdminClient({"bootstrap.servers": self.bootstrap, **QUICK}).list_topics(timeout=20).topics)

    def damage(self) -> Callable[[], object]:
        """The broker is frozen: connections stay open, and nothing is answered. Sinks made meanwhile give up soon."""
        patience, self._patience = self._patience, "500 ms"
        os.kill(self.pid, signal.SIGSTOP)

        def repair() -> None:
            self._patience = patience
            os.kill(self.pid, signal.SIGCONT)

        return repair
