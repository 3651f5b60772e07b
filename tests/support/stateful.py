"""Stateful queries over numbered input files: each file is one epoch, and each epoch's rows are kept by number."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

Rows = dict[int, list[tuple[str, ...]]]  # the rows of each epoch, in order


def add_files(folder: Path, numbers: Iterable[int]) -> None:
    """Write input files, each with keys of its own and keys that come again; every fourth one has no rows to keep."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        rows = [
            {"k": (7 * number + 3 * row) % 23, "v": row if number % 4 != 3 else -1, "t": 10 * number + row}
            for row in range(6)
        ]
        draft = folder / f".{number}"
        draft.write_text("\n".join(map(json.dumps, rows)))
        # Spark reads files in the order of their times.
        os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
        draft.rename(folder / f"{number}.json")


def stream(spark: SparkSession, folder: Path, prefix: str = "") -> DataFrame:
    df = (
        spark.readStream.schema("k long, v long, t long")
        .option("maxFilesPerTrigger", "1")
        .option("maxFileAge", "100000d")
        .json(str(folder))
        .where("v >= 0")
        .withColumn("t", F.timestamp_seconds("t"))
        .withWatermark("t", "15 seconds")
    )
    return df.select(*(F.col(name).alias(prefix + name) for name in df.columns)) if prefix else df


def _joined(spark: SparkSession, folder: Path, how: str) -> DataFrame:
    left, right = stream(spark, folder, "l"), stream(spark, folder, "r")
    return left.join(right.where("rv % 2 = 0"), F.expr("lk = rk and lt between rt and rt + interval 20 seconds"), how)


def _counted(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((seen,))
    yield pd.DataFrame({"k": [key[0]], "n": [seen]})


class Counting(StatefulProcessor):
    """A value and a map, so that its store has several column families."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getMapState("seen", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        values = [int(value) for frame in rows for value in frame["v"]]
        state = self._count.get()
        count = (state[0] if state else 0) + len(values)
        self._count.update((count,))
        for value in values:
            before = self._seen.getValue((value,))
            self._seen.updateValue((value,), ((before[0] if before else 0) + 1,))
        seen = sum(1 for _ in self._seen.keys())  # noqa: SIM118
        yield pd.DataFrame({"k": [key[0]], "n": [count], "different": [seen]})

    def close(self) -> None:
        pass


def _windows(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("t", "20 seconds"), "k").count()


def _mapped(rows: DataFrame) -> DataFrame:
    none = GroupStateTimeout.NoTimeout
    return rows.groupBy("k").applyInPandasWithState(_counted, "k long, n long", "n long", "update", none)


def _transformed(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithStateInPandas(Counting(), "k long, n long, different long", "update", "none")


@dataclass(frozen=True)
class Kind:
    build: Callable[[SparkSession, Path], DataFrame]
    mode: str = "append"


KINDS = {
    "aggregation": Kind(lambda spark, at: stream(spark, at).groupBy("k").agg(F.sum("v"), F.count("*")), "update"),
    "aggregation-without-keys": Kind(lambda spark, at: stream(spark, at).groupBy().agg(F.sum("v")), "update"),
    "limit": Kind(lambda spark, at: stream(spark, at).limit(27)),
    "window": Kind(lambda spark, at: _windows(stream(spark, at))),
    "session": Kind(lambda spark, at: stream(spark, at).groupBy(F.session_window("t", "8 seconds"), "k").count()),
    "duplicates": Kind(lambda spark, at: stream(spark, at).dropDuplicates(["k"])),
    "duplicates-watermark": Kind(lambda spark, at: stream(spark, at).dropDuplicatesWithinWatermark(["k"])),
    "inner-join": Kind(lambda spark, at: _joined(spark, at, "inner")),
    "outer-join": Kind(lambda spark, at: _joined(spark, at, "left_outer")),
    "two-operators": Kind(lambda spark, at: _windows(stream(spark, at).dropDuplicatesWithinWatermark(["k", "v"]))),
    "flat-map-groups": Kind(lambda spark, at: _mapped(stream(spark, at)), "update"),
    "transform-with-state": Kind(lambda spark, at: _transformed(stream(spark, at)), "update"),
}


def run(
    spark: SparkSession,
    df: DataFrame,
    mode: str,
    checkpoint: Path,
    at_epoch: Callable[[int], None] = lambda epoch: None,
) -> Rows:
    """Process all files that are there; returns the rows of each epoch.

    `at_epoch` is called while an epoch runs: the one before is the newest that is committed.
    """
    found: Rows = {}

    def write(rows: DataFrame, epoch: int) -> None:
        found[epoch] = sorted(tuple(map(str, row)) for row in rows.collect())
        at_epoch(epoch)

    writer = df.writeStream.foreachBatch(write).outputMode(mode).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return found
