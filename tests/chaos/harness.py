"""Starts a job, kills parts of it, starts it again until it ends, and compares what it left with an undisturbed run.

The order of events is random and comes from a seed; when exactly a kill happens is up to the machine. Whatever that
is, the outcome has to be the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spark_ext.failpoints import ONCE_DIR, VARIABLE
from tests.chaos.scenario import Scenario
from tests.chaos.verify import Content, differences, ledger_problems
from tests.support.cluster import Cluster
from tests.support.processes import Member, Tree
from tests.support.waiting import until

Target = Literal["driver", "worker", "executor", "jvm", "server", "all"]
"""What is killed: the driver's Python; one Python process of its workers; an executor of the cluster; the driver's JVM;
the server that the sink writes to; or driver, JVM and workers at once, as when a machine dies."""

LOOK_EVERY = 0.02
RUN_LIMIT = 900.0
"""Longest that one start may take, s."""
STARTS_IN_VAIN = 4
"""Starts in a row that end with an error of their own, without a kill, before the harness gives up."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Kill:
    """One kill, for the table."""

    number: int
    target: str
    """What was killed, or the named step at which it happened."""
    at: str
    """Where the job stood: the epochs that were committed, and seconds since the start."""
    then: str
    """What became of the run."""


@dataclass
class Report:
    """What a series of kills came to."""

    name: str
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    rounds: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    """Rows per output table, the same in every round."""
    seconds: float = 0.0


class Reference:
    """An undisturbed run: what is expected of all others."""

    def __init__(self, scenario: Scenario, folder: Path, env: Mapping[str, str]) -> None:
        self.scenario = scenario
        out = folder / "undisturbed"
        began = time.monotonic()
        with Tree(scenario.command(out), folder / "undisturbed.log", env) as run:
            code = run.wait(RUN_LIMIT)
            if code != 0:
                raise AssertionError(f"the undisturbed run ended with {code}:\n{tail(run)}")
        self.seconds = time.monotonic() - began
        self.content: Mapping[str, Content] = scenario.content(out)
        self.problems = ledger_problems(scenario.state(out), scenario.queries, 1)
        for name, rows in self.content.items():
            if not rows.total:
                self.problems.append(f"{name}: the undisturbed run wrote no row")


class Known(Reference):
    """What is expected without a run: the rows are known beforehand."""

    def __init__(self, scenario: Scenario, content: Mapping[str, Content]) -> None:
        self.scenario, self.content = scenario, content
        self.seconds = 0.0
        self.problems = []


