"""One run of one side and query: watched, and if asked for killed, from outside; what it took, and what it wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks._figures import environment
from benchmarks.nexmark import events
from benchmarks.nexmark.driver import checkpoint_of
from benchmarks.nexmark.events import FILES
from benchmarks.nexmark.judge import judge
from benchmarks.nexmark.queries import QUERIES
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session.jars import delta_jars
from spark_ext.spark.session.sessions import defaults
from tests.support.processes import Member, Tree

LIMIT: Final = 3600.0  # seconds of an undisturbed run
PATIENCE: Final = 10  # a run with kills may take this many times as long as an undisturbed one
KILLS: Final = 9  # after each tenth of the input
_LOOK: Final = 0.1  # seconds between two looks at the processes; memory is looked at in one of ten
_MASTER: Final = "local[2]"
_CLUSTER: Final = "local-cluster[1,2,2048]"  # driver and executor are processes of their own


@dataclass(frozen=True)
class Case:
    side: str
    query: str
    events: int
    kills: int | None = None  # None: in one process; 0: with an executor of its own, undisturbed
    hot: bool = False
    files: int = FILES

    @property
    def master(self) -> str:
        return _MASTER if self.kills is None else _CLUSTER


@dataclass
class _Watch:
    """CPU times of all processes that a run has had, and the most memory of those at one time."""

    cpu: dict[tuple[int, float], float] = field(default_factory=dict)
    memory: int = 0
    looks: int = 0

    def look(self, members: list[Member]) -> None:
        total = 0
        for member in members:
            with contextlib.suppress(psutil.Error, OSError):
                times = member.process.cpu_times()
                self.cpu[member.pid, member.process.create_time()] = times.user + times.system
                if self.looks % 10 == 0:
                    total += _pss(member.pid)
        self.looks += 1
        self.memory = max(self.memory, total)


def _pss(pid: int) -> int:
    """Bytes of memory; what processes share is divided among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass
class Kill:
    target: str  # worker or driver
    at: float  # seconds since 1970
    read: int  # files whose epochs were committed
    planned: int  # files of epochs that had begun
    replaced: float | None = None  # when a process had taken the killed one's place


def run(case: Case, folder: Path, undisturbed: float | None = None) -> dict[str, Any]:
    """Run a case to its end, at most `LIMIT` or ten times the `undisturbed` seconds; returns what was measured.

    Raises:
        RuntimeError: the side has failed without a kill.
    """
    source = events.write(folder / "data", case.events, case.files, hot=case.hot)
    out = folder / "work" / f"{case.side}-{case.query}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    watch, begin = _Watch(), time.time()
    limit = LIMIT if not case.kills or undisturbed is None else PATIENCE * undisturbed
    kills, starts, ended = _watched(case, source, out, watch, begin + limit)
    end = time.time()
    result = {
        **asdict(case), "ended": ended, "seconds": end - begin, "starts": starts,
        "core_seconds": sum(watch.cpu.values()), "memory": watch.memory, **_times(case, out, begin),
        "killed": [{**asdict(kill), "at": kill.at - begin, "replaced": _since(kill)} for kill in kills],
        **asdict(judge(QUERIES[case.query], source, out / "table")), "environment": environment(),
    }  # fmt: skip
    shutil.rmtree(out, ignore_errors=True)
    return result


def _since(kill: Kill) -> float | None:
    return None if kill.replaced is None else kill.replaced - kill.at


def _watched(case: Case, source: Path, out: Path, watch: _Watch, limit: float) -> tuple[list[Kill], int, bool]:
    """Run until the side ends by itself; returns the kills, how often it was started, and whether it has ended."""
    kills: list[Kill] = []
    starts, gone = 1, set[int]()
    tree = _start(case, source, out)
    try:
        while True:
            code = tree.poll()
            if code == 0 or time.time() > limit:
                return kills, starts, code == 0
            members = tree.members()
            watch.look(members)
            if kills and kills[-1].replaced is None and any(_takes_over(one, kills[-1], gone) for one in members):
                kills[-1].replaced = time.time()
            if code is not None:
                if not kills:
                    raise RuntimeError(f"{case} has failed:\n{tree.text()[-4000:]}")
                tree, starts = _again(tree, case, source, out), starts + 1
            elif case.kills and (kill := _due(case, out, kills, members)):
                gone = {member.pid for member in members}
                if kill.target == "driver":
                    tree, starts = _again(tree, case, source, out), starts + 1
                else:
                    for member in members:
                        _ = member.is_executor and member.kill()
                kills.append(kill)
            time.sleep(_LOOK)
    finally:
        tree.kill_all()


def _due(case: Case, out: Path, kills: list[Kill], members: list[Member]) -> Kill | None:
    """The next kill, once so much is committed; of a worker if there is one."""
    if case.kills is None or len(kills) == case.kills:
        return None
    log = SparkLog(str(checkpoint_of(case.side, out)))
    read = files_read(log, log.newest_commit())
    if read * (case.kills + 1) < (len(kills) + 1) * case.files:
        return None
    target = "driver" if len(kills) % 2 else "worker"
    if target == "worker" and not any(member.is_executor for member in members):
        return None
    return Kill(target, time.time(), read, files_read(log, log.newest_offsets()))


def _takes_over(member: Member, kill: Kill, gone: set[int]) -> bool:
    return member.pid not in gone and member.is_jvm and member.is_executor == (kill.target == "worker")


def _again(tree: Tree, case: Case, source: Path, out: Path) -> Tree:
    tree.kill_all()
    return _start(case, source, out)


def _start(case: Case, source: Path, out: Path) -> Tree:
    command = [sys.executable, "-m", "benchmarks.nexmark.driver", case.side, case.query, source, out, case.master]
    env = {"BENCHMARK_CLASS_PATH": os.pathsep.join(map(str, delta_jars(defaults()))), "PYSPARK_PYTHON": sys.executable}
    return Tree(list(map(str, command)), out / "driver.log", env)


def files_read(log: SparkLog, epoch: int | None) -> int:
    """How many files of each stream the epochs up to this one have read."""
    logged = None if epoch is None else log.offsets(epoch)
    if logged is None:
        return 0
    counts = (raw["logOffset"] + 1 if "logOffset" in raw else raw.get("sequence") for raw in logged.sources if raw)
    return min((int(count) for count in counts if count is not None), default=0)


def _times(case: Case, out: Path, begin: float) -> dict[str, Any]:
    """Seconds since the start: of the first plan, of each epoch with the files read by then, and of each new row."""
    checkpoint = checkpoint_of(case.side, out)
    log = SparkLog(str(checkpoint))
    epochs = [((log.committed_at(epoch) or 0) - begin, files_read(log, epoch)) for epoch in log.commits()]
    planned = checkpoint / "offsets" / "0"
    read = [at for at, files in epochs if files == case.files]
    outputs = [at - begin for at in _outputs(out / "table")]
    complete = max([*outputs[-1:], *read[:1]], default=None)
    steps = [after[0] - before[0] for before, after in pairwise(epochs) if after[1] > before[1]]
    return {
        "first": planned.stat().st_mtime - begin if planned.exists() else None,
        "read": read[0] if read else None,  # when the last events were committed
        "complete": complete,  # when the last row, or the last event if that is later, was
        "epoch": statistics.median(steps) if steps else None,
        "epochs": epochs, "outputs": outputs,
    }  # fmt: skip


def _outputs(table: Path) -> list[float]:
    """When each commit with rows was made, s since 1970."""
    log = sorted(path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())
    return [path.stat().st_mtime for path in log if any("add" in json.loads(line) for line in path.open())]
