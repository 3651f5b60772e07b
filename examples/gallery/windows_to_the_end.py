"""Hourly sums over input with an end: the last hours are emitted as well.

With Spark's `withWatermark` nothing moves the watermark past the last row, so the last windows stay in the state.
`sx.with_watermark` knows the end of the input. When the job has finished, its state is empty.

    python examples/gallery/windows_to_the_end.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/windows_to_the_end")


def job(spark: SparkSession) -> sx.Job:
    readings = (
        spark.readStream.format("datagen")
        .option("uid", "readings")
        .option("rows", 1_000)
        .option("step_ms", 60_000)  # one a minute, up to five minutes late
        .option("out_of_order", "5 min")
        .load()
    )
    hourly = (
        sx.with_watermark(readings, "ts", "10 minutes")
        .groupBy(F.window("ts", "1 hour"))
        .agg(F.count("*").alias("readings"), F.round(F.avg("value"), 3).alias("mean"))
        .select(F.col("window.start").alias("hour"), "readings", "mean")
    )
    table = hourly.writeStream.format("delta_2pc").option("uid", "hourly-table").option("path", str(OUT / "hourly"))
    return sx.Job(spark, "hourly", state=OUT / "state").add("hourly", table)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("windows-to-the-end")
    result = job(spark).run(progress=False)

    hourly = spark.read.format("delta").load(str(OUT / "hourly"))
    total = hourly.agg(F.sum("readings")).first()
    assert total is not None
    print(
        f"{hourly.count()} hours with {total[0]} readings; {result.query('hourly').state_rows} rows are left in the state"
    )
    hourly.orderBy(F.desc("hour")).limit(3).show()


if __name__ == "__main__":
    main()