class Round:
    """One job from its first start to its end, through any number of kills.

    Args:
        reference: the undisturbed run.
        out: output folder of this round, new.
        env: environment of all starts.
        report: where kills and problems are noted.
        cluster: on which it runs; None: in local mode.
        say: hears what happens.
    """

    def __init__(
        self,
        reference: Reference,
        out: Path,
        env: Mapping[str, str],
        report: Report,
        cluster: Cluster | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self.reference, self.scenario = reference, reference.scenario
        self.out, self.report, self.cluster, self.say = out, report, cluster, say
        self._env = dict(env)
        self._trees = ExitStack()
        self._runs: list[Tree] = []
        self._began = 0.0
        self.starts = 0

    def __enter__(self) -> Round:
        self.report.rounds += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._trees.close()

    # -- the job ----------------------------------------------------------------------------------------------------

    def start(self, **env: str) -> Tree:
        """Start the job's script once more, whatever the last start has left running."""
        self.starts += 1
        self.report.starts += 1
        self._began = time.monotonic()
        log = self.out.with_name(f"{self.out.name}-{self.starts}.log")
        run = Tree(self.scenario.command(self.out), log, {**self._env, **env})
        self._runs.append(self._trees.enter_context(run))
        return run

    def committed(self) -> int:
        """Epochs that Spark has committed so far, over all queries."""
        return sum(
            1
            for checkpoint in self.scenario.checkpoints(self.out)
            for file in _listed(checkpoint / "commits")
            if file.isdigit()
        )

    def where(self) -> str:
        """For the table: how far the job is."""
        return f"{self.committed()} epochs, {time.monotonic() - self._began:.1f} s"

    def finish(self) -> None:
        """Start until it ends well; then verify."""
        in_vain = 0
        while True:
            run = self._runs[-1] if self._runs and self._runs[-1].poll() is None else self.start()
            code = run.wait(RUN_LIMIT)
            if code == 0:
                break
            in_vain += 1
            if code is None or in_vain >= STARTS_IN_VAIN:
                self.report.problems.append(
                    f"{self.out.name}: not finished ({code}) after {in_vain} starts: {tail(run)}"
                )
                return
        self.verify()

    def verify(self) -> None:
        """Compare everything with the undisturbed run; then start it a last time, which may not read a row."""
        problems: list[str] = []
        self._expect_nothing_left_running(problems)
        for name, found in self.scenario.content(self.out).items():
            self.report.tables[name] = found.total
            problems += differences(name, found, self.reference.content[name])
        problems += self.scenario.leftovers(self.out, late_tasks=self.cluster is not None)
        problems += ledger_problems(self.scenario.state(self.out), self.scenario.queries, self.starts)
        again = self.start()
        code = again.wait(RUN_LIMIT)
        if code != 0 or "0 rows read" not in again.text():
            problems.append(f"a last start ended with {code} and did not say that 0 rows were read: {tail(again)}")
        for name, found in self.scenario.content(self.out).items():
            problems += differences(f"{name} after a last start", found, self.reference.content[name])
        self.report.problems += [f"{self.out.name}: {problem}" for problem in problems]

    def _expect_nothing_left_running(self, problems: list[str]) -> None:
        """The JVM of a killed driver has to end by itself."""
        for run in self._runs:
            try:
                until(lambda run=run: not run.members(), "the killed driver's processes have ended")  # type: ignore[misc]
            except TimeoutError:
                left = [member.command[:80] for member in run.members()]
                problems.append(f"left running: {left}")

    # -- kills ------------------------------------------------------------------------------------------------------

    def kill(self, run: Tree, target: Target, random_: random.Random) -> bool:
        """Kill a part of a running job; False when there was nothing to kill."""
        if target == "driver":
            if run.poll() is not None:
                return False
            run.kill()
            return True
        if target == "all":
            run.kill_all()
            return True
        if target == "server":
            assert self.scenario.server is not None
            self.scenario.server.kill()
            time.sleep(random_.uniform(0, 1))
            self.scenario.server.start()
            return True
        victims = sorted(self._victims(run, target), key=lambda member: member.pid)
        return bool(victims) and random_.choice(victims).kill()

    def _victims(self, run: Tree, target: Target) -> list[Member]:
        if target == "executor":
            return self.cluster.executors() if self.cluster is not None else []
        members = [member for member in run.members() if member.pid != run.pid]
        if target == "jvm":
            return [member for member in members if member.is_jvm]
        workers = [member for member in members if member.is_python_worker]
        return workers + (self.cluster.python_workers() if self.cluster is not None else [])


@contextmanager
def timed(report: Report) -> Iterator[None]:
    """Add the time of a block to a report."""
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
    cluster: Cluster | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Kill something at random, again and again, over as many rounds of the job as that takes.

    Each target has its share of the kills. A kill falls after a random number of further epochs and a random moment
    more; one in five falls anywhere after the start of the process, also before the job has begun.
    """
    random_ = random.Random(seed)
    report = Report(f"{kills} random kills, seed {seed}")
    due = [targets[number % len(targets)] for number in range(kills)]
    random_.shuffle(due)
    with timed(report):
        while due and not report.problems:
            out = folder / f"round-{report.rounds + 1}"
            with Round(reference, out, env, report, cluster, say) as round_:
                _strike(round_, due, random_)
                round_.finish()
    return report


def _strike(round_: Round, due: list[Target], random_: random.Random) -> None:
    """Kill what is due until the round's job has ended."""
    run = round_.start()
    in_vain = 0
    while due:
        target = due[-1]
        epochs = random_.choice([0, 0, 1, 2, 4])
        moment = random_.uniform(0, 0.6)
        early = target in ("driver", "all") and random_.random() < 0.2
        if not (_wait(run, random_.uniform(0, 8)) if early else _progress(round_, run, epochs, moment)):
            code = run.poll()
            if code == 0:
                return
            # It gave up by itself: too many failures in a row, or it was refused. Somebody starts it again.
            in_vain += 1
            if in_vain >= STARTS_IN_VAIN:
                return
            run = round_.start()
            continue
        where = round_.where()
        if not round_.kill(run, target, random_):
            continue
        in_vain = 0
        due.pop()
        then = "started again" if target in ("driver", "jvm", "all") else "goes on"
        kill = Kill(len(round_.report.kills) + 1, target, where, then)
        round_.report.kills.append(kill)
        round_.say(f"{kill.number}: kill -9 {target} at {where}")
        if target in ("driver", "all"):
            run = round_.start()
        elif target == "jvm":
            run.wait(RUN_LIMIT)
            run = round_.start()


def _progress(round_: Round, run: Tree, epochs: int, moment: float) -> bool:
    """Wait until the job has committed some more epochs, and a moment; False when it ended before."""
    wanted = round_.committed() + epochs
    limit = time.monotonic() + RUN_LIMIT
    # The workers first, and not again: to look at all processes is dear.
    for done, pause in ((lambda: _children(run), 0.2), (lambda: round_.committed() >= wanted, LOOK_EVERY)):
        while not done():
            if run.wait(pause) is not None:
                return False
            if time.monotonic() > limit:
                raise TimeoutError(f"no progress in {RUN_LIMIT} s: {tail(run)}")
    return _wait(run, moment)


def _children(run: Tree) -> bool:
    """Whether Python workers are there: the job's queries have begun."""
    return any(member.is_python_worker for member in run.members())


def _wait(run: Tree, seconds: float) -> bool:
    """Let the job run on for so long; False when it ended before."""
    return run.wait(seconds) is None


def kills_at_steps(
    reference: Reference,
    folder: Path,
    *,
    steps: Mapping[str, str],
    env: Mapping[str, str],
    cluster: Cluster | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Kill at each named step once: one job, started again after each, until all have happened and it has finished.

    Args:
        reference: the undisturbed run.
        folder: for this job.
        steps: fail point to action, such as `kill` or `kill-driver`.
        env: environment of all starts.
        cluster: on which it runs.
        say: hears what happens.
    """
    report = Report(f"{len(steps)} named steps")
    once = folder / "acted"
    once.mkdir(parents=True)
    points = {VARIABLE: ";".join(f"{point}={action}" for point, action in steps.items()), ONCE_DIR: str(once)}
    known: set[str] = set()
    with timed(report), Round(reference, folder / "steps", env, report, cluster, say) as round_:
        in_vain = 0
        while True:
            run = round_.start(**points)
            code = run.wait(RUN_LIMIT)
            acted = {path.name for path in once.iterdir()}
            for point in sorted(acted - known):
                then = "started again" if code != 0 else "went on"
                report.kills.append(Kill(len(report.kills) + 1, f"{point} ({steps[point]})", round_.where(), then))
                say(f"{len(report.kills)}: {steps[point]} at {point}")
            in_vain = 0 if acted - known else in_vain + 1
            known = acted
            if code == 0:
                break
            if code is None or in_vain >= STARTS_IN_VAIN:
                report.problems.append(f"not finished ({code}): {tail(run)}")
                return report
        round_.verify()
    report.problems += [f"the step {point} was never reached" for point in steps if point not in known]
    return report


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def tail(run: Tree, lines: int = 30) -> str:
    """The end of what a run has said."""
    return "\n".join(run.text().splitlines()[-lines:])
