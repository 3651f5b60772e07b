"""Exchanges made by hand."""

from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from spark_ext.checkpoints.unaligned import QueryLook
from spark_ext.exchange import decisions
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.descriptor import Descriptor, nullable
from spark_ext.exchange.entries import Run, Segment
from spark_ext.model.commits import Claim, Epoch
from spark_ext.model.offsets import LoggedOffsets, Running, SourceOffset
from spark_ext.storage import LocalFolder


def descriptor(name: str = "x", **given: Any) -> Descriptor:
    fields = {
        "name": name,
        "id": "id-1",
        "job_id": "job-id",
        "kind": "arrow",
        "partitions": 2,
        "key": (),
        "columns": nullable(StructType([StructField("n", LongType())])).jsonValue(),
    }
    return Descriptor(**{**fields, **given})


class Producer:
    """A query `a` that writes the exchange `x` of two partitions."""

    def __init__(self, folder: Path, job_id: str = "job-id", *, incarnation: int = 1, lineage: int = 1) -> None:
        self._incarnation, self._lineage = incarnation, lineage
        self.master = ArrowMaster(LocalFolder(folder / "x"), "exchange 'x'")
        self.master.register(descriptor("x", partitions=2, job_id=job_id))
        claim = Claim("x", "lab", job_id, incarnation, lineage, start=7)
        self.master.log.append(lambda state: decisions.claim_entry(state, claim, "x", 0), str(incarnation))

    def epoch(self, number: int) -> Epoch:
        return Epoch("x", self._lineage, f"query-id-{self._lineage}", number, self._incarnation, start=7)

    def write(self, number: int, *rows: int) -> int:
        """An epoch with that many rows in each partition; returns the number of its entry."""
        runs = tuple(Run(partition, 0, 1, count) for partition, count in enumerate(rows))
        segments = [Segment(f"{number}.arrow", 100, runs)]
        written = self.master.log.append(
            lambda state: decisions.epoch_entry(state, self.epoch(number), segments, 2, "x", 0), "1"
        )
        assert written is not None
        return written.last

    def register(self, consumer: str, query: str) -> None:
        self.master.log.append(lambda state: decisions.register_entry(state, consumer, query, 0), "1")

    def seal(self, number: int) -> int:
        written = self.master.log.append(lambda state: decisions.seal_entry(state, self.epoch(number), "x", 0), "1")
        assert written is not None
        return written.last

    def look(self, *epochs: int, finished: bool = False) -> QueryLook:
        return QueryLook(self.epoch(0).application, tuple((epoch, logged(epoch)) for epoch in epochs), finished)


def logged(epoch: int, *positions: list[int], ended: bool = False) -> LoggedOffsets:
    """An epoch of a query whose source `x-in` reads it; without positions it reads nothing of ours."""
    running = {str(partition): Running(at) for partition, at in enumerate(positions)}
    offset = SourceOffset("x-in", running=running, ended=ended).to_json()
    return LoggedOffsets(epoch, {}, (offset,) if positions or ended else ())
