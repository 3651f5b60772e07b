# Databricks notebook source
# MAGIC %md
# MAGIC # A pipeline of linked queries, and a second one from its savepoint
# MAGIC
# MAGIC The year of flights of `examples/flights.py` goes through queries that are linked by two exchanges, in a diamond:
# MAGIC
# MAGIC | query | reads | what it does | writes |
# MAGIC |---|---|---|---|
# MAGIC | `enrich` | files | adds the weather to each flight | exchange `enriched` |
# MAGIC | `aggregate` | `enriched` | flights and mean delay per carrier and day | exchange `days` |
# MAGIC | `alert` | `enriched`, `days` | flights that were far behind their carrier's mean of the day | table `alerts` |
# MAGIC | `report` | `days` | the days, for readers outside | table `days` |
# MAGIC
# MAGIC Half-way the job takes a **savepoint**, and continues to its end. Then a second job begins where the savepoint was
# MAGIC taken, in a folder of its own, and ends alike. Everything is compared with pandas.
# MAGIC
# MAGIC As a script: `python examples/pipeline.py [--fresh] [--drain-after FLIGHTS] [--out DIR] [--data DIR]`.

# COMMAND ----------

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import spark_ext as sx
from spark_ext.jobs.run_options import stop_on_interrupt

if "__file__" in globals():  # a kernel looks in the folder of its notebook
    sys.path.insert(0, str(Path(__file__).parent))
from flights import load_flights, package_flights, package_weather, prepare, same  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from spark_ext.jobs.result import JobResult

DATA = "data"
OUT = "out/pipeline"
HALF = 170_000
BEHIND = 240.0
"""Minutes behind the mean of the carrier's day that make an alert."""

# COMMAND ----------

# MAGIC %md
# MAGIC ## The queries
# MAGIC
# MAGIC A watermark does not pass through an exchange, so each query that needs one says so itself. The weather is a table
# MAGIC that does not change while the job runs: a plain join adds it.

# COMMAND ----------


