# Databricks notebook source
# MAGIC %md
# MAGIC # Where the time of epochs goes
# MAGIC
# MAGIC One job, two queries on the same rows: a function that takes its time, and a count with state. The job divides the time
# MAGIC of their epochs into planning, reading, user code, state and commit.
# MAGIC
# MAGIC As a script: `python examples/epoch_parts.py [--fresh] [--out DIR]`. It needs the packages of `pip install 'spark-ext[spark]'`.

# COMMAND ----------

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.model.epoch_parts import PARTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUT = "out/epoch-parts"
ROWS, EPOCHS, SECONDS = 4_000, 5, 0.8

# COMMAND ----------

# MAGIC %md
# MAGIC ## The queries


# COMMAND ----------


def rows(spark: SparkSession, uid: str) -> DataFrame:
    """Generated rows, in a few epochs."""
    reader = spark.readStream.format("datagen").option("uid", uid).option("rows", ROWS)
    return reader.option("keys", 50).option("max_rows_per_epoch", ROWS // EPOCHS).load()


def priced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function that waits, as one does that asks a server."""
    for batch in batches:
        time.sleep(SECONDS)
        yield batch


def job(spark: SparkSession, out: str = OUT) -> sx.Job:
    """The job. `epoch_parts` is all that it needs to divide its epochs."""
    made = sx.Job(spark, "parts", state=f"{out}/state", epoch_parts=True)
    slow = rows(spark, "slow-in")
    slow = slow.mapInArrow(priced, slow.schema)
    counted = sx.with_watermark(rows(spark, "counted-in"), "ts", "1 second").dropDuplicatesWithinWatermark(["id"])
    for uid, frame in (("slow", slow), ("counted", counted)):
        sink = frame.writeStream.format("delta_2pc").option("uid", f"{uid}-out").option("path", f"{out}/{uid}")
        made.add(uid, sink)
    return made


# COMMAND ----------

# MAGIC %md
# MAGIC ## What the ledger has of it


# COMMAND ----------


def shown(state: str) -> Table:
    """A row per epoch that was divided."""
    table = Table("query", "epoch", "ms", *(part.replace("_", " ") for part in PARTS), box=None)
    for row in sorted(Ledger(state).table(EpochRow).rows(), key=lambda row: (row.query, row.epoch)):
        if row.parts_ms:
            whole = sum(row.parts_ms.values())
            shares = (f"{100 * row.parts_ms[part] / max(1, whole):.0f} %" for part in PARTS)
            table.add_row(row.query, str(row.epoch), str(whole), *shares)
    return table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Where the time of epochs goes.")
    parser.add_argument("--out", default=OUT)
    parser.add_argument("--fresh", action="store_true", help="delete what an earlier run has left")
    return parser.parse_args([] if "get_ipython" in globals() else None)


def main() -> int:
    """Run it once, and print the parts of its epochs."""
    given = arguments()
    if given.fresh:
        shutil.rmtree(given.out, ignore_errors=True)
    spark = sx.session("epoch-parts")
    result = job(spark, str(Path(given.out).absolute())).run()
    console = Console(width=120)
    console.print(shown(result.state_directory))
    console.print(f"rows that are still to be read: {sum(query.lag_rows or 0 for query in result.queries)}")
    return 0 if result.finished else 1


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)
