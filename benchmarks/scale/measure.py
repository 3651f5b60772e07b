"""What an epoch costs at one size of what grows, and with a history also a start, the status and the page."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import environment
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, commit_file, committed_at, session, until, working_seconds, workplace
from benchmarks.nexmark.measure import pss
from benchmarks.scale import history
from benchmarks.scale.history import QUERY, SOURCE
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Request
from spark_ext.ledger import Ledger
from spark_ext.ledger.identity import Incarnation, job_row
from spark_ext.ledger.maintenance import MaintenanceSettings, compact
from spark_ext.ledger.schema import JobRow, Row
from spark_ext.server.page_view import POLL_EVERY
from spark_ext.server.server import ControlServer
from spark_ext.spark.logs.spark_log import SparkLog

JOB: Final = "bench"
FIRST: Final = 15  # epochs of the run before: workers start, and code is compiled
WARM: Final = 6  # epochs behind the start that do not count
EPOCHS: Final = 30
INTERVAL: Final = 500  # between two of them, ms, so that what a job does by the clock is the same for all sizes
SMALL: Final = MaintenanceSettings().small_files  # commits between two compactions
IDLE: Final = 0.001  # CPU time of what `_worked` does on an idle machine, s
STEPS: Final = 1_000_000  # more than any run takes

Figures = dict[str, float]
Fill = Callable[[sx.Job, SparkSession, Path, int, bool], object]
"""Adds the queries of a job of a size, in a folder; the last argument says whether its history is written."""


@dataclass(frozen=True)
class Curve:
    """What grows, to which sizes."""

    name: str
    what: str
    sizes: tuple[int, ...]
    fill: Fill
    past: Callable[[Path, int], Row | None] | None = None  # writes the history; an epoch does not depend on its length


def run(name: str, size: int) -> dict[str, Any]:
    """Measure one size of a curve, in this process, which must be new: a JVM that has run is faster."""
    curve, row = CURVES[name], None
    conf = {"spark.sql.shuffle.partitions": str(size)} if name == "partitions" else None
    with workplace() as folder:
        with session(f"scale {name}", conf) as spark:
            _ran(_started(curve, spark, folder, size, past=False), _committed(folder, FIRST))
            if curve.past is not None:
                row = curve.past(folder / "state", size)
            found = {} if name == "jobs" else _run(curve, spark, folder, size)
        if name == "jobs":
            found = _served(folder, size)
        elif curve.past is not None:
            found |= {} if row is None else _upkeep(folder / "state", row)
            found |= _views(folder / "state", row)
    rounded = {name: float(f"{value:.4g}") for name, value in found.items()}
    return {"curve": name, "size": size, **rounded, "environment": environment()}


def _started(curve: Curve, spark: SparkSession, folder: Path, size: int, *, past: bool) -> sx.Job:
    job = sx.Job(spark, JOB, state=folder / "state", interval=INTERVAL if past else 0)
    curve.fill(job, spark, folder, size, past)
    return job.start()


def _committed(folder: Path, epoch: int) -> Callable[[], bool]:
    return commit_file(checkpoint_of(folder / "state"), epoch).exists


def _run(curve: Curve, spark: SparkSession, folder: Path, size: int) -> Figures:
    checkpoint, state = checkpoint_of(folder / "state"), folder / "state"
    before = SparkLog(str(checkpoint)).newest_commit() or 0
    with _spent() as start:
        job = _started(curve, spark, folder, size, past=True)
        until(_committed(folder, before + 1), "the first epoch is committed", job)
    first, last = before + WARM, before + WARM + EPOCHS
    until(_committed(folder, first), "the first epochs are committed", job)
    begun, done, work = _rounds(state), _committed(folder, last), list[float]()
    with _spent() as cost:
        until(lambda: _worked(work) and done(), "the epochs that count are committed", job)
    rounds, slowness = _rounds(state) - begun, statistics.mean(work) / IDLE
    members = [psutil.Process(), *psutil.Process().children(recursive=True)]
    memory = sum(pss(one.pid) for one in members)
    _ran(job, lambda: True)
    sizes = _written(folder, committed_at(checkpoint, first), committed_at(checkpoint, last))
    return {
        "cpu_ms": 1000 * (cost[0] - sum(work)) / rounds / slowness, "wall_ms": 1000 * cost[1] / rounds,
        "slowness": slowness, "bytes": sum(sizes) / rounds, "files": len(sizes) / rounds, **_both("start", start),
        "processes": len(members), "pss_mb": memory / 1e6,
    }  # fmt: skip


def _ran(job: sx.Job, condition: Callable[[], bool]) -> None:
    until(condition, "the epochs are committed", job)
    job.stop()
    job.await_termination()


def _rounds(state: Path) -> float:
    """How many epochs the queries have committed, on average; one that only writes an exchange is left out."""
    return statistics.mean(
        SparkLog(str(one)).newest_commit() or 0 for one in state.glob(f"queries/{QUERY}*/checkpoint")
    )


@contextmanager
def _spent(seconds: Callable[[], float] = working_seconds) -> Iterator[list[float]]:
    """CPU and wall time of a block, s; filled in at its end."""
    found: list[float] = []
    cpu, begin = seconds(), time.perf_counter()
    yield found
    found += [seconds() - cpu, time.perf_counter() - begin]


def _both(name: str, spent: Sequence[float]) -> Figures:
    return {f"{name}_cpu_s": spent[0], f"{name}_wall_s": spent[1]}


def _worked(times: list[float]) -> bool:
    """Add the CPU time of work that is always the same, s: it takes more where others use the machine's caches."""
    begin = time.thread_time()
    hashlib.sha256(b"".join(b"%d" % number for number in range(10_000))).digest()
    times.append(time.thread_time() - begin)
    return True


