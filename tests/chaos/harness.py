"""Starts a job, kills parts of it, starts it again until it ends, and compares its output with an undisturbed run.

A seed determines the order of events; the exact moment of a kill depends on the machine.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spark_ext.failpoints import ONCE_DIR, VARIABLE
from tests.chaos.commands import tail
from tests.chaos.scenario import ROOT, Scenario
from tests.chaos.verify import Content, differences, ledger_problems
from tests.servers.connect import ConnectServer
from tests.support import cheap_jvm
from tests.support.cluster import Cluster
from tests.support.processes import Member, Tree
from tests.support.waiting import until

# What is killed: the driver's Python; one Python process of its workers; an executor of the cluster; the driver's JVM;
# the server that the sink writes to; or driver, JVM and workers at once, as when a machine dies.
Target = Literal["driver", "worker", "executor", "jvm", "server", "all"]

RUN_LIMIT = 900.0  # maximum duration of one start, s
MAX_FAILED_STARTS = 4  # consecutive starts that fail by themselves, without a kill, after which the harness gives up
Say = Callable[[str], None]


@dataclass(frozen=True)
class Kill:
    target: str  # what was killed, or the named step at which it happened
    at: str  # progress of the job: committed epochs, and seconds since the start
    then: str  # what happened to the run afterwards


@dataclass
class Report:
    name: str
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    rounds: int = 0
    tables: dict[str, int] = field(default_factory=dict)  # rows per output table, the same in every round
    seconds: float = 0.0


@dataclass(frozen=True)
class Reference:
    """The result that each round must have: known in advance, or that of an undisturbed run."""

    scenario: Scenario
    content: Mapping[str, Content]


def undisturbed(scenario: Scenario, folder: Path, env: Mapping[str, str]) -> tuple[Reference, Report]:
    report, out = Report("undisturbed", starts=1, rounds=1), folder / "undisturbed"
    with timed(report), Tree(scenario.command(out), folder / "undisturbed.log", env) as run:
        code = run.wait(RUN_LIMIT)
        if code != 0:
            raise AssertionError(f"the undisturbed run exited with {code}:\n{tail(run)}")
    content = scenario.content(out)
    report.problems += ledger_problems(scenario.state(out), scenario.queries, 1)
    report.problems += [f"{name}: the undisturbed run wrote no rows" for name, one in content.items() if not one.total]
    return Reference(scenario, content), report


class Round:
    """One job from its first start to its end, through any number of kills."""

    def __init__(
        self,
        reference: Reference,
        out: Path,
        env: Mapping[str, str],
        report: Report,
        cluster: Cluster | ConnectServer | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self.reference, self.scenario = reference, reference.scenario
        self.out, self.report, self.cluster, self.say = out, report, cluster, say
        self._env = dict(env)
        self._trees = ExitStack()
        self._runs: list[Tree] = []
        self._began = 0.0
        self.starts = 0

    def __enter__(self) -> "Round":
        self.report.rounds += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._trees.close()

    # -- the job ----------------------------------------------------------------------------------------------------

    def start(self, **env: str) -> Tree:
        """Start the job's script again, even if processes of the last start are still running."""
        self.starts += 1
        self.report.starts += 1
        self._began = time.monotonic()
        log = self.out.with_name(f"{self.out.name}-{self.starts}.log")
        # Names of their own: processes of the last start may still answer to those of that one.
        forks = {} if self.cluster else cheap_jvm.forking(ROOT)
        run = Tree(self.scenario.command(self.out), log, {**self._env, **forks, **env})
        self._runs.append(self._trees.enter_context(run))
        return run

    def committed(self) -> int:
        return self.scenario.committed(self.out)

    def where(self) -> str:
        return f"{self.committed()} epochs, {time.monotonic() - self._began:.1f} s"

    def killed(self, target: str, where: str, then: str, said: str) -> None:
        self.report.kills.append(Kill(target, where, then))
        self.say(f"{len(self.report.kills)}: {said}")

    def finish(self, watch: Callable[[Tree], int | None] = lambda run: run.wait(RUN_LIMIT), **env: str) -> bool:
        """Start the job until it succeeds, then verify; `watch` waits for the end of a start, and may kill."""
        failed_starts = 0
        while True:
            run = self._runs[-1] if self._runs and self._runs[-1].poll() is None else self.start(**env)
            kills = len(self.report.kills)
            code = watch(run)
            if code == 0:
                self.verify()
                return True
            failed_starts = failed_starts + 1 if len(self.report.kills) == kills else 0
            if code is None or failed_starts >= MAX_FAILED_STARTS:
                what = f"{self.out.name}: not finished ({code}) after {failed_starts} starts: {tail(run)}"
                self.report.problems.append(what)
                return False

    def verify(self) -> None:
        """Compare everything with the undisturbed run; then start the job once more, which must not read any row."""
        problems: list[str] = []
        self._expect_nothing_left_running(problems)
        for name, found in self.scenario.content(self.out).items():
            self.report.tables[name] = found.total
            problems += differences(name, found, self.reference.content[name])
        problems += self.scenario.leftovers(self.out, late_tasks=self.cluster is not None)
        problems += ledger_problems(self.scenario.state(self.out), self.scenario.queries, self.starts)
        problems += self.scenario.disallowed(self.out)
        again = self.start()
        code = again.wait(RUN_LIMIT)
        if code != 0 or "0 rows read" not in again.text():
            problems.append(f"another start exited with {code} and did not report that 0 rows were read: {tail(again)}")
        for name, found in self.scenario.content(self.out).items():
            problems += differences(f"{name} after another start", found, self.reference.content[name])
        self.report.problems += [f"{self.out.name}: {problem}" for problem in problems]

    def _expect_nothing_left_running(self, problems: list[str]) -> None:
        for run in self._runs:
            try:
                until(lambda run=run: not run.members(), "the killed driver's processes have ended")  # type: ignore[misc]
            except TimeoutError:
                problems.append(f"left running: {[member.command[:80] for member in run.members()]}")

    # -- kills ------------------------------------------------------------------------------------------------------

    def kill(self, run: Tree, target: Target, random_: random.Random) -> bool:
        """Kill a part of a running job; returns False if there was nothing to kill."""
        if target == "driver" and run.poll() is not None:
            return False
        if target in ("driver", "all"):
            run.kill() if target == "driver" else run.kill_all()
        elif target == "server":
            assert self.scenario.server is not None
            self.scenario.server.kill()
            time.sleep(random_.uniform(0, 1))
            self.scenario.server.start()
        else:
            victims = sorted(self._victims(run, target), key=lambda member: member.pid)
            return bool(victims) and random_.choice(victims).kill()
        return True

    def _victims(self, run: Tree, target: Target) -> list[Member]:
        if target == "executor":
            return self.cluster.executors() if self.cluster is not None else []
        members = [member for member in run.members() if member.pid != run.pid]
        if target == "jvm":
            return [member for member in members if member.is_jvm]
        workers = [member for member in members if member.is_python_worker]
        return workers + (self.cluster.python_workers() if self.cluster is not None else [])

    def workers(self, run: Tree) -> list[Member]:
        """Python workers that show that queries run, or may."""
        if isinstance(self.cluster, ConnectServer):
            return self.cluster.python_workers()
        return [member for member in run.members() if member.is_python_worker]


