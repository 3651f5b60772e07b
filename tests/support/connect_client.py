"""A job in a client of Spark Connect: `python -m tests.support.connect_client REMOTE FOLDER [end|now|live|flaky]`.

Prints the result, as JSON, in its last line.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx


def job_of(spark: SparkSession, folder: str, how: str) -> sx.Job:
    """Windows over rows, and a copy of the same rows; `live`: it never ends; `flaky`: its first task fails."""
    job = sx.Job(spark, "connected", state=f"{folder}/state", takeover=True, heartbeat="1 s")
    read = spark.readStream.format("datagen")
    rows = read.options(uid="rows", rows_of="3000,1000").load()
    counts = sx.with_watermark(rows, "ts", "1 minute").groupBy(F.window("ts", "1 minute"), "key")
    counted = counts.agg(F.count("*").alias("n"), F.sum("seq").alias("sum"))
    named = counted.select(F.col("window.start").alias("start"), "key", "n", "sum")
    job.add("windows", named.writeStream.format("delta_2pc").options(uid="counts", path=f"{folder}/counts"))
    end = {"rows_per_second": "50"} if how == "live" else {"rows_of": "3000,1000"}
    copied = spark.readStream.format("datagen").options(uid="copied", **end).load()
    if how == "flaky":
        copied = copied.mapInArrow(partial(_fail_once, f"{folder}/failed"), copied.schema)
    job.add("copy", copied.writeStream.format("delta_2pc").options(uid="copies", path=f"{folder}/copies"))
    return job


def _fail_once(marker: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        yield from batches
    else:
        raise ConnectionError("the first attempt")


def main(remote: str, folder: str, how: str = "end") -> None:
    spark = sx.session("client", remote=remote)
    job = job_of(spark, folder, how)
    result = job.run(until="now") if how == "now" else job.run()
    counted = {query.uid: query.rows for query in result.queries}
    print(json.dumps({"state": result.state.value, "rows": counted, "epochs": result.epochs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
