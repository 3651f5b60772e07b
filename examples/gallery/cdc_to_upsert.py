"""The changes of a table, applied to a copy of it: inserts, updates and deletions, each run those that are new.

The source reads the table's change data feed from where the last run ended; the sink replaces the row of each key, and
deletes those that were deleted. A version that is applied twice after a crash changes nothing.

    python examples/gallery/cdc_to_upsert.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/cdc_to_upsert")


def job(spark: SparkSession) -> sx.Job:
    changes = (
        spark.readStream.format("delta_snapshot")
        .option("uid", "stock-changes")
        .option("path", str(OUT / "stock"))
        .option("follow", "true")
        .option("changes", "true")
        .load()
    )
    rows = changes.where("_change_type <> 'update_preimage'").select(
        "item", "n", F.col("_commit_version").alias("version"), (F.col("_change_type") == "delete").alias("gone")
    )
    copy = (
        rows.writeStream.format("delta_2pc")
        .option("uid", "stock-copy")
        .option("path", str(OUT / "copy"))
        .option("mode", "upsert")
        .option("key", "item")
        .option("newest_by", "version")
        .option("deleted_if", "gone")
        .option("tombstones", "drop")  # the feed is in order: nothing older comes after a deletion
    )
    return sx.Job(spark, "stock", state=OUT / "state").add("copy", copy)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("cdc-to-upsert")
    stock = f"delta.`{(OUT / 'stock').resolve()}`"
    spark.sql(
        f"create table {stock} (item string, n int) using delta tblproperties (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"insert into {stock} values ('apple', 3), ('pear', 5), ('plum', 9)")
    first = job(spark).run(until="now", progress=False)
    spark.sql(f"update {stock} set n = 4 where item = 'apple'")
    spark.sql(f"delete from {stock} where item = 'pear'")
    second = job(spark).run(until="now", progress=False)

    print(f"the first run read {first.rows} changes, the second {second.rows}")
    spark.read.format("delta").load(str(OUT / "copy")).select("item", "n").orderBy("item").show()


if __name__ == "__main__":
    main()
