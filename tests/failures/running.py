"""How cases run a query until it fails."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

TIMEOUT: int = 60
"""How long a case may take to fail, s."""


def numbers(spark: SparkSession, *, rows: int = 4, partitions: int = 1) -> DataFrame:
    """A streaming DataFrame with a column `value` of numbers from 0, and `timestamp`."""
    return spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=partitions).load()


def fails(writer: DataStreamWriter) -> None:
    """Start a query and wait until it fails; what it raises passes out."""
    query = writer.start()
    try:
        if not any(query.awaitTermination(1) for _ in range(TIMEOUT)):  # a signal waits for the end of such a call
            raise AssertionError(f"the query did not fail within {TIMEOUT} s")
    finally:
        query.stop()
    raise AssertionError("the query ended without a failure")


def into_noop(frame: DataFrame) -> None:
    """Run a streaming DataFrame into the sink `noop` until it fails; what it raises passes out."""
    fails(frame.writeStream.format("noop"))


def kept(folder: Path, writer: DataStreamWriter) -> DataStreamWriter:
    return writer.option("checkpointLocation", f"{folder}/checkpoint")


def kept_noop(folder: Path, frame: DataFrame) -> DataStreamWriter:
    return kept(folder, frame.writeStream.format("noop").outputMode("append"))


def ran(folder: Path, frame: DataFrame, epochs: int = 1) -> Path:
    """Run some epochs of a streaming DataFrame, without a failure; returns its checkpoint."""
    query = kept_noop(folder, frame).start()
    try:
        while not (folder / "checkpoint" / "commits" / str(epochs - 1)).exists():
            assert not query.awaitTermination(0.1)  # type: ignore[arg-type]
    finally:
        query.stop()
    return folder / "checkpoint"


def fails_after(folder: Path, frame: DataFrame, act: Callable[[], object]) -> None:
    """Do something once a query has committed an epoch, by which it fails; what it raises passes out."""
    query = kept_noop(folder, frame).start()
    try:
        while query.isActive and not (folder / "checkpoint" / "commits" / "0").exists():
            query.awaitTermination(0.1)  # type: ignore[arg-type]
        act()
        query.awaitTermination(TIMEOUT)
    finally:
        query.stop()
