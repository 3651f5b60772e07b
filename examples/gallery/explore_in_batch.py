"""Explore in batch what the job runs: one function defines the frames of a notebook and of the job.

A batch frame has the rows that the job would read now, and leaves no trace: nothing is acknowledged, and the job still
reads everything. So a notebook can try a setting, look at bad rows, and compare what the job has written.

    python examples/gallery/explore_in_batch.py
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import spark_ext as sx

OUT = Path("out/gallery/explore_in_batch")
READING = "sensor string, at timestamp, value double"


def hourly(spark: SparkSession, settings: Mapping[str, Any], *, batch: bool = False) -> DataFrame:
    readings = (
        sx.read(spark, batch=batch)
        .format("files")
        .option("uid", "readings")
        .option("path", str(OUT / "readings"))
        .option("on_bad_row", "quarantine")
        .schema(READING)
        .load()
    )
    return (
        sx.with_watermark(readings, "at", "10 minutes")
        .where(F.col("value") >= settings.get("least", 0))
        .groupBy(F.window("at", "1 hour"), "sensor")
        .agg(F.count("*").alias("readings"), F.max("value").alias("highest"))
        .select(F.col("window.start").alias("hour"), "sensor", "readings", "highest")
    )


def job(spark: SparkSession) -> sx.Job:
    def build(settings: Mapping[str, Any]) -> DataStreamWriter:
        rows = hourly(spark, settings)
        return rows.writeStream.format("delta_2pc").option("uid", "hourly").option("path", str(OUT / "hourly"))

    return sx.Job(spark, "readings", state=OUT / "state").add("hourly", build)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "readings").mkdir(parents=True)
    lines = [f"s{n % 3},2026-03-01T{n // 20:02}:{n % 20:02}:00Z,{n % 17}" for n in range(120)]
    (OUT / "readings" / "march.csv").write_text("\n".join([*lines, "s1,yesterday,3", "s2"]) + "\n")
    spark = sx.session("explore-in-batch")

    hourly(spark, {"least": 16}, batch=True).orderBy("hour", "sensor").show(3)
    bad = spark.read.format("files").option("path", str(OUT / "readings")).option("bad_rows_of", READING).load()
    bad.select("channel", "position", "reason", "raw").show(truncate=60)

    result = job(spark).run(progress=False)
    table, explored = spark.read.format("delta").load(str(OUT / "hourly")), hourly(spark, {}, batch=True)
    differ = table.exceptAll(explored).count() + explored.exceptAll(table).count()
    print(
        f"{result.query('hourly').bad_rows} bad rows, {table.count()} rows in the table; {differ} differ from the batch"
    )


if __name__ == "__main__":
    main()
