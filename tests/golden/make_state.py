"""Runs a job, kills it half-way, and packs its folder: later versions must be able to continue it.

    cd CHECKOUT_OF_THE_VERSION
    PYTHONPATH=$PWD .venv/bin/python THIS_CHECKOUT/tests/golden/make_state.py ARCHIVE.tar.gz

It runs the code of that checkout. The job has three queries, started in two runs:

- `generated`: `datagen` into `delta_2pc`; it is alone in the first run, and finishes;
- `hourly`: CSV files, windows of an hour, into `delta_2pc`;
- `copied`: Parquet files into `files_2pc`.

In the second run driver, JVM and workers are killed while each of the last two has an epoch that its sink has committed
and Spark has not. The folder is always `PLACE`: a job with an epoch in doubt refuses to continue elsewhere.
"""

import fcntl
import os
import shutil
import socket
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.support.processes import Tree
from tests.support.waiting import until

PLACE: Final = Path("/tmp/spark-ext-golden")  # where the job has run, and has to be continued
QUERIES: Final = ("generated", "hourly", "copied")
TRIPS: Final = (8, 24)  # CSV files, and rows in each
READINGS: Final = (6, 30)  # parquet files, and rows in each
GENERATED_ROWS: Final = 60
START: Final = datetime(2024, 1, 1, tzinfo=timezone.utc)
MODIFIED: Final = int(START.timestamp())
"""Time of modification of all input files: whole seconds, which any archive keeps."""

KILLED_AT: Final = {"hourly": "delta.committed", "copied": "files.committed"}
"""Where each query stands when it is killed: its sink has committed the epoch, Spark has not."""
LIMIT: Final = 600  # for any step, s: the machine may be busy
KILLED_IN_COMMIT: Final = 3  # the commit of the sink at which it stops there, from 1


def job(spark: SparkSession, folder: str | Path, queries: tuple[str, ...] = QUERIES) -> sx.Job:
    """The job over a folder with `data`; `state` and `out` are beside it."""
    # Maintenance would delete old history, and an archive's history is old.
    made = sx.Job(spark, "golden", state=f"{folder}/state", checkpoint_interval="200 ms", maintenance_interval="1 h")
    if "generated" in queries:
        rows = spark.readStream.format("datagen").option("uid", "numbers").option("rows", GENERATED_ROWS)
        frame = rows.option("channels", 3).option("max_rows_per_epoch", 25).load()
        writer = frame.writeStream.format("delta_2pc").option("uid", "generated-table")
        made.add("generated", writer.option("path", f"{folder}/out/generated"))
    if "hourly" in queries:
        trips = spark.readStream.format("files").option("uid", "trips").option("path", f"{folder}/data/trips")
        trips = trips.option("header", "true").option("readers", 1).option("max_rows_per_epoch", 30)
        hourly = (
            sx.with_watermark(trips.schema("at timestamp, kind string, amount bigint").load(), "at", "30 minutes")
            .groupBy(F.window("at", "1 hour"), "kind")
            .agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
            .select(F.col("window.start").alias("hour"), "kind", "rows", "amount")
        )
        writer = hourly.writeStream.format("delta_2pc").option("uid", "hourly-table")
        made.add("hourly", writer.option("path", f"{folder}/out/hourly"))
    if "copied" in queries:
        readings = spark.readStream.format("files").option("uid", "readings").option("path", f"{folder}/data/readings")
        readings = readings.option("readers", 2).option("max_rows_per_epoch", 35)
        writer = readings.load().writeStream.format("files_2pc").option("uid", "copied-files")
        made.add("copied", writer.option("path", f"{folder}/out/copied"))
    return made


@contextmanager
def alone() -> Iterator[Path]:
    """The empty place, while nobody else on this machine uses it."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE)


def write_input(folder: Path) -> None:
    """The input files: event times grow from row to row and from file to file, so no row is late."""
    trips, readings = folder / "data" / "trips", folder / "data" / "readings"
    trips.mkdir(parents=True)
    readings.mkdir()
    files, per_file = TRIPS
    for index in range(files):
        numbers = range(index * per_file, (index + 1) * per_file)
        rows = {
            "at": [(START + timedelta(minutes=10 * n)).isoformat() for n in numbers],
            "kind": ["abc"[n % 3] for n in numbers],
            "amount": [n * n % 97 for n in numbers],
        }
        pd.DataFrame(rows).to_csv(trips / f"{index}.csv", index=False)
    files, per_file = READINGS
    for index in range(files):
        numbers = range(index * per_file, (index + 1) * per_file)
        table = pa.table({"id": list(numbers), "value": [n / 7 for n in numbers], "file": [index] * per_file})
        pq.write_table(table, readings / f"{index}.parquet", row_group_size=8)
    for file in (folder / "data").rglob("*.*"):
        os.utime(file, (MODIFIED, MODIFIED))


def run_here(folder: Path, queries: tuple[str, ...]) -> None:
    # The ledger records the host: on a machine of the same name a start would look for the dead driver's process.
    socket.gethostname = lambda: "golden"
    spark = sx.session("golden", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    job(spark, folder, queries).run(progress=False)


def _started(folder: Path, log: Path, *queries: str, points: str = "") -> Tree:
    command: list[str | Path] = [sys.executable, __file__, "--run", folder, *queries]
    return Tree(command, log, {"SPARK_EXT_FAILPOINTS": points} if points else {})


def _rows(folder: Path, table: str) -> pd.DataFrame:
    found: pd.DataFrame = DeltaTable(str(folder / "state" / "ledger" / table)).to_pandas()
    return found


def _is_written_down(folder: Path) -> bool:
    """Whether the ledger has caught up with Spark's commits, so that each archive holds the same facts."""
    epochs = _rows(folder, "epochs")
    for query in KILLED_AT:
        commits = folder / "state" / "queries" / query / "checkpoint" / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        if newest not in set(epochs.loc[epochs["query"] == query, "epoch"]):
            return False
    flags = _rows(folder, "finished")
    return {"hourly", "copied"} <= set(flags["query"]) and "periodic" in set(_rows(folder, "checkpoints")["kind"])


def make(archive: Path) -> None:
    with alone() as folder, tempfile.TemporaryDirectory() as place:
        gates = Path(place, "gates")
        gates.mkdir()
        write_input(folder)
        with _started(folder, Path(place, "first.log"), "generated") as first:
            if first.wait(LIMIT) != 0:
                raise RuntimeError(first.text())
        # Each sink's committer waits at its fail point for a file that is never made.
        points = ";".join(f"{point}=wait:{gates / query}#{KILLED_IN_COMMIT}" for query, point in KILLED_AT.items())
        with _started(folder, Path(place, "second.log"), *QUERIES, points=points) as second:
            waiting = [gates / f"{query}.waiting" for query in KILLED_AT]
            until(lambda: all(file.exists() for file in waiting) or second.poll() is not None, "both wait", LIMIT)
            if second.poll() is not None:
                raise RuntimeError(second.text())
            until(lambda: _is_written_down(folder), "the ledger is complete", LIMIT)
            second.kill()  # the driver first: it must not see its workers die
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(folder, ".", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run_here(Path(sys.argv[2]), tuple(sys.argv[3:]))
    else:
        make(Path(sys.argv[1]).absolute())
