"""A table of rates that changes every hour, beside a stream that does not end.

Each reload is a control event: all rows of an epoch are converted with one version of the rates, also when the epoch is
repeated, and the event says with which epoch the version begins. Here an hour takes two seconds. A scheduler does the
same from outside: `spark-ext control out/gallery/reload_every_hour/state reload rates --wait`.

    python examples/gallery/reload_every_hour.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/reload_every_hour")
HOUR = 2.0  # s
HOURS = 3


def publish(hour: int) -> None:
    """What somebody else does every hour: the rates of all keys."""
    rates = pa.table({"key": pa.array(range(5), pa.int64()), "hour": [hour] * 5, "rate": [1.0 + hour / 10] * 5})
    write_deltalake(str(OUT / "rates"), rates, mode="overwrite")


def job(spark: SparkSession) -> sx.Job:
    made = sx.Job(spark, "payments", state=OUT / "state", interval="200 ms")
    rates = made.lookup("rates", OUT / "rates", key="key")
    payments = spark.readStream.format("datagen").options(uid="payments", rows_per_second=500, keys=5).load()
    converted = rates.join(payments.select("id", "key", "value"), on="key")
    table = converted.withColumn("converted", F.col("value") * F.col("rate"))
    return made.add("convert", table.writeStream.format("delta_2pc").options(uid="table", path=str(OUT / "payments")))


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    publish(0)
    spark = sx.session("reload-every-hour")
    running = job(spark).start()
    for hour in range(1, HOURS):
        running.wait(HOUR)
        publish(hour)
        done = running.control.reload("rates", wait=True)
        print(f"version {done.result['version']} from epoch {done.applied['convert']} on")
    running.wait(HOUR)
    running.drain()

    payments = spark.read.format("delta").load(str(OUT / "payments"))
    payments.groupBy("hour").agg(F.count("*").alias("payments"), F.max("rate").alias("rate")).orderBy("hour").show()


if __name__ == "__main__":
    main()
