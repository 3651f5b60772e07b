"""One run of one side and query: watched, and if asked for killed, from outside; what it took, and what it wrote."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks._figures import environment
from benchmarks.nexmark import events
from benchmarks.nexmark.flink import Flink, Published, PyFlink
from benchmarks.nexmark.judge import Difference, judge
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.sides import Case, Side, Spark, Times
from tests.support.processes import Member

LIMIT: Final = 3600.0  # seconds of an undisturbed run
PATIENCE: Final = 10  # a run with kills may take this many times as long as an undisturbed one,
PER_KILL: Final = 30.0  # and this many seconds more for each kill
KILLS: Final = 9  # after each tenth of the input
_LOOK: Final = 0.1  # seconds between two looks at the processes; memory is looked at in one of ten
SIDES: Final[Mapping[str, type[Side]]] = {
    "job": Spark, "plain": Spark, "flink": Flink, "pyflink": PyFlink, "published": Published,
}  # fmt: skip


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
                    total += pss(member.pid)
        self.looks += 1
        self.memory = max(self.memory, total)


def pss(pid: int) -> int:
    """Bytes of memory; what processes share is divided among them. 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@dataclass
class Kill:
    target: str  # worker or driver
    at: float  # seconds since 1970
    read: int  # files that would not be read again
    planned: int  # files that were begun
    replaced: float | None = None  # when a process had taken the killed one's place


def run(case: Case, folder: Path, undisturbed: float | None = None) -> dict[str, Any]:
    """Run a case to its end, for `LIMIT` at most, or by the `undisturbed` seconds; returns what was measured.

    Raises:
        RuntimeError: the side has failed without a kill.
    """
    source = events.write(folder / "data", case.events, case.files, hot=case.hot)
    out = folder / "work" / f"{case.side}-{case.query}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    side = SIDES[case.side](case, source, out)
    side.prepare()
    watch, begin = _Watch(), time.time()
    limit = LIMIT if not case.kills or undisturbed is None else PATIENCE * undisturbed + PER_KILL * case.kills
    kills, starts, ended = _watched(case, side, watch, begin + limit)
    end = time.time()
    result = {
        **asdict(case), "ended": ended, "seconds": end - begin, "starts": starts,
        "core_seconds": sum(watch.cpu.values()), "memory": watch.memory, **_times(case, side.times(), begin),
        "killed": [
            {**asdict(one), "at": one.at - begin, "replaced": _after(one.replaced, one.at)} for one in kills
        ],
        **_judged(case, side, source, out / "table"), "environment": environment(),
    }  # fmt: skip
    shutil.rmtree(out, ignore_errors=True)
    return result


def _judged(case: Case, side: Side, source: Path, table: Path) -> dict[str, int | None]:
    if side.judged:
        return asdict(judge(QUERIES[case.query], source, table))
    return dict.fromkeys(one.name for one in fields(Difference))


def _watched(case: Case, side: Side, watch: _Watch, limit: float) -> tuple[list[Kill], int, bool]:
    """Run until the side ends by itself; returns the kills, how often it was started, and whether it has ended."""
    kills: list[Kill] = []
    starts, gone = 1, set[int]()
    tree = side.start()
    try:
        while True:
            code = tree.poll()
            if code == 0 or time.time() > limit:
                return kills, starts, code == 0
            members = tree.members()
            watch.look(members)
            if kills and kills[-1].replaced is None and any(_takes_over(side, one, kills[-1], gone) for one in members):
                kills[-1].replaced = time.time()
            if code is not None:
                if not kills:
                    raise RuntimeError(f"{case} has failed:\n{tree.text()[-4000:]}")
                tree.kill_all()
                tree, starts = side.start(), starts + 1
            elif case.kills and (kill := _due(case, side, kills, members)):
                gone = {member.pid for member in members}
                tree, starts = side.kill(tree, kill.target), starts + (kill.target == "driver")
                kills.append(kill)
            time.sleep(_LOOK)
    finally:
        tree.kill_all()


def _due(case: Case, side: Side, kills: list[Kill], members: list[Member]) -> Kill | None:
    """The next kill, once so much is done; of a worker if there is one."""
    if case.kills is None or len(kills) == case.kills:
        return None
    progress = side.progress()
    if progress.due * (case.kills + 1) < (len(kills) + 1) * case.files:
        return None
    target = "driver" if len(kills) % 2 else "worker"
    if not any(side.role(member) == target for member in members):
        return None
    return Kill(target, time.time(), progress.read, progress.planned)


def _takes_over(side: Side, member: Member, kill: Kill, gone: set[int]) -> bool:
    return member.pid not in gone and side.role(member) == kill.target


def _times(case: Case, times: Times, begin: float) -> dict[str, Any]:
    """Seconds since the start: of the first plan, of each epoch with the files read by then, and of each new row."""
    complete = max([*times.outputs[-1:], *([] if times.read is None else [times.read])], default=None)
    if times.steps:
        steps = [after - before for before, after in pairwise(times.steps)]
    else:
        steps = [after[0] - before[0] for before, after in pairwise(times.epochs) if after[1] > before[1]]
    return {
        "first": _after(times.first, begin), "read": _after(times.read, begin),
        "complete": _after(complete, begin),  # when the last row, or the last event if that is later, was
        "epoch": statistics.median(steps) if steps else None,
        "epochs": [(at - begin, files) for at, files in times.epochs],
        "outputs": [at - begin for at in times.outputs], "steps": [at - begin for at in times.steps],
    }  # fmt: skip


def _after(at: float | None, begin: float) -> float | None:
    return None if at is None else at - begin
