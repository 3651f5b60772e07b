"""A process of `benchmarks.short_lived`: a job over the flights, from the start of Python to its end.

The job is that of `examples/flights.py`, or copies the flights into a Delta table, as plain Spark does on one side.
Prints two times as JSON, s since the process was started: of the first committed epoch and of the end of the job.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil


def job(out: Path, data: Path, *, short_lived: bool, copy: bool = False) -> dict[str, float]:
    import spark_ext as sx

    begun = psutil.Process().create_time()
    spark = sx.session("flights", master="local[2]", short_lived=short_lived)
    if copy:
        rows = spark.readStream.format("files").options(uid="in", path=str(data / "flights")).load()
        writer = rows.writeStream.format("delta_2pc")
        flights = sx.Job(spark, "copy", state=out / "state")
        flights.add("copy", writer.options(uid="out", path=str(out / "table")))
    else:
        from examples import flights as example

        flights = example.job(spark, str(out), str(data))
    result = flights.run(progress=False)
    ended = time.time()
    assert result.finished and result.rows > 0
    first = flights.ledger.epochs().agg({"committed_at": "min"}).collect()[0][0]
    return {"first": first.timestamp() - begun, "whole": ended - begun}


def plain(out: Path, data: Path) -> dict[str, float]:
    from benchmarks.nexmark.driver import plain_session

    begun = psutil.Process().create_time()
    spark = plain_session("local[2]")
    path = str(data / "flights")
    rows = spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(out / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(out / "table"))
    query.awaitTermination()
    ended = time.time()
    first = (out / "checkpoint" / "commits" / "0").stat().st_mtime
    return {"first": first - begun, "whole": ended - begun}


if __name__ == "__main__":
    side, folder, flights_data = sys.argv[1], *map(Path, sys.argv[2:])
    if side == "plain":
        print(json.dumps(plain(folder, flights_data)))
    else:
        short = side != "ordinary"
        print(json.dumps(job(folder, flights_data, short_lived=short, copy=side == "copy")))
