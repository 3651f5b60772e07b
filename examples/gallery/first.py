"""A first job: generated rows, counted in windows of event time, into a Delta table. It ends by itself.

    python first.py

It needs `pip install 'spark-ext[spark]'` and Java. Run it again: it has finished, and reads nothing. Delete the folder
`out/gallery/first` to start over.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/first")


def job(spark: SparkSession) -> sx.Job:
    rows = (
        spark.readStream.format("datagen")
        .option("uid", "numbers")
        .option("rows", 60_000)
        .option("channels", 4)
        .option("max_rows_per_epoch", 10_000)
        .option("step_ms", 10)
        .load()
    )
    counts = (
        sx.with_watermark(rows, "ts", "3 minutes")
        .groupBy(F.window("ts", "30 seconds"))
        .agg(F.count("*").alias("rows"), F.round(F.avg("value"), 3).alias("mean"))
        .select(F.col("window.start").alias("start"), "rows", "mean")
    )
    table = counts.writeStream.format("delta_2pc").option("uid", "counts-table").option("path", str(OUT / "counts"))
    return sx.Job(spark, "first", state=OUT / "state").add("count", table)


def main() -> None:
    spark = sx.session("first_job", master="local[2]")
    print(job(spark).run(progress=False))
    spark.read.format("delta").load(str(OUT / "counts")).orderBy("start").show(3)


if __name__ == "__main__":
    main()
