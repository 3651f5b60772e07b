"""Orders per day, from JSON files to a Delta table: the program of the pages about clusters.

The same file runs on a laptop, by spark-submit and in a container; what differs is in the environment:

    python examples/orders_per_day.py                                        # makes its input, in out/orders
    export INPUT=s3://bucket/orders OUTPUT=s3://bucket/per_day STATE=s3://bucket/state
    spark-ext run --storage s3 examples/orders_per_day.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/orders")


def job(spark: SparkSession) -> sx.Job:
    """Reads all files that are there, and ends; windows that are open then are emitted too."""
    orders = (
        spark.readStream.format("files")
        .schema("order long, at timestamp, price double")
        .options(uid="orders", path=os.environ.get("INPUT", str(OUT / "input")), format="json")
        .load()
    )
    per_day = (
        sx.with_watermark(orders, "at", "1 day")
        .groupBy(F.window("at", "1 day"))
        .agg(F.count("*").alias("orders"), F.sum("price").alias("revenue"))
        .select(F.to_date("window.start").alias("day"), "orders", "revenue")
    )
    table = per_day.writeStream.format("delta_2pc").options(
        uid="per-day-table", path=os.environ.get("OUTPUT", str(OUT / "per_day"))
    )
    made = sx.Job(spark, "orders-per-day", state=os.environ.get("STATE", str(OUT / "state")))
    return made.add("per-day", table)


def make_input(folder: Path, days: int = 6, orders: int = 1000) -> None:
    """Files of generated orders, one for each day of March."""
    folder.mkdir(parents=True, exist_ok=True)
    for day in range(1, days + 1):
        rows = [{"order": n, "at": f"2026-03-{day:02}T{n % 24:02}:00:00Z", "price": 2.5} for n in range(orders)]
        (folder / f"2026-03-{day:02}.json").write_text("\n".join(map(json.dumps, rows)))


def main() -> None:
    if "INPUT" not in os.environ and not (OUT / "input").exists():
        make_input(OUT / "input")
    in_store = os.environ.get("STATE", "").startswith("s3://")
    spark = sx.session("orders-per-day", storage="s3" if in_store else None)
    print(job(spark).run(progress=False))


if __name__ == "__main__":
    main()
