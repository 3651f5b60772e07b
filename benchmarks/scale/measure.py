"""What an epoch costs at one size of what grows, and with a history also a start, the status and the page."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
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
from spark_ext.ledger import Ledger, maintain
from spark_ext.ledger.identity import Incarnation, job_row
from spark_ext.ledger.maintenance import MaintenanceSettings, compact
from spark_ext.ledger.schema import JobRow, Row
from spark_ext.server.page_view import POLL_EVERY
from spark_ext.spark.logs.spark_log import SparkLog

JOB: Final = "bench"
FIRST: Final = 15  # epochs of the run before: workers start, and code is compiled
WARM: Final = 8  # epochs behind the start that do not count
EPOCHS: Final = 40
SMALL: Final = MaintenanceSettings().small_files  # commits between two compactions
IDLE: Final = 0.001  # CPU time of the work of `_Slowness` on an idle machine, s
STEPS: Final = 1_000_000  # more than any run takes

Figures = dict[str, float]
Made = Callable[[SparkSession, Path, int, bool], sx.Job]
"""A job of a size in a folder; the last argument says whether its history is written."""


@dataclass(frozen=True)
class Curve:
    """What grows, to which sizes, and what is measured there."""

    name: str
    what: str
    sizes: tuple[int, ...]
    job: Made | None = None  # None: `measure` measures something else
    past: Callable[[Path, int], Row | None] | None = None  # writes the history, of which an epoch is independent
    of_processes: bool = False  # whether memory and processes are what its size is about
    partitions: bool = False  # whether the size is that of the shuffle
    measure: Callable[[Path, int], Figures] | None = None


def run(name: str, size: int) -> dict[str, Any]:
    """Measure one size of a curve, in this process, which must be new: a JVM that has run is faster."""
    curve = CURVES[name]
    with workplace() as folder:
        if curve.measure is not None:
            found = curve.measure(folder, size)
        else:
            conf = {"spark.sql.shuffle.partitions": str(size)} if curve.partitions else None
            with session(f"scale {curve.name}", conf) as spark:
                found, row = _run(curve, spark, folder, size)
            if curve.past is not None:
                found |= _views(folder / "state", row)
    rounded = {name: float(f"{value:.4g}") for name, value in found.items()}
    return {"curve": curve.name, "size": size, **rounded, "environment": environment()}


def _run(curve: Curve, spark: SparkSession, folder: Path, size: int) -> tuple[Figures, Row | None]:
    assert curve.job is not None
    checkpoint, state = checkpoint_of(folder / "state"), folder / "state"

    def committed(epoch: int) -> Callable[[], bool]:
        return commit_file(checkpoint, epoch).exists

    _ran(curve.job(spark, folder, size, False).start(), committed(FIRST))
    row = None if curve.past is None else curve.past(state, size)
    before = SparkLog(str(checkpoint)).newest_commit() or 0
    with _spent() as start:
        job = curve.job(spark, folder, size, True).start()
        until(committed(before + 1), "the first epoch is committed", job)
    first, last = before + WARM, before + WARM + EPOCHS
    until(committed(first), "the first epochs are committed", job)
    begun, slow = _rounds(state), _Slowness()
    with _spent() as cost:
        until(lambda: slow.ask() and committed(last)(), "the epochs that count are committed", job)
    rounds = _rounds(state) - begun
    members = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = {
        "cpu_ms": 1000 * (cost[0] - slow.spent) / rounds / float(slow), "wall_ms": 1000 * cost[1] / rounds,
        "slowness": float(slow), "processes": len(members), "pss_mb": sum(map(_memory, members)) / 1e6,
        "start_cpu_s": start[0], "start_wall_s": start[1],
    }  # fmt: skip
    _ran(job, lambda: True)
    sizes = _written(folder, committed_at(checkpoint, first), committed_at(checkpoint, last))
    found |= {"bytes": sum(sizes) / rounds, "files": len(sizes) / rounds}
    return found | ({} if row is None else _upkeep(state, row)), row


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


class _Slowness:
    """How much more CPU time work takes now than on an idle machine, which shares its caches with nobody."""

    def __init__(self) -> None:
        self.spent = 0.0  # CPU time that asking has taken, s
        self._count = 0

    def ask(self) -> bool:
        begin = time.thread_time()
        hashlib.sha256(b"".join(b"%d" % number for number in range(10_000))).digest()
        self.spent += time.thread_time() - begin
        self._count += 1
        return True

    def __float__(self) -> float:
        return self.spent / self._count / IDLE


def _memory(process: psutil.Process) -> int:
    with suppress(OSError):
        return pss(process.pid)
    return 0


def _written(folder: Path, begin: float, end: float) -> list[int]:
    """The sizes of the files that were written last in a period, s since 1970."""
    found = []
    for one in folder.rglob("*"):
        seen = one.stat()
        if begin < seen.st_mtime <= end and one.is_file():
            found.append(seen.st_size)
    return found


def _upkeep(state: Path, row: Row) -> Figures:
    """A compaction that is due, and a sweep of all tables."""
    ledger = Ledger(str(state))
    table = ledger.table(type(row))
    for _ in range(SMALL):
        table.append([row])
    begin = time.time()
    with _spent(time.process_time) as merged:
        list(compact(table, SMALL))
    written = sum(_written(state / "ledger", begin, time.time()))
    with _spent(time.process_time) as swept:
        maintain(ledger, datetime.now(timezone.utc), MaintenanceSettings(budget=timedelta(hours=1)))
    return {"compact_cpu_s": merged[0], "compact_bytes": written, "sweep_cpu_s": swept[0]}


def _views(state: Path, row: Row | None) -> Figures:
    """The command `status`, the first view of the page, and the one behind another row."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    with _spent(children) as status:
        subprocess.run([*_COMMAND, "status", str(state), "--json"], stdout=subprocess.DEVNULL, check=True)
    with _server([state]) as server:
        with _spent(server.seconds) as page:
            server.get(f"/v1/jobs/{JOB}/page")
        if row is not None:
            Ledger(str(state)).table(type(row)).append([row])
        time.sleep(POLL_EVERY)  # before, it does not look at the ledger
        with _spent(server.seconds) as again:
            server.get(f"/v1/jobs/{JOB}/page")
    return {
        "status_cpu_s": status[0], "status_wall_s": status[1], "page_cpu_s": page[0], "page_wall_s": page[1],
        "again_cpu_s": again[0], "again_wall_s": again[1], "page_pss_mb": server.most / 1e6,
    }  # fmt: skip


