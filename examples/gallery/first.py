"""A first job: a million generated rows into a Delta table, where the job ends by itself.

    python first.py

It needs `pip install 'spark-ext[spark]'` and Java. Run it again: it has finished, and reads nothing. Delete the folder
`out/gallery/first` to start over.
"""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx

OUT = Path("out/gallery/first")


def job(spark: SparkSession) -> sx.Job:
    rows = spark.readStream.format("datagen").option("uid", "rows").option("rows", 1_000_000).load()
    table = rows.writeStream.format("delta_2pc").option("uid", "table").option("path", str(OUT / "table"))
    return sx.Job(spark, "first", state=OUT / "state").add("copy", table)


def main() -> None:
    spark = sx.session("first")
    print(job(spark).run(progress=False))
    print(DeltaTable(OUT / "table").to_pandas().groupby("key").size().head())


if __name__ == "__main__":
    main()
