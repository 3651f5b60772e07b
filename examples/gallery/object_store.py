"""Everything in an object store: input, state, bad rows, output, and a savepoint from which another job continues.

No local disk is used. A store with the interface of S3 is named by the environment, in the variables that Amazon's own
tools read; `BUCKET` is the place for it all, such as `s3://my-bucket/gallery`.

    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_REGION=... BUCKET=s3://... python examples/gallery/object_store.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow.fs as fs
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.storage import filesystem_of

DAYS: Mapping[str, str] = {"monday": "id,amount\n1,10\n2,twenty\n3,30\n", "tuesday": "id,amount\n4,40\n5,50\n"}
"""Files of orders; one row cannot be read."""


def bucket() -> str:
    given = os.environ.get("BUCKET", "")
    assert given.startswith("s3://"), "set BUCKET to a place such as s3://my-bucket/gallery, and AWS_... to its key"
    return given.rstrip("/")


def put(day: str) -> None:
    system, place = filesystem_of(f"{bucket()}/in/{day}.csv")
    with system.open_output_stream(place) as file:
        file.write(DAYS[day].encode())


def job(spark: SparkSession, place: str = "main") -> sx.Job:
    """The orders, as a table; a row that is none goes to a table of its own.

    Args:
        spark: a session with the file system of S3.
        place: folder of the bucket for state and output.
    """
    reader = spark.readStream.format("files").option("uid", "orders").option("path", f"{bucket()}/in")
    orders = (
        reader.option("format", "csv")
        .option("header", "true")
        .schema("id BIGINT, amount BIGINT")
        .option("watch", "true")
        .option("on_bad_row", "quarantine")
        .load()
    )
    made = sx.Job(spark, "orders", state=f"{bucket()}/{place}/state")
    return made.add(
        "orders",
        orders.writeStream.format("delta_2pc").option("uid", "table").option("path", f"{bucket()}/{place}/orders"),
    )


def main() -> None:
    system, place = filesystem_of(bucket())
    if system.get_file_info(place).type is not fs.FileType.NotFound:
        system.delete_dir_contents(place)
    spark = sx.session("object-store", storage="s3")

    put("monday")
    monday = job(spark)
    first = monday.run(until="now", progress=False)
    monday.savepoint(f"{bucket()}/savepoints/monday")
    put("tuesday")
    second = job(spark).run(until="now", progress=False)
    # Another job, with a state and an output of its own, continues after Monday.
    trial = job(spark, "trial").restore(f"{bucket()}/savepoints/monday").run(until="now", progress=False)

    print(f"Monday {first.rows} rows, Tuesday {second.rows}; the trial read {trial.rows}")
    for table in ("main/orders", "trial/orders", "main/state/bad_rows/table"):
        print(table, spark.read.format("delta").load(f"{bucket()}/{table}").count())


if __name__ == "__main__":
    main()
