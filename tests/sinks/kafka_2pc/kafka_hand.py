"""What the tests of `kafka_2pc` share: a sink in the hands of one driver, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from tests.servers.kafka import Broker

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
        self.given = {
            "uid": "out",
            "bootstrap_servers": kafka.bootstrap,
            "staging": str(folder / "staging"),
            "request_timeout": "20 s",
            **options,
        }

    def sink(self) -> KafkaTwoPhaseCommit:
        return KafkaTwoPhaseCommit(self.given)

    def claim(self, previous: int | None = None) -> None:
        claim = Claim("out", "job", "job-1", self.incarnation, self.lineage, start=self.start, query_id=QUERY)
        self.sink().claim(replace(claim, previous=previous))

    def check(self, epoch: int, previous: int | None = None) -> None:
        """An epoch without rows."""
        self.sink().check(replace(self._epoch(epoch), previous=previous))

    def write(self, epoch: int, rows: Sequence[dict[str, Any]], partition: int = 0) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(self.schema, timezone="UTC")
        batches = pa.Table.from_pylist(list(rows), schema=arrow).to_batches()
        return self.sink().write(self.schema, iter(batches), Task("out", QUERY, epoch, partition, 0, 0, self.lineage))

    def commit(self, epoch: int, *prepared: Any) -> CommitOutcome:
        return self.sink().commit(self.schema, self._epoch(epoch), prepared)

    def _epoch(self, number: int) -> Epoch:
        return Epoch("out", self.lineage, QUERY, number, self.incarnation, start=self.start)

    def run(self, epoch: int, *values: str) -> CommitOutcome:
        return self.commit(epoch, self.write(epoch, [{"value": value} for value in values]))


def values(kafka: Broker, topic: str) -> list[str]:
    return [(message.value() or b"").decode() for message in kafka.messages(topic)]
