"""Time without new rows: after `kill -9` of the driver, and after a failure inside it.

A row counts from the time of the commit that adds it to the output table. After a `kill -9` the driver is started again
at once, as a supervisor would do; it is killed with all its processes: Python, JVM and workers. Both sides start the
same Python and JVM. The failure inside the driver is a broken connection in a user's function, after which the job
starts the query again. Plain Spark does not do that, so the figure is compared with one of PyFlink, measured on a
similar machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks import _recovery_driver
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._operators import steps
from benchmarks._spark import session, until, workplace
from spark_ext.spark.session.jars import delta_jars
from spark_ext.spark.session.sessions import defaults
from tests.support.processes import Tree

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 5
FAILURES = 7
SIDES = ("plain", "job")
FILES = 3000  # number of input files: more than all rounds can read
EPOCHS_BEFORE = 3  # number of epochs that a driver commits before it is killed
PYFLINK_SECONDS = 2.4
"""The aim: PyFlink's time from a failure to the next row in a Python function (see benchmarks/flink)."""


def run(rounds: int = ROUNDS) -> Figures:
    failed = _failed()
    with workplace() as folder:
        _write(folder / "data")
        return [_killed(folder, rounds), failed]


def _write(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        ids = np.arange(_recovery_driver.ROWS, dtype=np.int64) + number * _recovery_driver.ROWS
        pq.write_table(pa.table({"id": ids, "value": ids * 0.5}), folder / f"part-{number:05d}.parquet")


def _killed(folder: Path, rounds: int) -> Figure:
    down = beside(SIDES, rounds, lambda side: _down(side, folder))
    plain, job = (Sample.of(down[side], "s") for side in SIDES)
    return Figure(
        "recovery_kill",
        "kill -9 of the driver to the first new row in the table: Job / plain Spark with its own source and sink",
        job.median / plain.median, Aim("<=", 1.1), {"plain Spark": plain, "Job": job},
        {"rows per epoch": _recovery_driver.ROWS}, divided=("Job", "plain Spark"),
    )  # fmt: skip


def _down(side: str, folder: Path) -> float:
    table = folder / side / "table"
    with _driver(side, folder) as alive:
        _await_rows(table, _newest(table), EPOCHS_BEFORE, alive=alive)
    killed = time.time()
    before = _newest(table)
    with _driver(side, folder) as alive:
        return _await_rows(table, before, 1, alive=alive) - killed


@contextmanager
def _driver(side: str, folder: Path) -> Iterator[Callable[[], None]]:
    """A driver, killed with all its processes at the end; yields a function that raises if it has exited by itself."""
    class_path = os.pathsep.join(map(str, delta_jars(defaults())))
    command = [sys.executable, "-m", "benchmarks._recovery_driver", side, str(folder)]
    env = {"BENCHMARK_CLASS_PATH": class_path, "PYSPARK_PYTHON": sys.executable}
    with Tree(command, folder / f"{side}.log", env) as run:

        def alive() -> None:
            if run.poll() is not None:
                raise RuntimeError(f"the driver has exited:\n{run.text()[-4000:]}")

        yield alive


def _log(table: Path) -> list[tuple[int, Path]]:
    names = (path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())
    return sorted((int(path.stem), path) for path in names)


def _newest(table: Path) -> int:
    log = _log(table)
    return log[-1][0] if log else -1


def _await_rows(
    table: Path, after: int, commits: int, *, alive: Callable[[], None] = lambda: None, job: sx.Job | None = None
) -> float:
    """Wait for commits with rows after a version; returns the time of the last one, seconds since 1970."""
    with_rows: dict[int, float] = {}
    looked = after

    def enough() -> bool:
        nonlocal looked
        alive()
        for version, path in _log(table):
            if version > looked:
                if any("add" in json.loads(line) for line in path.read_text().splitlines()):
                    with_rows[version] = path.stat().st_mtime_ns / 1e9
                looked = version
        return len(with_rows) >= commits

    until(enough, f"{commits} commits in {table}", job)
    return with_rows[sorted(with_rows)[commits - 1]]


def _failed() -> Figure:
    visible: list[float] = []
    seen: list[float] = []
    with session("recovery") as spark, workplace() as folder:
        job = _failing_job(spark, folder).start()
        for failure in range(FAILURES + 1):
            row_visible, row_seen = _fail_once(folder, job)
            if failure:  # the first one compiles
                visible.append(row_visible)
                seen.append(row_seen)
        job.stop()
    down = Sample.of(seen, "s")
    return Figure(
        "recovery_failure",
        "broken connection in a user's function to the first row in the function again: Job / PyFlink's "
        f"{PYFLINK_SECONDS} s (not of this run: see benchmarks/flink)",
        down.median / PYFLINK_SECONDS,
        Aim("<=", 1),
        {
            "Job": down,
            "PyFlink": Sample.of([PYFLINK_SECONDS], "s"),
            "to the first new row in the table": Sample.of(visible, "s"),
        },
        {"restart_backoff, ms": 100},
        divided=("Job", "PyFlink"),
    )


def _failing_job(spark: SparkSession, folder: Path) -> sx.Job:
    place = str(folder)

    def touch(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from pyspark import TaskContext

        here = Path(place)
        context = TaskContext.get()
        # Spark gives each run of a query its own job group.
        run_id = (context.getLocalProperty("spark.jobGroup.id") or "") if context else ""
        for batch in batches:
            if (here / "fail").exists():
                (here / "fail").unlink(missing_ok=True)
                (here / "failed-run").write_text(run_id)
                (here / "failed").write_text(repr(time.time()))
                raise ConnectionError("fails on purpose")  # a fault of the function itself would stop the job
            # The other task of the failed epoch continues for a moment.
            again = (here / "failed").exists() and (here / "failed-run").read_text() != run_id
            if again and not (here / "seen").exists():
                (here / "seen").write_text(repr(time.time()))
            yield batch

    rows = steps(spark, steps=1_000_000, rows=1000)
    touched = rows.mapInPandas(touch, rows.schema)
    writer = touched.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
    return sx.Job(spark, "recovery", state=folder / "state").add("q", writer)


def _fail_once(folder: Path, job: sx.Job) -> tuple[float, float]:
    """Seconds from the exception to the first new row in the table, and to the first in the function."""
    table = folder / "table"
    _await_rows(table, _newest(table), EPOCHS_BEFORE, job=job)
    for mark in ("failed", "seen"):
        (folder / mark).unlink(missing_ok=True)
    (folder / "fail").touch()
    until((folder / "failed").exists, "the function fails", job)
    until((folder / "seen").exists, "the function sees rows again", job)
    failed, seen = (_time(folder / mark) for mark in ("failed", "seen"))
    # Files that a task had written when the other one failed are not visible, so every later commit is a new one.
    after = max((version for version, path in _log(table) if path.stat().st_mtime_ns / 1e9 < failed), default=-1)
    return _await_rows(table, after, 1, job=job) - failed, seen - failed


def _time(mark: Path) -> float:
    text: Any = None

    def whole() -> bool:
        nonlocal text
        text = mark.read_text()
        return bool(text)

    until(whole, f"{mark.name} is written")
    return float(text)