@contextmanager
def timed(report: Report) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        report.seconds += time.monotonic() - began


def random_kills(
    reference: Reference,
    folder: Path,
    *,
    kills: int,
    targets: Sequence[Target],
    seed: int,
    env: Mapping[str, str],
    cluster: Cluster | ConnectServer | None = None,
    per_round: int | None = None,
    seconds: float | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Kill parts of the job at random, over as many rounds of the job as that takes.

    Each target has its share of the kills. A kill comes after a random number of further epochs and a random delay. One
    in five kills of a driver comes at any time after the start of the process, even before the job has started. With
    `per_round`, a round has at most that many kills, and its job then ends undisturbed. After `seconds`, nothing
    is killed any more: the job of that round ends undisturbed too, and no further one is started.
    """
    limit = math.inf if seconds is None else time.monotonic() + seconds
    random_ = random.Random(seed)
    report = Report(f"{kills} random kills, seed {seed}")
    due = [targets[number % len(targets)] for number in range(kills)]
    random_.shuffle(due)
    with timed(report):
        while due and not report.problems and time.monotonic() < limit:
            with Round(reference, folder / f"round-{report.rounds + 1}", env, report, cluster, say) as round_:
                share = due[-(per_round or len(due)) :]
                del due[-len(share) :]
                _strike(round_, share, random_, limit)
                due += share
                round_.finish()
    if due:
        report.name = f"{len(report.kills)} of {report.name}: the time was over"
    return report


def _strike(round_: Round, due: list[Target], random_: random.Random, limit: float) -> None:
    """Kill the targets that are due until the round's job has ended, or a moment of the monotonic clock has come."""
    run = round_.start()
    failed_starts = 0
    while due and time.monotonic() < limit:
        target = due[-1]
        # The workers of a server outlive its clients: the next epoch alone shows that queries run.
        least = int(isinstance(round_.cluster, ConnectServer))
        epochs = max(least, random_.choice([0, 0, 1, 2, 4]))
        moment = random_.uniform(0, 0.6)
        early = target in ("driver", "all") and random_.random() < 0.2
        alive = run.wait(random_.uniform(0, 8)) is None if early else _progress(round_, run, epochs, moment, limit)
        if not alive:
            if run.poll() == 0:
                return
            # The job gave up by itself: too many consecutive failures, or its start was refused. Start it again.
            failed_starts += 1
            if failed_starts >= MAX_FAILED_STARTS:
                return
            run = round_.start()
            continue
        if time.monotonic() >= limit:
            return
        where = round_.where()
        if not round_.kill(run, target, random_):
            continue
        failed_starts = 0
        due.pop()
        then = "started again" if target in ("driver", "jvm", "all") else "continues"
        round_.killed(target, where, then, f"kill -9 {target} at {where}")
        if target in ("driver", "all"):
            run = round_.start()
        elif target == "jvm":
            run.wait(RUN_LIMIT)
            run = round_.start()


def _progress(round_: Round, run: Tree, epochs: int, moment: float, latest: float) -> bool:
    """Wait for some more epochs, and a delay, or until a moment has come; returns False if the job ended before."""
    wanted = round_.committed() + epochs
    limit = time.monotonic() + RUN_LIMIT
    # Workers show that queries run. Check for them first, and only once: listing all processes is expensive.
    for done, pause in (
        (lambda: bool(round_.workers(run)), 0.2),
        (lambda: round_.committed() >= wanted, round_.scenario.look_every),
    ):
        while time.monotonic() < latest and not done():
            if run.wait(pause) is not None:
                return False
            if time.monotonic() > limit:
                raise TimeoutError(f"no progress in {RUN_LIMIT} s: {tail(run)}")
    return run.wait(moment) is None


def kills_at_steps(
    reference: Reference,
    folder: Path,
    *,
    steps: Mapping[str, str],
    env: Mapping[str, str],
    cluster: Cluster | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Kill once at each named step of one job, which is started again after each kill until it has finished."""
    report = Report(f"{len(steps)} named steps")
    once = folder / "acted"
    once.mkdir(parents=True)
    points = {VARIABLE: ";".join(f"{point}={action}" for point, action in steps.items()), ONCE_DIR: str(once)}
    known: set[str] = set()
    with timed(report), Round(reference, folder / "steps", env, report, cluster, say) as round_:

        def watch(run: Tree) -> int | None:
            code = run.wait(RUN_LIMIT)
            for point in sorted({path.name for path in once.iterdir()} - known):
                known.add(point)
                then = "started again" if code != 0 else "continued"
                round_.killed(f"{point} ({steps[point]})", round_.where(), then, f"{steps[point]} at {point}")
            return code

        if round_.finish(watch, **points):
            report.problems += [f"the step {point} was never reached" for point in steps if point not in known]
    return report
