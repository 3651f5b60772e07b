"""Stateful processors see the configuration of their epoch, and their events count once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_ext as sx
from tests.control import test_stateful
from tests.control.sent import Sent, obeyed
from tests.control.test_emit_in_jobs import emitted
from tests.support.jobs import JobHarness
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Seeing(StatefulProcessor):
    """One row per key and epoch, with the configuration."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        assert not self._count.exists() and any(len(frame) for frame in rows)
        sx.control.emit("key", key[0])
        yield pd.DataFrame({"channel": [key[0]], "n": [0], "config": [json.dumps(dict(sx.control.config()))]})

    def close(self) -> None:
        pass


def test_a_stateful_processor_sees_the_configuration_of_its_epoch(spark: SparkSession, lab: JobHarness) -> None:
    cloudpickle.register_pickle_by_value(test_stateful)
    gate = lab.folder / "gate"
    frame = lab.source(counts="40", max_rows_per_epoch=20, gate=gate)
    states = frame.groupBy("channel").transformWithStateInPandas(
        statefulProcessor=Seeing(),
        outputStructType="channel string, n bigint, config string",
        outputMode="Append",
        timeMode="None",
    )
    job = lab.job(states).start()
    until(lambda: lab.rows(), "the first epoch")
    obeyed(lab.checkpoint(), Sent(lab.folder / "state")("set_config", {"key": "k", "value": 1}))
    gate.touch()
    assert job.await_termination().finished
    assert [row["config"] for row in lab.rows()] == ["{}", '{"k": 1}']
    assert [row.value for row in emitted(lab.folder / "state")] == [{"type": "key", "value": "0"}] * 2
