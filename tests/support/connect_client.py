"""A job in a client of Spark Connect: `python -m tests.support.connect_client REMOTE FOLDER [HOW]`.

Prints the result, as JSON, in its last line.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx


def job_of(spark: SparkSession, folder: str, how: str) -> sx.Job:
    """Windows over rows, and a copy of the same rows.

    `live`: the copy never ends, `slow`: late; `flaky`: a task fails; `without`: the copy is removed.
    """
    listeners = f"{folder}/incidents.yaml"
    given = {"incidents": listeners, "latency": "latest", "latency_interval": 0} if Path(listeners).exists() else {}
    job = sx.Job(spark, "connected", state=f"{folder}/state", takeover=True, heartbeat="1 s", **given)
    read = spark.readStream.format("datagen")
    rows = read.options(uid="rows", rows_of="3000,1000").load()
    counts = sx.with_watermark(rows, "ts", "1 minute").groupBy(F.window("ts", "1 minute"), "key")
    counted = counts.agg(F.count("*").alias("n"), F.sum("seq").alias("sum"))
    named = counted.select(F.col("window.start").alias("start"), "key", "n", "sum")
    job.add("windows", named.writeStream.format("delta_2pc").options(uid="counts", path=f"{folder}/counts"))
    if how == "without":
        return job.remove("copy")
    pace = {"rows_per_second": "300"} if how == "slow" else {}
    end = {"rows_per_second": "50"} if how == "live" else {"rows_of": "3000,1000", **pace}
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


def linked(spark: SparkSession, folder: str) -> sx.Job:
    """Files that keep arriving, in windows; an exchange passes them to a query that awaits something for each row."""
    job = sx.Job(spark, "linked", state=f"{folder}/state")
    x = job.exchange("x", partitions=2, key="id")
    read = spark.readStream.format("files").schema("id bigint, at timestamp")
    read = read.options(format="json", watch="true", path=f"{folder}/in")
    rows = read.option("uid", "in").load()

    def doubled() -> DataStreamWriter:
        mapped = sx.async_map(x.read("x-in"), _doubled, "id bigint, twice bigint")
        return mapped.writeStream.format("delta_2pc").options(uid="out", path=f"{folder}/out")

    job.add("first", x.write(rows)).add("second", doubled)
    timed = sx.with_watermark(read.option("uid", "timed").load(), "at", "1 minute")
    minutes = timed.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n")).select("window.start", "n")
    return job.add("minutes", minutes.writeStream.format("delta_2pc").options(uid="n", path=f"{folder}/minutes"))


async def _doubled(row: Row) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"id": row["id"], "twice": 2 * row["id"]}


def hidden(spark: SparkSession, folder: str) -> sx.Job:
    """A stream behind a view, which only the server sees."""
    rows = spark.readStream.format("datagen").options(uid="rows", rows_of="10").load()
    rows.createOrReplaceTempView("behind")
    writer = spark.sql("SELECT seq FROM behind").writeStream.format("delta_2pc")
    return sx.Job(spark, "hidden", state=f"{folder}/state").add("q", writer.options(uid="out", path=f"{folder}/out"))


def registered(remote: str) -> SparkSession:
    """A session as a platform hands it over, with settings that it does not allow to change."""
    spark = SparkSession.Builder().remote(remote).getOrCreate()
    sx.register(spark)
    return spark


def main(remote: str, folder: str, how: str = "end") -> None:
    spark = registered(remote) if how == "registered" else sx.session("client", remote=remote)
    if how == "hidden":
        hidden(spark, folder)
    job = linked(spark, folder) if how in ("linked", "registered") else job_of(spark, folder, how)
    result = job.run(until="now") if how in ("linked", "now", "registered") else job.run()
    counted = {query.uid: query.rows for query in result.queries}
    print(json.dumps({"state": result.state.value, "rows": counted, "epochs": result.epochs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