def _written(folder: Path, begin: float, end: float) -> list[int]:
    """The sizes of the files that were written last in a period, s since 1970."""
    found = [one.stat() for one in folder.rglob("*") if one.is_file()]
    return [one.st_size for one in found if begin < one.st_mtime <= end]


def _upkeep(state: Path, row: Row) -> Figures:
    """A compaction that is due."""
    table = Ledger(str(state)).table(type(row))
    for _ in range(SMALL):
        table.append([row])
    begin = time.time()
    with _spent(time.process_time) as merged:
        list(compact(table, SMALL))
    written = sum(_written(state / "ledger", begin, time.time()))
    return {"compact_cpu_s": merged[0], "compact_bytes": written}


def _views(state: Path, row: Row | None) -> Figures:
    """The command `status`, the first view of the page, and the one behind another row."""
    command = [sys.executable, "-m", "spark_ext", "status", str(state), "--json"]
    with _spent(lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])) as status:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    before = pss(os.getpid())
    with ControlServer([str(state)]) as server:
        with _spent(time.process_time) as page:
            _get(server, f"/v1/jobs/{JOB}/page")
        found = _both("status", status) | _both("page", page) | {"page_mb": (pss(os.getpid()) - before) / 1e6}
        if row is None:
            return found
        Ledger(str(state)).table(type(row)).append([row])
        time.sleep(POLL_EVERY)  # before, it does not look at the ledger
        with _spent(time.process_time) as again:
            _get(server, f"/v1/jobs/{JOB}/page")
    return found | _both("again", again)


def _get(server: ControlServer, path: str) -> None:
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _served(folder: Path, size: int) -> Figures:
    """A server of copies of a job: its start with the list of them, the list again, and the page of one."""
    states = []
    for number in range(size):
        states.append(folder / "states" / str(number))
        shutil.copytree(folder / "state", states[-1], ignore=lambda name, _: {"jobs", "queries"})
        one = Incarnation(f"{JOB}-{number}", f"{number:032x}", 1, 1)
        Ledger(str(states[-1])).table(JobRow).append([job_row(one, event) for event in ("started", "ended")])
    before = pss(os.getpid())
    with ExitStack() as stack:
        with _spent(time.process_time) as start:
            server = stack.enter_context(ControlServer([str(state) for state in states]))
            _get(server, "/v1/jobs")
        with _spent(time.process_time) as again:
            _get(server, "/v1/jobs")
        with _spent(time.process_time) as page:
            _get(server, f"/v1/jobs/{JOB}-{size - 1}/page")
        memory = (pss(os.getpid()) - before) / 1e6
    of_list = {"cpu_ms": 1000 * again[0], "wall_ms": 1000 * again[1], "pss_mb": memory}
    return _both("start", start) | of_list | _both("page", page)


