"""E13: events that functions of a running job emit count once, however often their tasks run."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.model.lifecycle import State
from tests.control import test_emit_in_jobs
from tests.control.states import Sent, obeyed
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def emitting(frame: DataFrame) -> DataFrame:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for n in batch.column("n").to_pylist():
                if n % 10 == 0:
                    sx.control.emit("tenth", n)
            yield batch

    return frame.mapInArrow(work, frame.schema)


def emitted(state: Path) -> list[ControlEventRow]:
    rows = [row for row in Ledger(str(state)).table(ControlEventRow).rows() if row.origin == "emit"]
    return sorted(rows, key=lambda row: row.sequence)


def test_e13_a_replayed_epoch_has_emitted_once(lab: JobHarness) -> None:
    assert lab.run(emitting(lab.source(counts="100", max_rows_per_epoch=30)), sink_lost_epoch=1).state is State.FINISHED
    assert (1, True) in [(one["epoch"], one["repeat"]) for one in lab.events("commit")], "epoch 1 was run again"
    found = emitted(lab.folder / "state")
    assert [row.value for row in found] == [{"type": "tenth", "value": n} for n in range(0, 100, 10)]
    assert {row.requested_by for row in found} == {"query:q"}
    assert {row.target for row in found} == {"job"}


def test_foreach_batch_and_the_tasks_that_it_runs_emit(lab: JobHarness) -> None:
    def work(batch: DataFrame, epoch: int) -> None:
        sx.control.emit("batch", [epoch, emitting(batch).count()])

    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("q", lab.source(counts="20", max_rows_per_epoch=10).writeStream.foreachBatch(work))
    assert job.run(progress=False).finished
    found = Counter(str(row.value["value"]) for row in emitted(lab.folder / "state") if row.value["type"] == "tenth")
    assert found == {"0": 1, "10": 1}
    batches = [row.value["value"] for row in emitted(lab.folder / "state") if row.value["type"] == "batch"]
    assert batches == [[0, 10], [1, 10]]


class Seeing(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        assert not self._count.exists() and any(len(frame) for frame in rows)
        sx.control.emit("key", key[0])
        yield pd.DataFrame({"channel": [key[0]], "n": [0], "config": [json.dumps(dict(sx.control.config()))]})

    def close(self) -> None: ...


def test_a_stateful_processor_sees_its_epochs_configuration(spark: SparkSession, lab: JobHarness) -> None:
    cloudpickle.register_pickle_by_value(test_emit_in_jobs)
    gate = lab.folder / "gate"
    states = lab.source(counts="40", max_rows_per_epoch=20, gate=gate).groupBy("channel").transformWithStateInPandas(
        statefulProcessor=Seeing(), outputStructType="channel string, n bigint, config string", outputMode="Append",
        timeMode="None",
    )  # fmt: skip
    job = lab.job(states).start()
    until(lambda: lab.rows(), "the first epoch")
    obeyed(lab.checkpoint(), Sent(lab.folder / "state")("set_config", {"key": "k", "value": 1}))
    gate.touch()
    assert job.await_termination().finished
    assert [row["config"] for row in lab.rows()] == ["{}", '{"k": 1}']
    assert [row.value for row in emitted(lab.folder / "state")] == [{"type": "key", "value": "0"}] * 2
