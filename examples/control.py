# Databricks notebook source
# MAGIC %md
# MAGIC # A running job, changed from outside
# MAGIC
# MAGIC The flights of `examples/flights.py` go through a job of two queries. While it runs it is throttled, paused, given
# MAGIC another threshold, and drained before the year is over: by **control events** over HTTP, as another process would
# MAGIC send them. Each one is in the job's ledger before it is accepted, takes effect at one known epoch of each query, and
# MAGIC would survive any crash.
# MAGIC
# MAGIC | query | what it does | table |
# MAGIC |---|---|---|
# MAGIC | `judge` | each flight, and whether it was late by the threshold that was in force | `out/control/judge` |
# MAGIC | `daily` | flights and mean departure delay per carrier and day | `out/control/daily` |
# MAGIC
# MAGIC As a script: `python examples/control.py [--fresh] [--out DIR] [--data DIR]`. It needs the packages of
# MAGIC `pip install 'spark-ext[spark,examples,server]'`.

# COMMAND ----------

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F
from rich.console import Console

import spark_ext as sx

if "__file__" in globals():  # a kernel looks in the folder of its notebook
    sys.path.insert(0, str(Path(__file__).parent))
from flights import KEYS, delays, load_flights, package_flights, prepare, same  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.control.event_state import EventState

DATA = "data"
OUT = "out/control"
ROWS_PER_EPOCH = 3_000
SLOWLY = 2_000
"""Rows per second of each query while it is throttled."""
SECONDS = 5.0
"""How long it is throttled."""
BEGIN = 6_000
"""Flights of each query before it is throttled, and again after that."""
LATE, LATER = 15.0, 60.0
"""Minutes from which a flight is late: at first, and later."""

# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC
# MAGIC `sx.control.value` is a column with the value that a key of the configuration has in the epoch: the same in all tasks,
# MAGIC and the same again if the epoch is replayed.

# COMMAND ----------


def job(spark: SparkSession, out: str = OUT, data: str = DATA) -> sx.Job:
    files, target = Path(data).resolve(), Path(out).resolve()
    prepare(files)
    made = sx.Job(spark, "control", state=target / "state")
    late_after = sx.control.value("late_after", "double", LATE).alias("late_after")
    columns = ["departure", "carrier", "flight", "origin", "dest", "tailnum", "dep_delay"]
    flights = load_flights(spark, "flights-judge", files, ROWS_PER_EPOCH).select(*columns, late_after)
    windows = delays(load_flights(spark, "flights-daily", files, ROWS_PER_EPOCH), "1 day")
    queries = {
        "judge": flights.withColumn("late", F.col("dep_delay") > F.col("late_after")),
        "daily": windows.select(F.to_date("window.start").alias("day"), "carrier", "flights", "mean_dep_delay"),
    }
    for uid, rows in queries.items():
        writer = rows.writeStream.format("delta_2pc").option("uid", f"{uid}-table")
        made.add(uid, writer.option("path", str(target / uid)))
    return made


# COMMAND ----------

# MAGIC %md
# MAGIC ## What is asked of it
# MAGIC
# MAGIC `job.serve()` answers on loopback, with a token of its own. `sx.Control` needs the URL and the token, or the state
# MAGIC directory alone; so do these commands:
# MAGIC
# MAGIC ```sh
# MAGIC spark-ext control out/control/state rate-limit source:flights-judge 2000 --wait
# MAGIC spark-ext control out/control/state pause --wait
# MAGIC spark-ext control out/control/state set late_after 60 --wait
# MAGIC spark-ext control out/control/state resume --wait
# MAGIC spark-ext control out/control/state drain --wait
# MAGIC ```

# COMMAND ----------


@dataclass(frozen=True)
class Seen:
    """What was observed from outside."""

    freely: float
    """Rows per second of the query `judge` before it was throttled."""
    throttled: float
    """The same while it was throttled."""
    while_paused: int
    """Rows that were read while the job was paused."""
    changed_at: int
    """The first epoch of `judge` with the later threshold."""
    before: dict[str, object]
    """The configuration of the epoch before that one."""
    behind: dict[str, object]
    """Its own configuration."""


def steer(control: sx.Control, out: Path) -> Seen:
    """Throttle, pause, reconfigure and drain the job."""
    sources = ("flights-judge", "flights-daily")
    freely = speed(out, until=BEGIN)
    for uid in sources:
        control.rate_limit(f"source:{uid}", SLOWLY, wait=True)
    throttled = speed(out, seconds=SECONDS)

    control.pause(wait=True)
    paused = written(out)
    change = control.set("late_after", LATER, wait=True)  # a paused query makes an epoch for it, without rows
    while_paused = written(out) - paused

    for uid in sources:
        control.rate_limit(f"source:{uid}")  # without a rate: no limit
    control.resume(wait=True)
    speed(out, until=written(out) + BEGIN)
    first = change.applied["judge"]
    assert first is not None
    before, behind = (control.config("judge", epoch)["config"] for epoch in (first - 1, first))
    control.drain(wait=True)
    return Seen(freely, throttled, while_paused, first, before, behind)


