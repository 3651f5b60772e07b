"""Further: exhausted resources, state and checkpoints that are damaged or do not fit, and rivals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import deltalake
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.failures.corpus import case
from tests.failures.running import TIMEOUT, fails, into_noop, numbers


def _once(frame: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    """Run one batch."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(once=True).start()
    try:
        assert query.awaitTermination(TIMEOUT)
    finally:
        query.stop()


def _again(frame: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    """Run it from its checkpoint until it fails."""
    fails(frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint)))


@case("others.array_memory", type="RESOURCE", origin="user", decision="restart", line="np.zeros(")
def array_memory(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("double")  # type: ignore[call-overload, untyped-decorator]
    def distances(values: pd.Series) -> pd.Series:
        matrix = np.zeros((len(values), 10**15))
        return pd.Series(matrix.sum(axis=1))

    into_noop(numbers(spark).select(distances("value")))


@case("others.spool_full", type="RESOURCE", origin="user", decision="restart", line='.open("w")')
def spool_full(spark: SparkSession, folder: Path) -> None:
    (folder / "spool.csv").symlink_to("/dev/full")

    def export(batch: DataFrame, epoch: int) -> None:
        try:
            with (folder / "spool.csv").open("w") as spool:
                spool.writelines(f"{row.value}\n" for row in batch.collect())
        except OSError as error:
            raise RuntimeError(f"export of batch {epoch} failed") from error

    fails(numbers(spark).writeStream.foreachBatch(export))


@case("others.rocksdb_files", type="STATE", origin="spark", decision="restore")
def rocksdb_files(spark: SparkSession, folder: Path) -> None:
    setting = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(setting) or ""
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        counts = numbers(spark).groupBy((F.col("value") % 3).alias("third")).count()
        _once(counts, folder / "checkpoint", "update")
        for file in (folder / "checkpoint" / "state").rglob("*"):
            if file.suffix in (".zip", ".changelog"):
                file.write_bytes(file.read_bytes()[:20])
                (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        _again(counts, folder / "checkpoint", "update")
    finally:
        spark.conf.set(setting, before)


@case("others.other_operator", type="STATE", origin="spark", decision="ask")
def other_operator(spark: SparkSession, folder: Path) -> None:
    _once(numbers(spark).dropDuplicates(["value"]), folder / "checkpoint", "update")
    counts = numbers(spark).groupBy("value").count()
    _again(counts, folder / "checkpoint", "update")


@case("others.offsets_gap", type="CHECKPOINT", origin="spark", decision="restore")
def offsets_gap(spark: SparkSession, folder: Path) -> None:
    for _ in range(3):
        _once(numbers(spark), folder / "checkpoint")
    (folder / "checkpoint" / "offsets" / "1").unlink()
    (folder / "checkpoint" / "offsets" / ".1.crc").unlink(missing_ok=True)
    _again(numbers(spark), folder / "checkpoint")


@case("others.source_log_cut", type="CHECKPOINT", origin="spark", decision="restore")
def source_log_cut(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "first.txt").write_text("1\n2\n")
    lines = spark.readStream.text(str(folder / "in"))
    _once(lines, folder / "checkpoint")
    log = folder / "checkpoint" / "sources" / "0" / "0"
    log.write_text(log.read_text()[:30])
    (log.parent / ".0.crc").unlink(missing_ok=True)
    _again(lines, folder / "checkpoint")


@case("others.offset_taken", type="FENCED", origin="spark", decision="stop")
def offset_taken(spark: SparkSession, folder: Path) -> None:
    offsets = folder / "checkpoint" / "offsets"

    def while_another_starts(batch: DataFrame, epoch: int) -> None:
        shutil.copy(offsets / str(epoch), offsets / str(epoch + 1))

    writer = numbers(spark).writeStream.foreachBatch(while_another_starts)
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")))


@case("others.same_transaction", type="FENCED", origin="library", decision="stop")
def same_transaction(spark: SparkSession, folder: Path) -> None:
    table = str(folder / "table")
    spark.sql(f"CREATE TABLE delta.`{table}` (value LONG) USING delta")

    @F.udf("long")
    def rival(value: int) -> int:
        if value == 0:
            query = json.loads((folder / "checkpoint" / "metadata").read_text())["id"]
            properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(query, 0)])
            rows = pa.table({"value": [value]})
            deltalake.write_deltalake(table, rows, mode="append", commit_properties=properties)
        return value

    writer = numbers(spark).select(rival("value").alias("value")).writeStream.format("delta")
    fails(writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", table))
