"""One query to the end of its input, in a process that may be killed and started again.

    python -m benchmarks.nexmark.driver job|plain QUERY EVENTS_FOLDER OUT_FOLDER MASTER

`job` is `files` into `delta_2pc` in a `Job`; `plain` is Spark's own file stream, `availableNow`, into Spark's own Delta
sink, with the settings of `spark_ext.session` and nothing else of it. Both read one file per stream and epoch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.queries import QUERIES, Query

CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g", "spark.executor.memory": "2g"}


def job(query: Query, events: Path, out: Path, master: str) -> None:
    import spark_ext as sx

    spark = sx.session("nexmark", master=master, conf=CONF)
    for stream in query.reads:
        reader = spark.readStream.format("files").options(uid=stream, path=str(events / stream), readers=1)
        rows = reader.option("max_rows_per_epoch", _rows(events / stream)).load()
        (sx.with_watermark(rows, "dateTime", query.delay) if query.delay else rows).createOrReplaceTempView(stream)
    writer = _answer(spark, query, events).writeStream.format("delta_2pc").option("uid", "out")
    job = sx.Job(spark, "nexmark", state=out / "state")
    job.add("q", writer.option("path", str(out / "table"))).run(progress=False)


def plain(query: Query, events: Path, out: Path, master: str) -> None:
    spark = plain_session(master)
    for stream in query.reads:
        path = str(events / stream)
        reader = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", "1")
        rows = reader.parquet(path)
        (rows.withWatermark("dateTime", query.delay) if query.delay else rows).createOrReplaceTempView(stream)
    writer = (
        _answer(spark, query, events).writeStream.format("delta").outputMode("complete" if query.complete else "append")
    )
    checkpoint = str(checkpoint_of("plain", out))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(
        str(out / "table")
    ).awaitTermination()


def checkpoint_of(side: str, out: Path) -> Path:
    """Where Spark keeps the query's logs."""
    return out / "checkpoint" if side == "plain" else out / "state" / "queries" / "q" / "checkpoint"


def _answer(spark: SparkSession, query: Query, events: Path) -> DataFrame:
    spark.read.parquet(str(events / "side")).createOrReplaceTempView("side")
    return spark.sql(query.spark)


def _rows(folder: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(min(folder.glob("*.parquet"))).num_rows)


def plain_session(master: str) -> SparkSession:
    """A session with Delta and without anything of this project; Delta's jars are in BENCHMARK_CLASS_PATH."""
    builder = SparkSession.Builder().appName("nexmark").master(master)
    for key, value in {
        **CONF,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": os.environ["BENCHMARK_CLASS_PATH"],
        "spark.executor.extraClassPath": os.environ["BENCHMARK_CLASS_PATH"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # As in the settings of spark_ext.session, so that neither side has another store of states or more tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


SIDES = {"job": job, "plain": plain}

if __name__ == "__main__":
    side, name, events, out, master = sys.argv[1:]
    SIDES[side](QUERIES[name], Path(events), Path(out), master)
