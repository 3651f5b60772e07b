"""The Spark side of a measurement: one session, and queries whose commit logs are watched."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from benchmarks import _operators

LIMIT = 300.0  # time after which a benchmark gives up waiting, s
UNCOUNTED = 1  # first rounds that do not count: in them workers start, code is compiled, and caches of files are filled

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.driver.memory": "2g",
}


@contextmanager
def session(name: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A local session with two cores, the benchmarks' operators, and additional settings."""
    spark = sx.session(f"benchmark {name}", master="local[2]", conf={**CONF, **(conf or {})})
    _operators.register(spark)
    # Queries are stopped in the middle of an epoch, which Spark logs as errors; real errors are raised here.
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spark-ext-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def counted(rounds: int) -> Iterator[tuple[int, bool]]:
    """The number of each round, and whether it counts: before those that do come the uncounted ones."""
    for number in range(UNCOUNTED + rounds):
        yield number, number >= UNCOUNTED


def warm_up(run: Callable[[], object]) -> None:
    """Run something that does not count, before the first round."""
    for _ in range(UNCOUNTED):
        run()


def until(condition: Callable[[], Any], what: str, running: StreamingQuery | sx.Job | None = None) -> None:
    """Wait for a condition; raises if the query or job fails in the meantime."""
    end = time.monotonic() + LIMIT
    while not condition():
        if running is not None and _ended(running):
            if not condition():
                raise RuntimeError(f"the query or job ended before this became true: {what}")
            return
        if time.monotonic() > end:
            raise TimeoutError(f"not within {LIMIT:g} s: {what}")
        time.sleep(0.02)


def _ended(running: StreamingQuery | sx.Job) -> bool:
    if isinstance(running, sx.Job):
        if not running.done:
            return False
        running.await_termination()
    elif running.isActive:
        return False
    else:
        running.awaitTermination()
    return True


def cpu_seconds() -> float:
    """CPU time so far of the processes that this one has started (JVM, workers); other load hardly changes it."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def working_seconds() -> float:
    """CPU time so far of this process and those that it has started, without that of the JVM's compilers.

    They work for the first minutes of a JVM, whatever runs in it, and vary by more than what a small change costs.
    """
    me = psutil.Process().cpu_times()
    total = me.user + me.system + cpu_seconds()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            for thread in process.threads():
                with contextlib.suppress(OSError):
                    if "CompilerThre" in Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text():
                        total -= thread.user_time + thread.system_time
    return total


def checkpoint_of(state: Path, query: str = "q") -> Path:
    return state / "queries" / query / "checkpoint"


def commit_file(checkpoint: Path, epoch: int) -> Path:
    """The file with which Spark records an epoch's commit; its modification time is that of the commit."""
    return checkpoint / "commits" / str(epoch)


def committed_at(checkpoint: Path, epoch: int) -> float:
    """When an epoch was committed, seconds since 1970."""
    return commit_file(checkpoint, epoch).stat().st_mtime_ns / 1e9


def mean_epoch(checkpoint: Path, first: int, last: int) -> float:
    """Mean time from commit to commit over some epochs, s; it begins with the commit of the epoch before the first."""
    return (committed_at(checkpoint, last) - committed_at(checkpoint, first - 1)) / (last - first + 1)


def start(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()


def run_epochs(writer: DataStreamWriter, checkpoint: Path, last: int) -> list[dict[str, Any]]:
    """Run a query up to the commit of epoch `last` and stop it; returns Spark's progress reports, one per epoch."""
    query = start(writer, checkpoint)
    try:
        until(commit_file(checkpoint, last).exists, f"epoch {last} has committed", query)
        # The report arrives after the commit.
        until(lambda: _last_reported(query) >= last, f"epoch {last} was reported", query)
        reports = [dict(report) for report in query.recentProgress]
    finally:
        query.stop()
    return [report for report in reports if report["batchId"] <= last and "addBatch" in report["durationMs"]]


def _last_reported(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None or "addBatch" not in last["durationMs"] else int(last["batchId"])
