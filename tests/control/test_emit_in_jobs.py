"""E13: events that functions of a running job emit count once, however often their tasks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_ext as sx
from spark_ext.errors import JobFailedError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.model.lifecycle import State
from tests.support.jobs import JobHarness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def emitting(frame: DataFrame) -> DataFrame:
    """The rows; every tenth emits an event."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for n in batch.column("n").to_pylist():
                if n % 10 == 0:
                    sx.control.emit("tenth", n)
            yield batch

    return frame.mapInArrow(work, frame.schema)


def emitted(state: Path) -> list[ControlEventRow]:
    """What the ledger has of them, in the order of acceptance."""
    rows = [row for row in Ledger(str(state)).table(ControlEventRow).rows() if row.origin == "emit"]
    return sorted(rows, key=lambda row: row.sequence)


def test_e13_a_replayed_epoch_has_emitted_once(lab: JobHarness) -> None:
    frame = emitting(lab.source(counts="100", max_rows_per_epoch=30))
    assert lab.run(frame, sink_lost_epoch=1).state is State.FINISHED
    commits = [(one["epoch"], one["repeat"]) for one in lab.events("commit")]
    assert (1, True) in commits, "epoch 1 was run again"
    found = emitted(lab.folder / "state")
    assert [row.value for row in found] == [{"type": "tenth", "value": n} for n in range(0, 100, 10)]
    assert {row.requested_by for row in found} == {"query:q"}
    assert {row.target for row in found} == {"job"}


def test_an_epoch_that_fails_has_emitted_nothing(lab: JobHarness) -> None:
    frame = emitting(lab.source(counts="100", max_rows_per_epoch=30, fail_at=45))
    with pytest.raises(JobFailedError):
        lab.run(frame, restart_attempts=0)
    assert [row.value["value"] for row in emitted(lab.folder / "state")] == [0, 10, 20]


def test_foreach_batch_and_the_tasks_that_it_runs_emit(lab: JobHarness) -> None:
    def work(batch: DataFrame, epoch: int) -> None:
        count = emitting(batch).count()
        sx.control.emit("batch", [epoch, count])

    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("q", lab.source(counts="20", max_rows_per_epoch=10).writeStream.foreachBatch(work))
    assert job.run(progress=False).finished
    found = Counter(str(row.value["value"]) for row in emitted(lab.folder / "state") if row.value["type"] == "tenth")
    assert found == {"0": 1, "10": 1}
    batches = [row.value["value"] for row in emitted(lab.folder / "state") if row.value["type"] == "batch"]
    assert batches == [[0, 10], [1, 10]]
