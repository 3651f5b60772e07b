"""A dimension first, then the facts that are joined with it: two queries of one job.

The second query is built when the first has finished. Its function declares the lookup, whose version is then fixed: all
facts are joined with the complete dimension, also when an epoch is repeated after a crash.

    python examples/gallery/dimension_then_facts.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

import spark_ext as sx

OUT = Path("out/gallery/dimension_then_facts")


def job(spark: SparkSession) -> sx.Job:
    made = sx.Job(spark, "sales", state=OUT / "state")
    products = spark.readStream.format("datagen").options(uid="products", rows=20, channels=1).load()
    made.add(
        "dimension",
        products.selectExpr("seq AS product", "tag AS category")
        .writeStream.format("delta_2pc")
        .option("uid", "products-table")
        .option("path", str(OUT / "products")),
    )

    def facts() -> DataStreamWriter:
        known = made.lookup("products", OUT / "products", key="product")
        sales = spark.readStream.format("datagen").options(uid="sales", rows=5_000).load()
        joined = known.join(sales.selectExpr("id", "seq % 25 AS product", "value"), on="product")
        return joined.writeStream.format("delta_2pc").option("uid", "sales-table").option("path", str(OUT / "sales"))

    return made.add("facts", facts, after="dimension")


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("dimension-then-facts")
    job(spark).run(progress=False)

    sales = spark.read.format("delta").load(str(OUT / "sales"))
    unknown = sales.where("category IS NULL").select("product").distinct().count()
    print(f"{sales.count()} sales, {unknown} products that the dimension does not have")


if __name__ == "__main__":
    main()