def written(out: Path) -> int:
    """Rows that are committed to the table `judge`."""
    try:
        return DeltaTable(out / "judge").to_pyarrow_dataset().count_rows()
    except TableNotFoundError:
        return 0


def speed(out: Path, seconds: float | None = None, until: int | None = None) -> float:
    """Rows per second of the query `judge`, for so many seconds or until it has written so many rows."""
    begun, before = time.monotonic(), written(out)
    while True:
        took, now = time.monotonic() - begun, written(out)
        if (seconds is not None and took >= seconds) or (until is not None and now >= until):
            return (now - before) / took
        time.sleep(0.1)


# COMMAND ----------

# MAGIC %md
# MAGIC ## The results
# MAGIC
# MAGIC Every flight was judged once, by the threshold of its epoch: the tables are compared with pandas.

# COMMAND ----------


def check(out: Path, console: Console) -> bool:
    judged, daily = (DeltaTable(out / name).to_pandas() for name in ("judge", "daily"))
    # The months are read one after the other, and both queries were drained somewhere on the way.
    flights = package_flights().sort_values(["year", "month"], kind="stable", ignore_index=True)
    expected = flights.head(len(judged))[[*judged.columns.drop(["late_after", "late"])]]
    first = int((judged["late_after"] == LATE).sum())
    expected = expected.assign(late_after=[LATE] * first + [LATER] * (len(judged) - first))
    judgement = (expected["dep_delay"] > expected["late_after"]).astype(object)
    expected = expected.assign(late=judgement.where(expected["dep_delay"].notna(), None))
    windows = flights.head(int(daily["flights"].sum()))
    windows = windows.groupby([windows["departure"].dt.date.rename("day"), "carrier"]).agg(
        flights=("carrier", "size"), mean_dep_delay=("dep_delay", "mean")
    )
    good = True
    for name, found, wanted, keys in (
        ("judge", judged, expected, KEYS["with_weather"]),
        ("daily", daily, windows.reset_index(), KEYS["daily"]),
    ):
        equal = same(found, wanted, keys)
        console.print(f"{name}: {'equal to pandas, row by row' if equal else '[red]NOT equal to pandas[/]'}")
        good &= equal
    console.print(f"{first:,} flights were late after {LATE:.0f} min, {len(judged) - first:,} after {LATER:.0f} min")
    return good


def show(events: Sequence[EventState], console: Console) -> None:
    table = pd.DataFrame(
        {
            "event": event.sequence,
            "kind": event.kind,
            "target": event.target,
            "status": event.status,
            "first epochs": ", ".join(f"{query} {epoch}" for query, epoch in event.applied.items()),
            "applied after": "" if event.applied_ms is None else f"{event.applied_ms:,.0f} ms",
        }
        for event in events
    )
    console.print(table.to_string(index=False), markup=False, highlight=False)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run it

# COMMAND ----------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A running job that is changed from outside.")
    parser.add_argument("--fresh", action="store_true", help="delete the outputs and the job's state first")
    parser.add_argument("--out", default=OUT, help=f"folder of the outputs and the state (default: {OUT})")
    parser.add_argument("--data", default=DATA, help=f"folder of the prepared files (default: {DATA})")
    return parser.parse_args([] if "get_ipython" in globals() else None)


def main() -> int:
    options, console = arguments(), Console()
    out = Path(options.out).resolve()
    if options.fresh:
        for name in ("judge", "daily", "state"):
            shutil.rmtree(out / name, ignore_errors=True)
    try:
        running = job(sx.session("control"), str(out), options.data).start()
        if all(query.finished_before for query in running.snapshot().queries):
            running.await_termination()
            console.print("finished: the job had been drained before. From scratch: make control FRESH=1")
            return 0
        with running.serve() as server, sx.Control(server.url, server.token) as control:
            console.print(f"served at {server.url}")
            seen = steer(control, out)
        result = running.await_termination()
        # The server has ended with the run. What has become of the events is in the ledger.
        with sx.Control(out / "state") as control:
            events = control.events(after=0)
    except sx.errors.SparkExtError as problem:
        Console(stderr=True).print(str(problem), markup=False, highlight=False, soft_wrap=True)
        return 1
    show(events, console)
    console.print(f"judge: {seen.freely:,.0f} rows/s freely, {seen.throttled:,.0f} rows/s with a limit of {SLOWLY:,}")
    console.print(f"while it was paused: {seen.while_paused} rows")
    console.print(f"epoch {seen.changed_at - 1}: {seen.before}; epoch {seen.changed_at}: {seen.behind}")
    console.print(str(result), markup=False, highlight=False)
    return 0 if check(out, console) else 1


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)
