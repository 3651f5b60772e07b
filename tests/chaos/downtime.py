"""Whether each second of downtime belongs to what was injected: `python -m tests.chaos.downtime --count 50`.

A job fails, fails or waits for slots while it recovers, stalls, ends, loses its driver, and is restarted on request, in
random order. All states add up to the wall time, and each moment belongs to an incident of the kind that was injected
around it, or to none.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow, ExecutionStateRow, IncidentRow, JobRow
from spark_ext.views.downtime import Downtime, Period, downtime
from spark_ext.views.recorded import beats_of, rows_of
from spark_ext.views.timeline import timeline
from tests.support.cheap_jvm import forking
from tests.support.processes import Tree
from tests.support.waiting import until

# By how much an injection and what is recorded of it may differ at each end, s: a look and a heartbeat are taken every
# half a second, and an epoch may be late on a busy machine.
SLACK = 2.0


STARTED = 5.0  # by when a query that Spark has started again waits for the slots that were taken from it, s
UP = ""  # stands for the kind of an incident where there is no downtime
EVERY = 0.25  # how often what is recorded is compared with what was injected, s


@dataclass(frozen=True)
class Phase:
    """From a moment on time belongs to one of these kinds of incidents."""

    since: float
    kinds: frozenset[str]


@dataclass(frozen=True)
class Injected:
    """A disturbance: from its injection until the job has committed again."""

    kinds: tuple[str, ...]  # the type of each incident that it has to lead to, by label
    phases: tuple[Phase, ...]
    until: float
    least: float  # at least that many seconds of it must be downtime

    @property
    def since(self) -> float:
        return self.phases[0].since


class Driven:
    """A job in a process of its own, which does what files say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.flag = folder / "flag"
        self.failed = folder / "failed"  # when a function has failed as it was told to
        self.started = folder / "started"  # when Spark has started the query for the last time
        self._tree: Tree | None = None

    def start(self) -> None:
        self._tree = Tree(
            [sys.executable, "-m", "tests.chaos.downtime", "--driver", str(self.folder)], self.folder / "log", forking()
        )
        self.moves()

    def epochs(self) -> int:
        commits = self.state / "queries" / "q" / "checkpoint" / "commits"
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)

    def moves(self, epochs: int = 2) -> None:
        before = self.epochs()
        until(lambda: self.epochs() >= before + epochs, "epochs are committed", 180)

    def set(self, how: str | None) -> None:
        if how is None:
            self.flag.unlink(missing_ok=True)
            return
        self.failed.unlink(missing_ok=True)
        draft = self.folder / ".flag"
        draft.write_text(how)
        draft.rename(self.flag)

    def kill(self) -> None:
        assert self._tree is not None
        self._tree.kill_all()

    def wait(self) -> None:
        assert self._tree is not None
        until(lambda: self._tree is not None and self._tree.poll() is not None, "the driver has ended", 120)
        self._tree.kill_all()


PLANS: tuple[tuple[tuple[tuple[str, float, float], ...], Callable[[list[float]], float]], ...] = (
    ((("network", 1, 4),), lambda held: held[0] / 2),
    ((("network", 2, 4), ("memory", 3, 5)), lambda _: 2),
    ((("kill", 0, 6),), lambda held: held[0]),
    ((("network", 2, 4), ("kill", 0, 3)), lambda _: 2),
    ((("bug", 0, 4),), lambda held: held[0]),
    ((("lock", 12, 16),), lambda held: held[0] - 4),
    ((("slots", 8, 14),), lambda held: held[0] - STARTED),
    ((("slots", 8, 12), ("network", 2, 4)), lambda held: held[0] - STARTED),
    ((("slots", 8, 12), ("kill", 0, 3)), lambda held: sum(held) - STARTED),
    ((("restart", 3, 5),), lambda _: 0),
)
"""What is done to the job, each for a time between two, s; the least downtime, s."""

KINDS = {
    "network": ("NETWORK",), "memory": ("RESOURCE",), "kill": ("driver_lost",), "bug": ("USER_CODE",),
    "lock": ("USER_CODE",), "slots": ("NETWORK", "SYSTEM"), "restart": (),
}  # fmt: skip
"""The incidents that each leads to."""


def moment(file: Path, what: str, after: float) -> float:
    """When a file was written last, s since 1970, which is awaited."""
    until(lambda: file.exists() and file.stat().st_mtime > after, what, 120)
    return file.stat().st_mtime


