"""A query over a bounded source and a live one, under `kill -9` around the end of the bounded one.

Each round lets the bounded source end while parts of the job are killed, takes savepoints before and after its end,
restores one of each, and ends with a drain, which is killed as well. Then the table has each row once, and the
validators have found the hooks in their order and the flags exact.
"""

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import spark_ext as sx
from spark_ext.checkpoints.savepoint import MANIFEST
from spark_ext.errors import SparkExtError
from spark_ext.failpoints import VARIABLE, FailPoint
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import FinishedRow
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.commands import tail
from tests.chaos.harness import Kill, Report, Say, Target, timed
from tests.support import validators
from tests.support.history import History
from tests.support.jobs import expected
from tests.support.killable import beside, running
from tests.support.processes import Tree
from tests.support.refusals import delta_numbers
from tests.support.waiting import until

ROWS = expected(900, 600)  # of the bounded source
LIMIT_S = 300.0  # maximum duration of one wait, s
SPREAD_S = 3.0  # a kill comes within this time of what it is to hit, s
POINTS = tuple(point for point in FailPoint if point.startswith(("source.before_", "source.closed")))


class Round:
    """One job from its first start to the end of its drain."""

    def __init__(self, folder: Path, chance: random.Random, due: list[Target], report: Report, say: Say) -> None:
        folder.mkdir(parents=True)
        self.folder, self._chance, self._due, self._report, self._say = folder, chance, due, report, say
        self._begun, self._drains = -1, False
        self._driver: Tree | None = None  # of the start that is under way
        self._log = SparkLog(str(folder / "state" / "queries" / "q" / "checkpoint"))

    def play(self) -> None:
        before, after = self.folder / "before", self.folder / "after"
        self.run(lambda: self.epochs(2), "the first epochs")
        self.run(lambda: self.saved(before), "the savepoint before the end")
        (self.folder / "gate").touch()
        self.run(self.closed, "the end of the bounded source", ends=True)
        self.run(lambda: self.saved(after), "the savepoint after the end")
        for savepoint in self._chance.sample((before, after), 2):
            self.restore(savepoint)
            if savepoint is before:
                self.run(self.closed, "the end after a restore", ends=True)
            else:
                self.run(lambda: self.epochs(3), "epochs after a restore")
        self.run(self.drained, "the drain")
        self.run(lambda: False, "the end of the drain")
        if not self._report.problems:
            self.verify()

    def run(self, done: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Run the job until something is done, and a little longer; often it is killed once before, too.

        `ends`: that is the end of the bounded source, and the job may kill itself at one of its steps.
        """
        early = self._chance.random() < 0.6
        while not self._report.problems:
            point = self._chance.choice(POINTS) if ends and early and self._chance.random() < 0.7 else None
            with running(beside, self.folder, {} if point is None else {VARIABLE: f"{point}=kill"}) as driver:
                self._report.starts += 1
                self._begun, self._driver = self._newest(), driver
                reached = partial(self.epochs, 1) if early and point is None else done
                until(lambda: driver.poll() is not None or reached(), what, seconds=LIMIT_S)  # noqa: B023
                driver.wait(self._chance.uniform(0, SPREAD_S))
                if driver.poll() == -signal.SIGKILL and point is not None:
                    self._killed("driver", f"{what}, {point}", driver)
                elif driver.poll() is not None:
                    if driver.poll() != 0:
                        self.wrong(f"{what}: the job ended with {driver.poll()}: {tail(driver)}")
                    return
                else:
                    self._kill(driver, what)
            self._driver = None
            if not early and done():
                return
            early = False

    def _kill(self, driver: Tree, what: str) -> None:
        target: Target = self._due[-1] if self._due else "driver"
        where = f"{what}, epoch {self._newest()}, flags {', '.join(self.flags()) or 'none'}"
        if target == "jvm":
            for member in driver.members():
                if member.is_jvm:
                    member.kill()
            driver.wait(LIMIT_S)
        elif target == "all":
            driver.kill_all()
        else:
            driver.kill()
        self._killed(target, where, driver)

    def _killed(self, target: Target, where: str, driver: Tree) -> None:
        until(lambda: not driver.members(), "the killed driver's processes have ended", seconds=120)
        del self._due[-1:]
        self._report.kills.append(Kill(target, where, "started again"))
        self._say(f"{len(self._report.kills)}: kill -9 {target} at {where}")

    def restore(self, savepoint: Path) -> None:
        if self._report.problems:
            return
        with running(beside, self.folder, None, savepoint) as restoring:
            code = restoring.wait(LIMIT_S)
        self._say(f"restored to '{savepoint.name}'")
        if code != 0:
            self.wrong(f"a restore to '{savepoint.name}' ended with {code}: {tail(restoring)}")

    # -- what is waited for -------------------------------------------------------------------------------------------

    def _newest(self) -> int:
        newest = self._log.newest_commit()
        return -1 if newest is None else newest

    def epochs(self, more: int) -> bool:
        """Whether this start has committed some epochs."""
        return self._newest() >= self._begun + more

    def flags(self) -> list[str]:
        """Those that count now."""
        ledger = Ledger(str(self.folder / "state"))
        lineage = max((row.lineage for row in ledger.jobs()), default=0)
        flags = ledger.table(FinishedRow).rows([("lineage", "=", lineage)])
        return sorted(row.kind for row in flags if row.kind != "channel")

    def closed(self) -> bool:
        return "closed" in self.flags()

    def saved(self, place: Path) -> bool:
        if self._driver is not None and self.epochs(1) and not (place / MANIFEST).exists():
            try:
                sx.Control(self.folder / "state").savepoint(place, wait=20)
            except (SparkExtError, TimeoutError) as problem:
                self._say(f"no savepoint: {str(problem).partition(chr(10))[0]}")
        return (place / MANIFEST).exists()

    def drained(self) -> bool:
        """It is requested once, and holds in all starts to come."""
        if not self._drains and self.epochs(1):
            sx.Control(self.folder / "state").drain()
            self._drains = True
        return self._drains

    # -- the verdict --------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        before = History.read(self.folder / "state").epochs
        with running(beside, self.folder) as again:
            code = again.wait(LIMIT_S)
        history = History.read(self.folder / "state", [self.folder / "events.jsonl"])
        if code != 0 or history.epochs != before or history.finished_queries != ("q",):
            self.wrong(f"another start ended with {code}, has read rows, or finds nothing finished: {tail(again)}")
        found = Counter(delta_numbers(self.folder / "out"))
        live = Counter(("live", n) for n in range(sum(n for (channel, _), n in found.items() if channel == "live")))
        if found != live + Counter(ROWS):
            more, less = found - live - Counter(ROWS), live + Counter(ROWS) - found
            self.wrong(f"{more.total()} rows too many, {less.total()} missing, such as {[*more, *less][:3]}")
        self._report.tables["out"] = found.total()
        for problem in validators.problems(history):
            self.wrong(problem)

    def wrong(self, problem: str) -> None:
        self._report.problems.append(f"{self.folder.name}: {problem}")


def chaos(folder: Path, *, kills: int, targets: Sequence[Target], seed: int = 1, say: Say = print) -> Report:
    """As many rounds as the kills need."""
    chance = random.Random(seed)
    report = Report(f"{kills} kills around the end of a bounded source, seed {seed}")
    due = [targets[number % len(targets)] for number in range(kills)]
    chance.shuffle(due)
    with timed(report):
        while (due or not report.rounds) and not report.problems:
            report.rounds += 1
            Round(folder / f"round-{report.rounds}", chance, due, report, say).play()
    return report
