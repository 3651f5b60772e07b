# Databricks notebook source
# MAGIC %md
# MAGIC # Watch a query that somebody else has started
# MAGIC
# MAGIC A plain streaming query, `rate` to `noop`, and one line more: an Observer as a listener. The query fails, is started again,
# MAGIC and then gets stuck; what the Observer has found is printed.
# MAGIC
# MAGIC As a script: `python examples/observe.py [--fresh] [--out DIR]`

# COMMAND ----------

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from pyspark.sql import functions as F
from rich.console import Console

import spark_ext as sx

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUT = "out/observe"
PATIENCE = 120.0
"""How long each step is waited for, s."""

# COMMAND ----------

# MAGIC %md
# MAGIC ## The query
# MAGIC
# MAGIC Nothing in it knows of the Observer. Its function fails while the file `broken` is there, and reads `pipe`, to which nobody
# MAGIC writes, while that is there.

# COMMAND ----------


def start(spark: SparkSession, out: Path) -> StreamingQuery:
    broken, pipe = str(out / "broken"), str(out / "pipe")

    @F.udf("double")
    def price(value: int) -> float:
        if Path(broken).exists():
            return {"EUR": 1.0}["USD"] * value
        if Path(pipe).exists():
            Path(pipe).read_bytes()
        return 100.0 * value

    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    writer = rows.select(price("value").alias("price")).writeStream.format("noop").queryName("prices")
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start()


# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens to it

# COMMAND ----------


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    by = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > by:
            raise TimeoutError(what)
        time.sleep(0.1)


def rows(state: Path, table: str) -> list[dict[str, Any]]:
    """A table of the ledger: a Delta table, as all that is known."""
    path = str(state / "ledger" / table)
    return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []


def disturb(spark: SparkSession, out: Path, state: Path) -> None:
    """The query runs, fails, is started again, and gets stuck."""
    before = {row["incident_id"] for row in rows(state, "incidents")}

    def recorded(type_: str) -> bool:
        return any(row["type"] == type_ and row["incident_id"] not in before for row in rows(state, "incidents"))

    def resolved() -> int:
        ended = {row["incident_id"] for row in rows(state, "incident_changes") if row["new"] == "RESOLVED"}
        return len(ended - before)

    query = start(spark, out)
    until(lambda: len(query.recentProgress) > 3, "some epochs")
    (out / "broken").touch()
    until(lambda: recorded("failure"), "the failure")
    (out / "broken").unlink()
    query = start(spark, out)
    until(lambda: len(query.recentProgress) > 3, "some epochs after the failure")
    os.mkfifo(out / "pipe")
    until(lambda: recorded("stall"), "the stall")
    (out / "pipe").rename(out / "gone")
    (out / "gone").write_bytes(b"")
    until(lambda: resolved() == 2, "the end of the stall")
    query.stop()


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run it
# MAGIC
# MAGIC Then look at it with `spark-ext timeline out/observe/state` and `spark-ext report out/observe/state`.

# COMMAND ----------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A query of somebody else, and an Observer.")
    parser.add_argument("--fresh", action="store_true", help="delete what earlier runs have left first")
    parser.add_argument("--out", default=OUT, help=f"folder of the checkpoint and the state (default: {OUT})")
    return parser.parse_args([] if "get_ipython" in globals() else None)


def main() -> int:
    options, console = arguments(), Console()
    out = Path(options.out).resolve()
    if options.fresh:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("broken", "pipe", "gone"):
        (out / name).unlink(missing_ok=True)
    spark = sx.session("observe")
    state = out / "state"
    observer = sx.listeners.Observer(state=state, name="theirs", stall_after="3 s")
    spark.streams.addListener(observer)
    try:
        disturb(spark, out, state)
    finally:
        spark.streams.removeListener(observer)
    for row in sorted(rows(state, "incidents"), key=lambda row: row["at"]):
        text = f"{row['type']:8} {json.loads(row['labels'])['type']:10} {row['what'].partition(chr(10))[0]}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)
