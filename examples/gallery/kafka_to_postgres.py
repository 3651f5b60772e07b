"""A topic up to this moment into a table: orders and their changes, of which the newest one counts.

Each partition is read up to the offset that it has when the job starts; there the job ends. Rows replace those with the
same key, in one transaction for each epoch, which also records the epoch: no change is applied twice, and none is lost.

    KAFKA=localhost:9092 POSTGRES_DSN=postgresql://... python examples/gallery/kafka_to_postgres.py

It needs `pip install 'spark-ext[kafka,postgres]'`, a broker with a topic `order-changes`, and a database. The topic's values
are JSON such as `{"id": 7, "item": "tea", "price": 3.5, "version": 2}`. What is not goes into a table of bad rows.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx

OUT = Path("out/gallery/kafka_to_postgres")


def job(spark: SparkSession) -> sx.Job:
    changes = (
        spark.readStream.format("kafka_range")
        .option("uid", "orders-topic")
        .option("bootstrap_servers", os.environ["KAFKA"])
        .option("topics", "order-changes")
        .option("value_format", "json")
        .option("on_bad_row", "quarantine")
        .schema("value struct<id: bigint NOT NULL, item: string, price: double, version: int>")
        .load()
    )
    table = (
        changes.where("value IS NOT NULL")
        .select("value.*")
        .writeStream.format("postgres_2pc")
        .option("uid", "orders-table")
        .option("dsn", os.environ["POSTGRES_DSN"])
        .option("table", "orders")
        .option("mode", "upsert")
        .option("key", "id")
        .option("newest_by", "version")
    )
    return sx.Job(spark, "orders", state=OUT / "state").add("load", table)


def main() -> None:
    if "KAFKA" not in os.environ or "POSTGRES_DSN" not in os.environ:
        raise SystemExit("set KAFKA and POSTGRES_DSN: see the first lines of this file")
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("kafka-to-postgres")
    print(job(spark).run(progress=False))


if __name__ == "__main__":
    main()