def disturb(job: Driven, dice: random.Random) -> Injected:
    """Carry out a plan."""
    steps, least = dice.choice(PLANS)
    held: list[float] = []
    phases: list[Phase] = []
    failed = frozenset({UP})
    for what, low, high in steps:
        kinds, begun = frozenset(KINDS[what]), time.time()
        if phases and "SYSTEM" in phases[-1].kinds:  # which ends with this step
            phases.append(Phase(begun, failed | {"SYSTEM"}))
        held.append(dice.uniform(low, high))
        if what == "kill":
            job.kill()
        else:
            job.set(what)
        if what in ("network", "memory", "slots"):
            begun = moment(job.failed, "the query has failed", begun)
            # An attempt may run for a moment.
            kinds = failed = failed | kinds - {"SYSTEM"}
        phases.append(Phase(begun, kinds or failed))
        if what == "bug":
            job.wait()
            job.set(None)
        if what == "slots":
            again = moment(job.started, "Spark has started the query again", begun)
            phases += [Phase(again, failed | {"SYSTEM"}), Phase(again + STARTED, frozenset({"SYSTEM"}))]
        elif what in ("kill", "bug", "lock"):
            failed = kinds | {UP}
        time.sleep(held[-1])
    healed = time.time()
    job.set(None)
    if steps[-1][0] in ("kill", "bug"):
        job.start()
    job.moves(3)
    phases.append(Phase(healed, failed))
    return Injected(tuple(kind for what, *_ in steps for kind in KINDS[what]), tuple(phases), time.time(), least(held))


def run(folder: Path, count: int, dice: random.Random) -> tuple[float, list[str]]:
    """One job with that many injections; returns its wall time, s, and what is wrong."""
    job = Driven(folder)
    folder.mkdir(parents=True)
    job.start()
    injected = []
    for _ in range(count):
        job.moves()
        injected.append(disturb(job, dice))
    (folder / "stop").touch()
    job.wait()
    found, types = divided(job.state)
    return found.wall, problems(found, types, injected)


def divided(state: Path) -> tuple[Downtime, dict[str, str]]:
    ledger = Ledger(str(state))
    jobs, incidents = rows_of(ledger, JobRow), rows_of(ledger, IncidentRow)
    for row in incidents:
        row["labels"], row["evidence"] = (json.loads(row[name] or "{}") for name in ("labels", "evidence"))
    states, epochs = rows_of(ledger, ExecutionStateRow), rows_of(ledger, EpochRow)
    ended = max(row["at"] for row in jobs if row["event"] == "ended")
    found = downtime(timeline(states, jobs, epochs, beats=beats_of(ledger, jobs)), incidents, ended)
    kinds = {row["incident_id"]: row["labels"].get("type", row["type"]) for row in incidents}
    return found, kinds | {row["incident_id"]: row["type"] for row in incidents if row["type"] == "driver_lost"}


def problems(found: Downtime, types: dict[str, str], injected: list[Injected]) -> list[str]:
    out = []
    whole = (found.pieces[-1].until - found.pieces[0].since).total_seconds()
    if abs(sum(found.by_state().values()) - whole) > 0.01 * whole:
        out.append(f"the states add up to {sum(found.by_state().values()):.1f} s of {whole:.1f} s")
    downs = [piece for piece in found.pieces if piece.down]
    out += [f"{_words(piece)} belongs to no incident" for piece in downs if piece.incident not in types]
    wrong = mistaken(found, types, injected)
    if len(wrong) * EVERY > 0.01 * whole:
        out.append(f"{len(wrong) * EVERY:.1f} s of {whole:.1f} s belong to something else than was injected:")
        out += [f"{_clock(at)}: {kind or 'up'}, and not {' or '.join(wanted)}" for at, kind, wanted in wrong]
    for one, after in zip(injected, [*injected[1:], None], strict=True):
        # A driver that is killed is down since its last sign of life, which may be before the end of this one.
        end = one.until if after is None else min(one.until, after.since - SLACK / 2)
        inside = [piece for piece in downs if one.since - SLACK / 2 <= piece.since.timestamp() < end]
        who = f"{one.kinds} at {_clock(one.since)}"
        kinds = {types.get(piece.incident) for piece in inside}
        out += [f"{who}: no downtime of {kind}" for kind in one.kinds if kind not in kinds]
        seconds, most = sum(piece.seconds for piece in inside), one.until - one.since
        if not one.least - SLACK <= seconds <= most + SLACK:
            out.append(f"{who}: {seconds:.1f} s of downtime, between {one.least:.1f} and {most:.1f} were injected")
    return out


