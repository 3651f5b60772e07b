"""History from a table, then the log that the table was filled from: one query, no gap and no overlap.

The source `hybrid` reads a version of a Delta table, and continues each partition of the log behind the last offset that
the table has. Here the log is the generator, which makes the same rows each time; with Kafka it is `kafka_range`.

    python examples/gallery/backfill_then_live.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/backfill_then_live")


def fill(spark: SparkSession) -> sx.Job:
    """What was done some time ago: a table with the beginning of each of the log's four partitions."""
    log = spark.readStream.format("datagen").options(uid="filler", rows_of="900,400,700,0").load()
    table = log.writeStream.format("delta_2pc").option("uid", "history").option("path", str(OUT / "history"))
    return sx.Job(spark, "fill", state=OUT / "fill-state").add("fill", table)


def job(spark: SparkSession) -> sx.Job:
    events = (
        spark.readStream.format("hybrid")
        .option("uid", "events")
        .option("stages", "history,live")
        .option("history.format", "delta_snapshot")
        .option("history.path", str(OUT / "history"))
        .option("history.seam", "channel:seq")  # the columns of the table that say where it ends
        .option("live.format", "datagen")
        .option("live.rows_of", "2000,1000,1500,500")
        .load()
    )
    table = events.writeStream.format("delta_2pc").option("uid", "all-events").option("path", str(OUT / "events"))
    return sx.Job(spark, "events", state=OUT / "state").add("copy", table)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("backfill-then-live")
    fill(spark).run(progress=False)
    job(spark).run(progress=False)

    events = spark.read.format("delta").load(str(OUT / "events"))
    print(f"{events.count()} rows, {events.select('channel', 'seq').distinct().count()} of them different")
    events.groupBy("channel").agg(F.min("seq"), F.max("seq")).orderBy("channel").show()


if __name__ == "__main__":
    main()