def enrich(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Each flight once, with the visibility at its airport in the hour of departure, or null."""
    day = F.date_trunc("day", "departure").alias("day")
    joined = flights.join(F.broadcast(weather.select("origin", "time_hour", "visib")), ["origin", "time_hour"], "left")
    return joined.select("departure", day, "carrier", "flight", "origin", "dest", "dep_delay", "visib")


def aggregate(enriched: DataFrame) -> DataFrame:
    """Per carrier and day (UTC): flights, their mean delay in minutes, and the mean visibility in miles."""
    return (
        sx.with_watermark(enriched, "departure", "1 day")
        .groupBy(F.window("departure", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay"), F.avg("visib").alias("mean_visib"))
        .select(F.col("window.start").alias("day"), "carrier", "flights", "mean_delay", "mean_visib")
    )


def alert(enriched: DataFrame, days: DataFrame) -> DataFrame:
    """Flights that were far behind their carrier's mean of the day, each once the day is complete."""
    late = sx.with_watermark(enriched.where(F.col("dep_delay") > BEHIND), "day", "2 days")
    means = sx.with_watermark(days.select("day", "carrier", "mean_delay"), "day", "1 day")
    behind = F.col("dep_delay") - F.col("mean_delay")
    return late.join(means, ["day", "carrier"]).where(behind > BEHIND).withColumn("behind", behind)


# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC
# MAGIC Both jobs are made by this function; they differ in the folder of their state and tables alone.

# COMMAND ----------


def job(spark: SparkSession, out: str = OUT, data: str = DATA) -> sx.Job:
    """The job, ready to run; `spark-ext run` calls this too."""
    files, target = Path(data).resolve(), Path(out).resolve()
    prepare(files)
    made = sx.Job(spark, "pipeline", state=target / "state")
    enriched = made.exchange("enriched", partitions=4, key="carrier", max_in_flight=100_000)
    days = made.exchange("days", partitions=2, key="carrier")
    weather = spark.read.parquet(str(files / "weather"))
    made.add("enrich", enriched.write(enrich(load_flights(spark, "flights", files), weather)))
    made.add("aggregate", days.write(aggregate(enriched.read("to-aggregate"))))
    made.add("alert", delta(alert(enriched.read("to-alert"), days.read("days-to-alert")), "alerts", target))
    made.add("report", delta(days.read("to-report"), "days", target))
    return made


def delta(rows: DataFrame, name: str, target: Path) -> DataStreamWriter:
    return rows.writeStream.format("delta_2pc").option("uid", f"{name}-table").option("path", str(target / name))


# COMMAND ----------

# MAGIC %md
# MAGIC ## The results
# MAGIC
# MAGIC What the second job has written, and what the first one had written when the savepoint was taken, are together what
# MAGIC the first one has written in the end.

# COMMAND ----------

KEYS = {"days": ["day", "carrier"], "alerts": ["departure", "carrier", "flight", "origin"]}


def by_pandas(flights: int) -> dict[str, pd.DataFrame]:
    """Both tables without Spark, of the first flights of the year."""
    weather = package_weather()[["origin", "time_hour", "visib"]]
    whole = package_flights().head(flights).merge(weather, "left", ["origin", "time_hour"])
    whole["day"] = whole["departure"].dt.floor("D")
    grouped = whole.groupby(["day", "carrier"])
    days = grouped.agg(flights=("flight", "size"), mean_delay=("dep_delay", "mean"), mean_visib=("visib", "mean"))
    days = days.reset_index()
    late = whole[whole["dep_delay"] > BEHIND].merge(days[["day", "carrier", "mean_delay"]], on=["day", "carrier"])
    late["behind"] = late["dep_delay"] - late["mean_delay"]
    columns = ["day", "carrier", "departure", "flight", "origin", "dest", "dep_delay", "visib", "mean_delay", "behind"]
    return {"days": days, "alerts": late.loc[late["behind"] > BEHIND, columns]}


def read(out: Path, name: str, version: int | None = None) -> pd.DataFrame:
    """A table, which is there as soon as it has rows."""
    from deltalake import DeltaTable

    there = DeltaTable.is_deltatable(str(out / name))
    return DeltaTable(out / name, version=version).to_pandas() if there else pd.DataFrame()


def compare(title: str, found: dict[str, pd.DataFrame], console: Console) -> bool:
    """Print whether both tables are those of pandas, for as many flights as have been read."""
    expected = by_pandas(int(found["days"]["flights"].sum()))
    shown = Table("table", "Spark", "pandas", "", title=title, title_justify="left")
    good = True
    for name, keys in KEYS.items():
        equal = same(found[name], expected[name], keys)
        verdict = "equal, row by row" if equal else "[red]NOT equal[/]"
        shown.add_row(name, f"{len(found[name]):,}", f"{len(expected[name]):,}", verdict)
        good &= equal
    console.print(shown)
    return good


def draw(made: sx.Job, file: Path) -> None:
    """The graph of the job, upstream to the left."""
    from matplotlib.figure import Figure  # without pyplot, which would look for a display

    places = made.graph.layout()
    figure = Figure(figsize=(9, 3))
    axes = figure.add_axes((0, 0, 1, 1))
    arrow = {"arrowstyle": "->", "shrinkA": 42, "shrinkB": 42, "color": "#4a7aa7"}
    box = {"boxstyle": "round,pad=0.6", "facecolor": "#d6e6f5", "edgecolor": "#4a7aa7"}
    for upstream, downstream, exchange in made.graph.edges():
        (x, y), (to_x, to_y) = places[upstream], places[downstream]
        axes.annotate("", (to_x, to_y), (x, y), arrowprops=arrow)
        axes.text((x + to_x) / 2, (y + to_y) / 2 + 0.04, exchange, ha="center", va="bottom", color="#c0392b")
    for query, (x, y) in places.items():
        axes.text(x, y, query, ha="center", va="center", bbox=box)
    right, top = max(x for x, _ in places.values()), max(abs(y) for _, y in places.values())
    axes.set(xlim=(-0.4, right + 0.4), ylim=(-top - 0.5, top + 0.5))
    axes.set_axis_off()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run it
# MAGIC
# MAGIC Ctrl-C stops the job in order, and the next run continues. A drain ends it: no further flights are read, and what
# MAGIC has been read is completed, days and alerts included.

# COMMAND ----------


def run_first(made: sx.Job, savepoint: Path, drain_after: int | None) -> JobResult:
    """The first job to its end; half-way it takes a savepoint, unless it has done so before."""
    made.start()
    with stop_on_interrupt(made.name, made.stop):
        if not (savepoint / "manifest.json").exists():
            shutil.rmtree(savepoint, ignore_errors=True)  # begun by a process that was killed
            if reads(made, HALF if drain_after is None else drain_after // 2):
                made.savepoint(savepoint, aligned=True)
        if drain_after is not None and reads(made, drain_after):
            made.drain()
        return made.await_termination()


def reads(made: sx.Job, flights: int) -> bool:
    """Wait until the job has read so many flights; False: it has ended before."""
    while not made.wait(0.2):
        if made.snapshot().query("enrich").rows >= flights:
            return True
    return False


def saved(made: sx.Job) -> int | None:
    """The number of the job's savepoint."""
    row = made.ledger.checkpoints().where("kind = 'savepoint' and status = 'COMPLETED'").first()
    return None if row is None else int(row["checkpoint_id"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Flights through linked queries, and a second job from a savepoint.")
    parser.add_argument("--fresh", action="store_true", help="delete everything in the output folder first")
    parser.add_argument("--drain-after", type=int, metavar="FLIGHTS", help="drain the job after so many flights")
    parser.add_argument("--out", default=OUT, help=f"folder of all outputs (default: {OUT})")
    parser.add_argument("--data", default=DATA, help=f"folder of the prepared files (default: {DATA})")
    return parser.parse_args([] if "get_ipython" in globals() else None)


def main() -> int:
    options, console = arguments(), Console()
    out = Path(options.out).resolve()
    if options.fresh:
        for name in ("first", "second", "savepoint"):
            shutil.rmtree(out / name, ignore_errors=True)
    spark = sx.session("pipeline")
    first = job(spark, str(out / "first"), options.data)
    draw(first, out / "pipeline.png")
    try:
        result = run_first(first, out / "savepoint", options.drain_after)
        console.print(str(result), markup=False, highlight=False)
        if not result.finished:
            console.print("Run it again to continue from here.")
            return 3
        good = compare("first job", {name: read(out / "first", name) for name in KEYS}, console)
        number = saved(first)
        if number is None:
            console.print("The job had ended before it could take its savepoint: --fresh starts over.")
            return 0 if good else 1
        second = job(spark, str(out / "second"), options.data)
        if not second.ledger.jobs().where("event = 'restored'").count():
            second.restore(out / "savepoint")
        result = second.run()
    except sx.errors.SparkExtError as problem:
        Console(stderr=True).print(str(problem), markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(str(result), markup=False, highlight=False)
    if not result.finished:
        console.print("Run it again to continue from here.")
        return 3
    then = first.as_of(number)
    both = {}
    for name in KEYS:
        version = then.positions[f"{name}-table"]["version"]
        both[name] = pd.concat([read(out / "first", name, version), read(out / "second", name)])
    good &= compare("savepoint and second job", both, console)
    console.print(f"Picture of the job: {Path(options.out) / 'pipeline.png'}")
    return 0 if good else 1


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)
