"""What functions, sources and sinks see of control events, from all places where they may look; written to a log."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import spark_ext as sx
from spark_ext.control import stamps
from spark_ext.model.query_offsets import source_offsets
from spark_ext.sinks.contract import CommitOutcome, Epoch, Task
from spark_ext.sources.contract import Advance, Channel, Committed, Limit
from spark_ext.spark.logs.spark_log import SparkLog
from tests.control import sights
from tests.support import operators


def sight(where: str, epoch: int | None = None) -> dict[str, Any]:
    context = TaskContext.get()
    if epoch is None and context is not None:
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    events = sx.control.events()
    assert sx.control.events("note") == tuple(one for one in events if one.type == "note")
    return {
        "where": where, "epoch": epoch, "config": dict(sx.control.config()),
        "events": [[one.type, one.value, one.sequence] for one in events],
        "debug": sx.control.logger("sights").isEnabledFor(logging.DEBUG),
    }  # fmt: skip


def look(log: str, where: str, epoch: int | None = None) -> None:
    operators.record(log, "sight", **sight(where, epoch))


class Telling(operators.Numbers):
    @classmethod
    def name(cls) -> str:
        return "telling"

    def discover(self) -> Iterator[Channel]:
        look(self.options.log, "discover")
        return super().discover()

    def advance(self, channel: Channel, start: Any, limit: Limit) -> Advance:
        look(self.options.log, "advance")
        return super().advance(channel, start, limit)

    def read(self, channel: Channel, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        look(self.options.log, "read")
        return super().read(channel, start, end)

    def on_epoch_committed(self, epoch: Committed) -> None:
        if not epoch.final:  # that of the last epoch is called in the driver
            look(self.options.log, "committed")


class TellingFolder(operators.Folder):
    @classmethod
    def name(cls) -> str:
        return "telling_folder"

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        look(self.options.log, "write", task.epoch)
        return super().write(schema, batches, task)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        look(self.options.log, "commit", epoch.number)
        return super().commit(schema, epoch, prepared)


def register(spark: SparkSession) -> None:
    """Register both; their code is pickled by value, as workers do not have the tests on their path."""
    cloudpickle.register_pickle_by_value(operators)
    cloudpickle.register_pickle_by_value(sights)
    sx.register(spark, Telling, TellingFolder)


def looked_at(frame: DataFrame, log: str) -> DataFrame:
    """The rows, seen by functions of each kind; `threshold` is the column of this key."""

    @F.udf("string")  # type: ignore[untyped-decorator, unused-ignore]
    def plain(n: int) -> str:
        look(log, "udf")
        return ""

    @F.pandas_udf("string")  # type: ignore[call-overload, untyped-decorator, unused-ignore]
    def with_pandas(n: pd.Series) -> pd.Series:
        look(log, "pandas_udf")
        return n.astype(str)

    @F.arrow_udf("string")  # type: ignore[call-overload, untyped-decorator, unused-ignore]
    def with_arrow(n: pa.Array) -> pa.Array:
        look(log, "arrow_udf")
        return n.cast(pa.string())

    def in_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            look(log, "mapInArrow")
            yield batch.append_column("seen", pa.array([json.dumps(sight("row"))] * batch.num_rows, pa.string()))

    def in_pandas(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for one in frames:
            look(log, "mapInPandas")
            yield one

    first = frame.withColumn("threshold", sx.control.value("threshold", "double", -1))
    first = first.withColumn("u", plain("n")).withColumn("p", with_pandas("n")).withColumn("a", with_arrow("n"))
    schema = "channel string, n bigint, threshold double"
    narrow = first.select("channel", "n", "threshold", *(F.length(F.col(name)).alias(name) for name in "upa"))
    narrow = narrow.select("channel", "n", F.expr("if(u + p + a > -1, threshold, null)").alias("threshold"))
    return narrow.mapInPandas(in_pandas, schema).mapInArrow(in_arrow, f"{schema}, seen string")


def in_batch(log: str, batch: DataFrame, epoch: int) -> None:
    """A function for `foreachBatch`, which also looks in the tasks that it runs."""
    look(log, "foreachBatch", epoch)

    def there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            look(log, "task of foreachBatch")
            yield one

    batch.select("n").mapInArrow(there, "n bigint").collect()


def expected(checkpoint: Path, query: str, epoch: int) -> tuple[dict[str, Any], bool, int]:
    """What an epoch has by its offsets: configuration, whether DEBUG is logged, and the highest sequence."""
    logged = SparkLog(str(checkpoint)).offsets(epoch)
    offsets = {} if logged is None else source_offsets(logged)
    found = stamps.configuration(str(checkpoint), offsets.values())
    levels = found.standing.get("log_level", {}).get("job", {})
    debug = levels.get("sights", {"level": "WARN"})["level"] in ("DEBUG", "TRACE")
    return found.user(query), debug, found.sequence
