"""A driver to be killed: streams Parquet files, one per epoch, into a Delta table until it is stopped.

    python -m benchmarks._recovery_driver job|plain FOLDER

`job` is `files` into `delta_2pc` in a `Job`, with a session of `spark_ext`; `plain` is Spark's own file stream into
Spark's own Delta sink. It uses nothing of `spark_ext` except the paths of Delta's jars, so that neither side resolves
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROWS = 1000  # rows per file, and so per epoch


def job(folder: Path) -> None:
    import spark_ext as sx

    spark = sx.session("recovery", master="local[2]", conf={"spark.driver.memory": "1g"})
    reader = spark.readStream.format("files").option("uid", "in").option("path", str(folder / "data"))
    rows = reader.option("max_rows_per_epoch", str(ROWS)).option("readers", "1").load()
    writer = rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "job" / "table"))
    sx.Job(spark, "recovery", state=folder / "job" / "state").add("q", writer).run(progress=False)


def plain(folder: Path) -> None:
    import os

    from pyspark.sql import SparkSession

    spark = (
        SparkSession.Builder()
        .appName("recovery")
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraClassPath", os.environ["BENCHMARK_CLASS_PATH"])
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.shuffle.partitions", "2")
        # As in the settings of spark_ext.session: the default of 50 tasks for reading a log would slow down this side.
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    reader = spark.readStream.schema("id bigint, value double").option("maxFilesPerTrigger", "1")
    rows = reader.parquet(str(folder / "data"))
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "plain" / "checkpoint"))
    writer.start(str(folder / "plain" / "table")).awaitTermination()


if __name__ == "__main__":
    {"job": job, "plain": plain}[sys.argv[1]](Path(sys.argv[2]))
