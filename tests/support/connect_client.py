"""A job in a client of Spark Connect: `python -m tests.support.connect_client REMOTE FOLDER [rest|now|live]`.

Prints the result, as JSON, in its last line.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx


def job_of(spark: SparkSession, folder: str, *, live: bool) -> sx.Job:
    """Windows over rows with event times, and a plain copy of the same rows; with `live` the copy never ends."""
    job = sx.Job(spark, "connected", state=f"{folder}/state", takeover=True, heartbeat="1 s")
    read = spark.readStream.format("datagen")
    rows = read.options(uid="rows", rows_of="3000,1000").load()
    counts = sx.with_watermark(rows, "ts", "1 minute").groupBy(F.window("ts", "1 minute"), "key")
    counted = counts.agg(F.count("*").alias("n"), F.sum("seq").alias("sum"))
    named = counted.select(F.col("window.start").alias("start"), "key", "n", "sum")
    job.add("windows", named.writeStream.format("delta_2pc").options(uid="counts", path=f"{folder}/counts"))
    end = {"rows_per_second": "50"} if live else {"rows_of": "3000,1000"}
    copied = spark.readStream.format("datagen").options(uid="copied", **end).load()
    job.add("copy", copied.writeStream.format("delta_2pc").options(uid="copies", path=f"{folder}/copies"))
    return job


def main(remote: str, folder: str, how: str = "end") -> None:
    spark = sx.session("client", remote=remote)
    job = job_of(spark, folder, live=how == "live")
    result = job.run(until="now") if how == "now" else job.run()
    counted = {query.uid: query.rows for query in result.queries}
    print(json.dumps({"state": result.state.value, "rows": counted, "epochs": result.epochs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
