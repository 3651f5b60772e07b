"""A job whose everything lies in an object store: `python tests/chaos/object_store_job.py --out s3://BUCKET/FOLDER`.

Parquet files -> `rows` -> exchange x -> `minutes` (windows, state in RocksDB) -> the table `minutes`; x -> `copy` ->
the table `copy`. The environment names the store (AWS_...). Run it again until it ends.
"""

import argparse
import os
import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.storage import StoreOptions, filesystem_of
from tests.chaos.commands import ended, killed_job

FILES, FILE_ROWS = 3, 1_000  # input files, and rows in each
QUERIES = ("rows", "minutes", "copy")
UIDS = {"minutes": "minutes-table", "copy": "copy-table"}  # output tables, and their sinks


def rows(number: int) -> pa.Table:
    ids = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
    start = pd.Timestamp("2024-05-01", tz="UTC")
    times = pa.array([start + pd.Timedelta(seconds=n) for n in ids], pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(ids, pa.int64()), "bucket": [f"b{n % 3}" for n in ids], "ts": times})


def put_input(out: str) -> None:
    system, place = filesystem_of(f"{out}/input")
    there = {info.base_name for info in system.get_file_info(fs.FileSelector(place, allow_not_found=True))}
    for number in range(FILES):
        if f"{number}.parquet" in there:
            continue
        with system.open_output_stream(f"{place}/{number}.parquet") as stream:
            pq.write_table(rows(number), stream)


def expected() -> dict[str, pa.Table]:
    whole = pa.concat_tables([rows(number) for number in range(FILES)])
    read = whole.to_pandas()
    counts = read.groupby([read["ts"].dt.floor("min").rename("minute"), "bucket"])["id"].agg(rows="size", ids="sum")
    schema = pa.schema(
        [("minute", pa.timestamp("us", "UTC")), ("bucket", pa.string()), ("rows", pa.int64()), ("ids", pa.int64())]
    )
    return {
        "minutes": pa.Table.from_pandas(counts.reset_index(), schema, preserve_index=False),
        "copy": whole.select(["id", "bucket"]),
    }


def job(out: str, *, per_epoch: int = 500, **settings: Any) -> sx.Job:
    options = dict(StoreOptions.of_environment(os.environ).values)
    conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "768m"}
    spark = sx.session("object-store", conf=conf, storage_options=options)
    reader = spark.readStream.format("files").options(uid="input", path=f"{out}/input", max_rows_per_epoch=per_epoch)
    common = {"checkpoint_interval": "2 s", "retained_checkpoints": 1}
    made = killed_job(spark, "store", f"{out}/state", **{**common, **settings})
    x = made.exchange("x", partitions=2, kind="delta")
    made.add("rows", x.write(reader.load()))
    windows = (
        # No row is late, in whatever order the files are read.
        sx.with_watermark(x.read("x-minutes"), "ts", "1 hour")
        .groupBy(F.window("ts", "1 minute"), "bucket")
        .agg(F.count("*").alias("rows"), F.sum("id").alias("ids"))
        .select(F.col("window.start").alias("minute"), "bucket", "rows", "ids")
    )
    made.add("minutes", windows.writeStream.format("delta_2pc").options(uid=UIDS["minutes"], path=f"{out}/minutes"))
    copy = x.read("x-copy").select("id", "bucket").writeStream.format("delta_2pc")
    return made.add("copy", copy.options(uid=UIDS["copy"], path=f"{out}/copy", partition_by="bucket"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--per-epoch", type=int, default=500, help="rows")
    given = parser.parse_args()
    put_input(given.out)
    return ended(job(given.out, per_epoch=given.per_epoch).run(progress=False))


if __name__ == "__main__":
    sys.exit(main())
