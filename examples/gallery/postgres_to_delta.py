"""A PostgreSQL table into a Delta table, each run what has changed: the newest row of each key (SCD type 1).

The first run reads the whole table, in ranges of its key. Each later one reads the rows that were inserted or updated since
then, and replaces those with the same key, in one commit for each epoch.

    POSTGRES_DSN=postgresql://... python examples/gallery/postgres_to_delta.py

It needs `pip install 'spark-ext[spark,postgres]'` and a table `customers` with a primary key `id` and a time `updated_at`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx

OUT = Path("out/gallery/postgres_to_delta")


def job(spark: SparkSession) -> sx.Job:
    customers = (
        spark.readStream.format("postgres")
        .option("uid", "customers")
        .option("dsn", os.environ["POSTGRES_DSN"])
        .option("table", "customers")
        .option("incremental", "xmin")
        .load()
    )
    newest = (
        customers.writeStream.format("delta_2pc")
        .option("uid", "customers-table")
        .option("path", str(OUT / "customers"))
        .option("mode", "upsert")
        .option("key", "id")
        .option("newest_by", "updated_at")
    )
    return sx.Job(spark, "customers", state=OUT / "state").add("load", newest)


def main() -> None:
    if "POSTGRES_DSN" not in os.environ:
        raise SystemExit("set POSTGRES_DSN: see the first lines of this file")
    spark = sx.session("postgres-to-delta")
    result = job(spark).run(until="now", progress=False)

    customers = spark.read.format("delta").load(str(OUT / "customers"))
    print(f"{result.rows} rows read, {customers.count()} customers in the table")


if __name__ == "__main__":
    main()