# -- jobs --------------------------------------------------------------------------------------------------------------


def _steps(spark: SparkSession, uid: str = SOURCE, **options: int) -> DataFrame:
    return steps(spark, uid=uid, steps=STEPS, **{"rows": 500, **options})


def _table(frame: DataFrame, folder: Path, uid: str = "out") -> Any:
    return frame.writeStream.format("delta_2pc").options(uid=uid, path=str(folder / uid))


def _columns(spark: SparkSession, size: int, past: bool) -> DataFrame:
    return _steps(spark).select(*((F.col("value") + n).alias(f"c{n}") for n in range(size)))


def _wide(spark: SparkSession, size: int, past: bool) -> DataFrame:
    length = (F.col("id") * 0 + size // 32).cast("int")  # no constant: it would be part of the plan
    return _steps(spark, rows=1, channels=1).select(F.repeat(F.md5(F.col("id").cast("string")), length).alias("text"))


def _windows(spark: SparkSession, size: int, past: bool) -> DataFrame:
    rows = sx.with_watermark(_steps(spark), "ts", "1 minute")
    return rows.groupBy(F.window("ts", "1 minute"), "key").count().drop("window")


def _unsunk(job: sx.Job, spark: SparkSession, folder: Path, size: int, past: bool) -> None:
    job.add(QUERY, _steps(spark).writeStream.format("noop"))


def _queries(job: sx.Job, spark: SparkSession, folder: Path, size: int, past: bool) -> None:
    for number in range(size):
        name = f"{QUERY}{number or ''}"
        job.add(name, _table(_steps(spark, f"{SOURCE}{number}"), folder, f"out{number}"))


def _exchange(job: sx.Job, spark: SparkSession, folder: Path, size: int, past: bool) -> None:
    if past:
        ControlLog(Ledger(str(folder / "state"))).accept([Request("pause", "query:p")])
    hop = job.exchange("hop", partitions=2, max_in_flight=None)
    job.add("p", hop.write(_steps(spark, "numbers", rows=250)))
    job.add(QUERY, _table(hop.read(SOURCE, max_rows_per_epoch=500), folder))


def _reading(frame: Callable[[SparkSession, int, bool], DataFrame]) -> Fill:
    """Fill a job with one query that writes a frame into a table."""
    return lambda job, spark, folder, size, past: job.add(QUERY, _table(frame(spark, size, past), folder))


_PLAIN: Final = _reading(lambda spark, size, past: _steps(spark))
_FINISHED: Final = _reading(lambda spark, size, past: _steps(spark, short=size if past else 0))
_RUNNING: Final = _reading(lambda spark, size, past: _steps(spark, channels=size, rows=1))
_READERS: Final = _reading(lambda spark, size, past: _steps(spark, channels=64, rows=10, readers=size))


def _powers(least: int, number: int, factor: int = 10) -> tuple[int, ...]:
    return tuple(least * factor**power for power in range(number))


CURVES: Final = {
    one.name: one
    for one in (
        Curve("epochs", "epochs in the ledger", _powers(1_000, 4), _unsunk, history.epochs),
        Curve("control", "control events obeyed before", _powers(1_000, 4), _PLAIN, history.control),
        Curve("incidents", "incidents in the ledger", _powers(100, 4), _PLAIN, history.incidents),
        Curve("entries", "entries of an exchange not read yet", _powers(100, 4), _exchange, history.entries),
        Curve("channels", "channels that have finished", _powers(1_000, 4), _FINISHED, history.channels),
        Curve("queries", "queries in one job", (1, 3, 6, 12, 24, 48), _queries),
        Curve("columns", "columns", (10, 100, 500, 1_000, 2_000), _reading(_columns)),
        Curve("row", "bytes of a row", _powers(1024, 5, 16), _reading(_wide)),
        Curve("running", "channels in progress", _powers(10, 4), _RUNNING),
        Curve("readers", "readers of a source", _powers(1, 4, 4), _READERS),
        Curve("partitions", "partitions of state", _powers(1, 4, 4), _reading(_windows)),
        Curve("jobs", "jobs in a server", _powers(1, 4), _PLAIN),
    )
}
