"""Files that arrive, and a run every hour that reads the new ones.

`watch` gives the source no end, and `until="now"` gives the run one: it reads what is there and stops. The next run
continues behind it; a file that was read is never opened again.

    python examples/gallery/incremental_files.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx

OUT = Path("out/gallery/incremental_files")


def job(spark: SparkSession) -> sx.Job:
    orders = (
        spark.readStream.format("files")
        .option("uid", "orders")
        .option("path", str(OUT / "inbox"))
        .option("watch", "true")
        .option("header", "true")
        .schema("id bigint, item string, price double")
        .load()
    )
    table = orders.writeStream.format("delta_2pc").option("uid", "orders-table").option("path", str(OUT / "orders"))
    return sx.Job(spark, "orders", state=OUT / "state").add("load", table)


def arrives(name: str, *lines: str) -> None:
    """A file is moved into the folder in one step, so that no run sees half of it."""
    part = OUT / name
    part.write_text("\n".join(["id,item,price", *lines]) + "\n")
    part.rename(OUT / "inbox" / name)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "inbox").mkdir(parents=True)
    spark = sx.session("incremental-files")

    arrives("monday.csv", "1,tea,3.5", "2,coffee,4.0")
    monday = job(spark).run(until="now", progress=False)
    arrives("tuesday.csv", "3,cake,5.25")
    tuesday = job(spark).run(until="now", progress=False)

    print(f"monday read {monday.rows} rows, tuesday {tuesday.rows}; the job is {tuesday.state.value}")
    spark.read.format("delta").load(str(OUT / "orders")).orderBy("id").show()


if __name__ == "__main__":
    main()