def mistaken(
    found: Downtime, types: dict[str, str], injected: list[Injected]
) -> list[tuple[float, str, tuple[str, ...]]]:
    """The moments that belong to another kind than was injected around them; each with that kind and those."""
    phases = [Phase(0, frozenset({UP}))]
    for one in injected:
        phases += [*one.phases, Phase(one.until, frozenset({UP}))]
    out = []
    for piece in found.pieces:
        kind = types.get(piece.incident, "UNKNOWN") if piece.down else UP
        at = -(-piece.since.timestamp() // EVERY) * EVERY
        while at < piece.until.timestamp():
            ends = [*(phase.since for phase in phases[1:]), float("inf")]
            near = [one for one, end in zip(phases, ends, strict=True) if one.since - SLACK <= at < end + SLACK]
            wanted = frozenset().union(*(phase.kinds for phase in near))
            if kind not in wanted and at > injected[0].since:
                out.append((at, kind, tuple(sorted(name or "up" for name in wanted))))
            at += EVERY
    return out


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S}"


def _words(piece: Period) -> str:
    return f"{piece.state} since {piece.since:%H:%M:%S} for {piece.seconds:.1f} s"


def drive(folder: Path) -> None:
    """The driver: a job whose function fails or stops as a file says."""
    from pyspark import cloudpickle
    from pyspark.sql import functions as F
    from pyspark.sql.streaming import StreamingQueryListener

    import spark_ext as sx
    from tests.stalls import operators
    from tests.stalls.healthy import taken_slots
    from tests.support.jobs import register

    spark = sx.session("downtime", master="local[2]", conf={"spark.sql.shuffle.partitions": "1"})
    register(spark)
    cloudpickle.register_pickle_by_value(operators)
    flag, failed, started = str(folder / "flag"), str(folder / "failed"), folder / "started"

    class Starts(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            started.touch()

        def onQueryProgress(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    spark.streams.addListener(Starts())

    def told() -> str:
        from pathlib import Path

        try:
            return Path(flag).read_text()
        except FileNotFoundError:
            return ""

    @F.udf("long")
    def function(n: int) -> int:
        from pathlib import Path

        how = told()
        if how in ("network", "memory", "bug") or (how == "slots" and not Path(failed).exists()):
            Path(failed).touch()
        elif how == "slots":
            return n
        if how == "network":
            raise ConnectionRefusedError(111, "Connection refused")
        if how == "memory":
            raise MemoryError("the memory is used up")
        if how == "bug":
            raise KeyError("price")
        if how == "slots":
            raise ConnectionRefusedError(111, "Connection refused")
        if how == "lock":
            operators.stop_here(str(Path(flag).parent), "flag")
        return n

    rows = spark.readStream.format("numbers").options(uid="in", counts="1", live="true", rate=20).load()
    job = sx.Job(
        spark, "lab", state=folder / "state", heartbeat="500 ms", stall_after="4 s", interval="200 ms",
        restart_attempts=1000,
    )  # fmt: skip
    job.add("q", rows.withColumn("m", function("n")).writeStream.format("noop"))
    job.start()
    before = ""
    while not job.wait(0.02):
        how = told()
        if how == "slots" and Path(failed).exists():
            with taken_slots(spark, folder / f"gate-{time.time()}"):
                while told() == how:
                    time.sleep(0.02)
        if how == "restart" and how != before:
            job.control.restart()
        before = how
        if (folder / "stop").exists():
            job.stop()
            break
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="injections")
    parser.add_argument("--per-job", type=int, default=10, help="injections into one job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--driver", type=Path)
    given = parser.parse_args()
    if given.driver is not None:
        drive(given.driver)
        return
    dice = random.Random(given.seed)
    wrong: list[str] = []
    wall, begun = 0.0, time.monotonic()
    with TemporaryDirectory() as folder:
        for number in range(-(-given.count // given.per_job)):
            seconds, found = run(Path(folder) / str(number), min(given.per_job, given.count), dice)
            wall, wrong = wall + seconds, wrong + found
            print(f"job {number}: {seconds:.0f} s, {len(found)} problems", *found, sep="\n  ", flush=True)
    took = f"{time.monotonic() - begun:.0f} s: {wall:.0f} s of jobs"
    print(f"{given.count} injections, seed {given.seed}, {took}, {len(wrong)} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
