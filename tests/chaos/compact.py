"""A small job in which everything can fail: `python tests/chaos/compact.py --out DIR`. Run it again until it ends.

Two queries of about twelve epochs, or as many as `CHAOS_EPOCHS` says: windows with state, and a copy of Parquet files.
"""

import os
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import spark_ext as sx
from tests.chaos.commands import generated, killed_job, session, the_job

ROWS = 24_000  # number of generated rows, over three channels
FILES, FILE_ROWS = 4, 3_000
EPOCHS = int(os.environ.get("CHAOS_EPOCHS", "12"))
GENERATED = {"rows": ROWS, "channels": 3, "keys": 5, "step_ms": 200}


def prepare(data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        file = data / f"{number}.parquet"
        if not file.exists():
            pq.write_table(_rows(number * FILE_ROWS, (number + 1) * FILE_ROWS), file.with_suffix(".draft"))
            file.with_suffix(".draft").rename(file)


def _rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table({"id": ids, "bucket": [f"b{n % 3}" for n in ids], "text": [f"row {n}" for n in ids]})


def expected() -> dict[str, pa.Table]:
    rows = generated(GENERATED, dict.fromkeys("012", ROWS // 3)).to_pandas()
    windows = rows.groupby([rows["ts"].dt.floor("min").rename("minute"), "key"])
    table = windows.agg(rows=("id", "size"), ids=("id", "sum"), greatest=("value", "max")).reset_index()
    numbers = [(name, pa.int64()) for name in ("key", "rows", "ids")]
    schema = pa.schema([("minute", pa.timestamp("us", "UTC")), *numbers, ("greatest", pa.float64())])
    return {"windows": pa.Table.from_pandas(pd.DataFrame(table), schema), "copy": _rows(0, FILES * FILE_ROWS)}


def job(out: Path) -> sx.Job:
    prepare(out / "data")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    spark = session("chaos", conf)
    reader = spark.readStream.format("datagen").options(uid="generated", max_rows_per_epoch=ROWS // EPOCHS, readers=3)
    windows = (
        sx.with_watermark(reader.options(**GENERATED).load(), "ts", "10 minutes")
        .groupBy(F.window("ts", "1 minute"), "key")
        .agg(F.count("*").alias("rows"), F.sum("id").alias("ids"), F.max("value").alias("greatest"))
        .select(F.col("window.start").alias("minute"), "key", "rows", "ids", "greatest")
    )
    per_epoch = FILES * FILE_ROWS // EPOCHS
    files = spark.readStream.format("files").options(uid="files", max_rows_per_epoch=per_epoch, readers=2)
    made = killed_job(spark, "chaos", out / "state")
    made.add("windows", windows.writeStream.format("delta_2pc").options(uid="windows-table", path=str(out / "windows")))
    copy = files.load(str(out / "data")).writeStream.format("delta_2pc")
    return made.add("copy", copy.options(uid="copy-table", path=str(out / "copy"), partition_by="bucket"))


if __name__ == "__main__":
    sys.exit(the_job(job))