_COMMAND: Final = (sys.executable, "-m", "spark_ext")


class _Server:
    def __init__(self, process: subprocess.Popen[bytes], url: str, token: str) -> None:
        self._process, self._url, self._token = psutil.Process(process.pid), url, token
        self.most = 0  # bytes of memory behind the newest answer

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=200) as answer:
            content: bytes = answer.read()
        self.most = _memory(self._process)
        return content

    def seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def _server(states: Sequence[Path]) -> Iterator[_Server]:
    command = [*_COMMAND, "serve", "--json", *map(str, states)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        try:
            assert process.stdout is not None
            yield _Server(process, **json.loads(process.stdout.readline()))
        finally:
            process.terminate()


def _served(folder: Path, size: int) -> Figures:
    """A server of many jobs: its start with the list of them, the list again, and the page of one."""
    with session("scale jobs") as spark:
        _ran(_plain(spark, folder, size, False).start(), commit_file(checkpoint_of(folder / "state"), FIRST).exists)
    states = [_copied(folder, number) for number in range(size)]
    begin = time.perf_counter()
    with _server(states) as server:
        server.get("/v1/jobs")
        start = server.seconds(), time.perf_counter() - begin
        with _spent(server.seconds) as again:
            server.get("/v1/jobs")
        with _spent(server.seconds) as page:
            server.get(f"/v1/jobs/{JOB}-{size - 1}/page")
        return {
            "start_cpu_s": start[0], "start_wall_s": start[1], "cpu_ms": 1000 * again[0], "wall_ms": 1000 * again[1],
            "page_cpu_s": page[0], "page_wall_s": page[1], "pss_mb": server.most / 1e6, "processes": 1,
        }  # fmt: skip


def _copied(folder: Path, number: int) -> Path:
    """A copy of the state as that of a job with another name."""
    state = folder / "states" / str(number)
    shutil.copytree(folder / "state" / "ledger", state / "ledger", ignore=shutil.ignore_patterns("jobs"))
    one = Incarnation(f"{JOB}-{number}", f"{number:032x}", 1, 1, start=1, starts=frozenset(), older="", kind="")
    jobs = Ledger(str(state)).table(JobRow)
    jobs.append([job_row(one, event, jvm_pid=None, application_id="") for event in ("started", "ended")])
    return state


# -- jobs --------------------------------------------------------------------------------------------------------------


def _job(spark: SparkSession, folder: Path, frame: DataFrame) -> sx.Job:
    return sx.Job(spark, JOB, state=folder / "state").add(QUERY, _table(frame, folder, "out"))


def _table(frame: DataFrame, folder: Path, uid: str) -> Any:
    return frame.writeStream.format("delta_2pc").option("uid", uid).option("path", str(folder / uid))


def _plain(spark: SparkSession, folder: Path, size: int, past: bool, **options: int) -> sx.Job:
    return _job(spark, folder, steps(spark, uid=SOURCE, steps=STEPS, **{"rows": 500, **options}))


def _epochs(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    writer = steps(spark, uid=SOURCE, rows=500, steps=STEPS).writeStream.format("noop")
    return sx.Job(spark, JOB, state=folder / "state").add(QUERY, writer)


def _finished(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    return _plain(spark, folder, size, past, short=size if past else 0)


def _running(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    return _plain(spark, folder, size, past, channels=size, rows=1)


def _readers(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    return _plain(spark, folder, size, past, channels=64, rows=10, readers=size)


def _partitions(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    rows = sx.with_watermark(steps(spark, uid=SOURCE, rows=500, steps=STEPS), "ts", "1 minute")
    return _job(spark, folder, rows.groupBy(F.window("ts", "1 minute"), "key").count().drop("window"))


def _columns(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    rows = steps(spark, uid=SOURCE, rows=500, steps=STEPS)
    return _job(spark, folder, rows.select(*((F.col("value") + n).alias(f"c{n}") for n in range(size))))


def _wide(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    rows = steps(spark, uid=SOURCE, rows=1, steps=STEPS, channels=1)
    text = F.repeat(F.md5(F.col("id").cast("string")), (F.col("id") * 0 + size // 32).cast("int"))
    return _job(spark, folder, rows.select("id", text.alias("text")))


def _queries(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    job = sx.Job(spark, JOB, state=folder / "state")
    for number in range(size):
        name = QUERY if number == 0 else f"{QUERY}{number}"
        job.add(name, _table(steps(spark, uid=f"{SOURCE}{number}", rows=500, steps=STEPS), folder, f"out{number}"))
    return job


def _exchange(spark: SparkSession, folder: Path, size: int, past: bool) -> sx.Job:
    if past:
        ControlLog(Ledger(str(folder / "state"))).accept([Request("pause", "query:p")])
    job = sx.Job(spark, JOB, state=folder / "state")
    hop = job.exchange("hop", partitions=2, max_in_flight=None)
    job.add("p", hop.write(steps(spark, uid="numbers", rows=250, steps=STEPS)))
    return job.add(QUERY, _table(hop.read(SOURCE, max_rows_per_epoch=500), folder, "out"))


def _entries(state: Path, size: int) -> None:
    history.entries(state / "exchanges" / "hop", size)


def _powers(least: int, most: int, factor: int = 10) -> tuple[int, ...]:
    sizes = [least]
    while sizes[-1] < most:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


CURVES: Final = {
    one.name: one
    for one in (
        Curve("epochs", "epochs in the ledger", _powers(1_000, 1_000_000), _epochs, history.epochs),
        Curve("control", "control events obeyed before", _powers(1_000, 1_000_000), _plain, history.control),
        Curve("incidents", "incidents in the ledger", _powers(100, 100_000), _plain, history.incidents),
        Curve("entries", "entries of an exchange not read yet", _powers(100, 100_000), _exchange, _entries),
        Curve("channels", "channels that have finished", _powers(1_000, 1_000_000), _finished, history.channels),
        Curve("queries", "queries in one job", (1, 3, 6, 12, 24, 48), _queries, of_processes=True),
        Curve("columns", "columns", (10, 100, 500, 1_000, 2_000), _columns),
        Curve("row", "bytes of a row", tuple(1024 * one for one in (1, 16, 256, 4_096, 65_536)), _wide),
        Curve("running", "channels in progress", _powers(10, 10_000), _running),
        Curve("readers", "readers of a source", _powers(1, 64, 4), _readers),
        Curve("partitions", "partitions of state", _powers(1, 64, 4), _partitions, partitions=True),
        Curve("jobs", "jobs in a server", _powers(1, 1_000), measure=_served, of_processes=True),
    )
}
