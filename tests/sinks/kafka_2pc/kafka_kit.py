"""`kafka_2pc` as a target of the contract kit: rows of any schema travel as one pickled value each."""

import ast
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import types as T
from typing_extensions import Self

from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.testing.sink_driver import Row, SinkTarget
from spark_ext.worker_internals import to_arrow_schema
from tests.servers.kafka import Broker
from tests.servers.kafka_reader import QUICK, messages
from tests.support.waiting import until

VALUES = T.StructType([T.StructField("value", T.BinaryType())])


class RowsToKafka(KafkaTwoPhaseCommit):
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
        client = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})  # without it nothing would answer
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


QUERY = "6f9b3d54-2f5e-4b2c-9a86-0f0f3c1d7e11"
VALUE = columns("value string")


class Sink:
    """A sink in the hands of one incarnation; with the random number of its `start`, as in a job."""

    def __init__(
        self,
        kafka: Broker,
        folder: Path,
        schema: Any = VALUE,
        incarnation: int = 0,
        *,
        start: int = 0,
        lineage: int = 0,
        **options: str,
    ) -> None:
        self.schema, self.incarnation, self.start, self.lineage = schema, incarnation, start, lineage
        given = {"uid": "out", "bootstrap_servers": kafka.bootstrap, "staging": str(folder / "staging")}
        self.given = {**given, "request_timeout": "20 s", **options}

    def sink(self) -> KafkaTwoPhaseCommit:
        return KafkaTwoPhaseCommit(self.given)

    def claim(self, previous: int | None = None) -> Self:
        claim = Claim("out", "job", "job-1", self.incarnation, self.lineage, start=self.start, query_id=QUERY)
        self.sink().claim(replace(claim, previous=previous))
        return self

    def check(self, epoch: int, previous: int | None = None) -> None:
        self.sink().check(replace(self._epoch(epoch), previous=previous))

    def write(self, epoch: int, rows: Sequence[dict[str, Any]], partition: int = 0) -> Any:
        batches = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(self.schema)).to_batches()
        return self.sink().write(self.schema, iter(batches), Task("out", QUERY, epoch, partition, 0, 0, self.lineage))

    def commit(self, epoch: int, *prepared: Any) -> CommitOutcome:
        return self.sink().commit(self.schema, self._epoch(epoch), prepared)

    def _epoch(self, number: int) -> Epoch:
        return Epoch("out", self.lineage, QUERY, number, self.incarnation, start=self.start)

    def run(self, epoch: int, *values: str) -> CommitOutcome:
        return self.commit(epoch, self.write(epoch, [{"value": value} for value in values]))


def values(kafka: Broker, topic: str) -> list[str]:
    return [(message.value() or b"").decode() for message in kafka.messages(topic)]
