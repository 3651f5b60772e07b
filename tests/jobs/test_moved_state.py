"""A query with `transformWithState` is renamed, and its state directory is moved: it continues where it was."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from spark_ext.jobs.job import Job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.jobs.changes import NEVER, Lab
from tests.support import validators
from tests.support.waiting import until


class Counts(StatefulProcessor):
    """The number of rows of a key so far, in each epoch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd

        before = self._count.get()
        count = (before[0] if before else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"n": [count]})

    def close(self) -> None: ...


@pytest.mark.without_validators(validators.no_state_left, reason="its state never ends")
def test_transform_with_state_is_renamed_and_moved(spark: SparkSession, tmp_path: Path) -> None:
    """Its checkpoint names the files of its schemas by absolute paths."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    lab = Lab(spark, tmp_path)

    def job(**words: Any) -> Job:
        grouped = lab.generated(rows=30).selectExpr("n", "1 AS k").groupBy("k")
        return lab.job(grouped.transformWithStateInPandas(Counts(), "n bigint", "Append", "None"), others=(), **words)

    running = job(interval=NEVER).start()
    until(lambda: SparkLog(str(lab.checkpoint)).newest_commit() == 0, "the first epoch")
    running.stop()
    shutil.move(tmp_path / "state", tmp_path / "moved")
    moved = {"state": "moved", "query": "renamed", "words": {"renamed_from": "copy"}}
    running = job(**moved, interval=NEVER).start()
    renamed = SparkLog(str(tmp_path / "moved" / "queries" / "renamed" / "checkpoint"))
    until(lambda: renamed.newest_commit() == 1 or running.done, "the second epoch")
    running.stop()
    assert job(**moved).run(progress=False).finished
    assert lab.rows() == [5, 10, 15, 20, 25, 30]
