"""Savepoints, restores and rescales of the diamond under `kill -9`: `python -m tests.chaos.savepoints --restores 10`.

The driver is killed at a random moment of each cycle, and at a named step of each savepoint, restore and rescale, of a
query's state or of an exchange. A restore may change the partitions of the exchange as well. Half
restored, the job must refuse to start. In the end both tables are those of a job that nothing has happened to.
"""

import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from spark_ext.checkpoints.savepoint import MANIFEST
from spark_ext.failpoints import VARIABLE, FailPoint
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos import diamond
from tests.chaos.commands import arguments, end_on_sigterm, tail, verdict, workplace
from tests.chaos.scenario import ROOT, Scenario
from tests.chaos.scenario import diamond as scenario
from tests.chaos.verify import Content, differences
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

ROWS: Final = 90_000  # of the input: the cycles together do not read all of it
PARTITIONS: Final = (3, 4, 8)  # of the exchange x
LIMIT_S: Final = 900.0  # maximum duration of one command


def steps_of(area: str, *others: FailPoint) -> tuple[FailPoint, ...]:
    return (*(point for point in FailPoint if point.startswith(f"{area}.")), *others)


_OF_RESTORES = (FailPoint.DELTA_BEFORE_ROLLBACK, FailPoint.DELTA_ROLLED_BACK)
RESTORE_STEPS: Final = steps_of(
    "restore", *_OF_RESTORES, FailPoint.EXCHANGE_BEFORE_PUT_BACK, FailPoint.EXCHANGE_PUT_BACK
)
RESCALE_STEPS: Final = tuple(set(steps_of("rescale")) - {FailPoint.RESCALE_REDISTRIBUTED})
_OF_SAVEPOINTS = (FailPoint.EXCHANGE_BEFORE_PIN, FailPoint.EXCHANGE_PINNED)
SAVEPOINT_STEPS: Final = steps_of(
    "savepoint", *_OF_SAVEPOINTS, FailPoint.CHECKPOINT_TRIGGERED, FailPoint.CHECKPOINT_CUT
)
_PINNED: Final = steps_of("savepoint", FailPoint.EXCHANGE_PINNED, FailPoint.RESCALE_REDISTRIBUTED)
REDISTRIBUTION_STEPS: Final = (*_PINNED, *RESTORE_STEPS)  # of a savepoint, which is restored
HALF_WAY: Final = "is not complete"  # what a start says of a restore that was interrupted
ANOTHER: Final = "partitions of the exchange is"  # what it says of an exchange that is to be rescaled first
say = partial(print, flush=True)


class Trial:
    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.scenario: Scenario = scenario()
        self.out = folder / "job"
        self.wrong: list[str] = []
        self.kills = self.starts = 0
        self.partitions = 4  # of the exchange x, as the job declares them
        self._steps: dict[tuple[FailPoint, ...], Iterator[FailPoint]] = {}
        self._logs = 0

    def command(self, *more: str, out: Path | None = None, step: FailPoint | None = None) -> Tree:
        self._logs += 1
        env = {"SPARK_MASTER": "local[2]", **cheap_jvm.forking(ROOT)}
        if step is not None:
            env[VARIABLE] = f"{step}=kill"
        command = [*self.scenario.command(out or self.out), "--rows", str(ROWS), *more]
        command += ["--partitions", str(self.partitions)]
        return Tree(command, self.folder / "logs" / f"{self._logs:03}.log", env)

    def next_step(self, steps: tuple[FailPoint, ...]) -> FailPoint:
        """Each of them once, in random order, before any comes again."""
        return next(self._steps.setdefault(steps, self._endless(steps)))

    def _endless(self, steps: tuple[FailPoint, ...]) -> Iterator[FailPoint]:
        while True:
            yield from self.chance.sample(steps, len(steps))

    def killed(self, run: Tree) -> None:
        run.kill()
        self.kills += 1
        until(lambda: not run.members(), "the killed driver's processes have ended", seconds=120)

    def run_for_a_while(self) -> None:
        wanted = self.committed() + self.chance.choice([1, 4, 8])
        with self.command() as run:
            self.starts += 1
            until(lambda: self.committed() >= wanted or run.poll() is not None, "epochs are committed", seconds=LIMIT_S)
            run.wait(self.chance.uniform(0, 1.0))
            if run.poll() is None:
                self.killed(run)
            elif run.poll() != 0:
                self.wrong.append(f"a run ended with {run.poll()}: {tail(run)}")

    def committed(self) -> int:
        """The sum of the newest committed epochs: a query's old files are removed."""
        found = 0
        for checkpoint in self.scenario.checkpoints(self.out):
            newest = SparkLog(checkpoint).newest_commit()
            found += 0 if newest is None else newest + 1
        return found

    def savepoint(self, folder: Path, *, aligned: bool) -> None:
        """Take one of the running job, whose driver is killed some time later; and once before at a named step."""
        more = ["--savepoint", str(folder), "--after", str(self.chance.uniform(0, 2)), *(["--aligned"] * aligned)]
        step = self.next_step(SAVEPOINT_STEPS)
        for point in (step, None):
            with self.command(*more, step=point) as run:
                self.starts += 1
                there = lambda: (folder / MANIFEST).exists() or run.poll() is not None  # noqa: E731
                until(there, "the savepoint is there, or the driver was killed", seconds=LIMIT_S)
                run.wait(self.chance.uniform(0, 3))
                if run.poll() is None:
                    self.killed(run)
                elif run.poll() == -signal.SIGKILL:
                    self.kills += 1
                    until(lambda: not run.members(), "the killed driver's JVM has ended", seconds=120)
                elif run.poll() != 0:
                    self.wrong.append(f"a run with a savepoint ended with {run.poll()}: {tail(run)}")
            if (folder / MANIFEST).exists():
                return
            shutil.rmtree(folder, ignore_errors=True)
            say(f"  killed at {step}: no savepoint")

    def change(self, name: str, steps: tuple[FailPoint, ...], *more: str, out: Path | None = None) -> bool:
        """Carry a command out, killed once at a named step before."""
        step = self.next_step(steps)
        with self.command(*more, out=out, step=step) as run:
            code = run.wait(LIMIT_S)
            until(lambda: not run.members(), "the killed driver's JVM has ended", seconds=120)
        reached = code == -signal.SIGKILL
        self.kills += reached
        say(f"  {name} killed at {step}" if reached else f"  {name} did not reach {step}")
        if not reached:
            return self._outcome(name, code, run)
        if step is FailPoint.RESTORE_COMPLETE and out is not None:
            return True  # that job has a history of its own now
        if name != "rescale" and step is not FailPoint.RESTORE_COMPLETE:
            with self.command(out=out) as run:
                code = run.wait(LIMIT_S)
            if code == 0 or (ANOTHER if step in _PINNED else HALF_WAY) not in run.text():
                self.wrong.append(f"a start after {step} was not refused, but ended with {code}: {tail(run)}")
        elif name == "rescale" and self.chance.random() < 0.5:
            self.run_for_a_while()
        with self.command(*more, out=out) as run:
            code = run.wait(LIMIT_S)
        return self._outcome(name, code, run)

    def _outcome(self, name: str, code: int | None, run: Tree) -> bool:
        if code == 0:
            return True
        if name == "rescale" and any(reason in run.text() for reason in ("planned and not committed", "has finished")):
            return False
        self.wrong.append(f"{name} ended with {code}: {tail(run)}")
        return False

    def restored(self, number: int) -> None:
        """One cycle: savepoint, more epochs, kill, restore; every third time also into another job."""
        folder = self.folder / f"savepoint-{number}"
        self.savepoint(folder, aligned=bool(number % 2))
        if not (folder / MANIFEST).exists():
            self.wrong.append(f"cycle {number}: no savepoint")
            return
        if self.chance.random() < 0.5:
            self.run_for_a_while()
        self.partitions = self.chance.choice(PARTITIONS)  # what is in flight is distributed by the restore
        self.change("restore", RESTORE_STEPS, "--restore", str(folder))
        say(f"restore {number}: done with {self.partitions} partitions, {self.rows()} rows")
        if number % 3 == 0:
            self.forked(folder, number)
        shutil.rmtree(folder)

    def forked(self, folder: Path, number: int) -> None:
        """The rows of the other job are those that this one had not written yet."""
        before = self.content()
        other = self.folder / f"fork-{number}"
        self.change("restore", RESTORE_STEPS, "--restore", str(folder), out=other)
        with self.command(out=other) as run:
            self.starts += 1
            if (code := run.wait(LIMIT_S)) != 0:
                self.wrong.append(f"the forked job ended with {code}: {tail(run)}")
                return
        expected = {name: Content(table) for name, table in diamond.expected(ROWS).items()}
        for name, content in expected.items():
            rest = Content.delta(other / name).rows if DeltaTable.is_deltatable(str(other / name)) else Counter[int]()
            done = before[name].rows if name in before else Counter[int]()
            if content.rows != rest + done:
                self.wrong.append(f"fork {number}: {name} has {rest.total()} rows, and {done.total()} were there")
        say(f"fork {number}: finished, its rows and those before make up the whole")
        shutil.rmtree(other)

    def rescaled(self, number: int) -> None:
        """One cycle: some epochs, a kill, another number of partitions. An epoch in doubt is committed first."""
        partitions = self.chance.choice([1, 3, 4, 5])
        for _ in range(10):
            self.run_for_a_while()
            if self.change("rescale", RESCALE_STEPS, "--rescale", str(partitions)):
                say(f"rescale {number}: {partitions} partitions, {self.rows()} rows")
                return
        self.wrong.append(f"rescale {number}: an epoch was in doubt ten times, or the query had finished")

    def redistributed(self, number: int) -> None:
        """One cycle: some epochs, a kill, another number of partitions of the exchange x."""
        self.run_for_a_while()
        self.partitions = self.chance.choice([one for one in PARTITIONS if one != self.partitions])
        self.change("redistribution", REDISTRIBUTION_STEPS, "--rescale-x")
        say(f"redistribution {number}: {self.partitions} partitions, {self.rows()} rows")

    def content(self) -> dict[str, Content]:
        tables = (name for name in self.scenario.tables if DeltaTable.is_deltatable(str(self.out / name)))
        return {name: Content.delta(self.out / name) for name in tables}

    def rows(self) -> dict[str, int]:
        return {name: content.total for name, content in self.content().items()}

    def finish(self) -> None:
        with self.command() as run:
            self.starts += 1
            if (code := run.wait(LIMIT_S)) != 0:
                self.wrong.append(f"the last run ended with {code}: {tail(run)}")
                return
        with self.command() as run:
            code = run.wait(LIMIT_S)
            if code != 0 or "0 rows read" not in run.text():
                self.wrong.append(f"another start ended with {code}, or has read rows: {tail(run)}")
        expected = {name: Content(table) for name, table in diamond.expected(ROWS).items()}
        for name, found in self.content().items():
            self.wrong += differences(name, found, expected[name])
        self.wrong += self.scenario.leftovers(self.out, late_tasks=False)
        stray = [path.name for path in (self.out / "state").iterdir() if path.name.startswith(".")]
        stray += [str(path) for path in (self.out / "state").rglob("*.restore")]
        self.wrong += [f"left in the state directory: {name}" for name in stray]


def play(folder: Path, restores: int, rescales: int, redistributions: int, seed: int) -> Trial:
    chance = random.Random(seed)
    trial = Trial(folder, chance)
    cycles = [*(trial.restored for _ in range(restores)), *(trial.rescaled for _ in range(rescales))]
    cycles += [trial.redistributed for _ in range(redistributions)]
    chance.shuffle(cycles)
    for number, cycle in enumerate(cycles):
        if not trial.wrong:
            cycle(number)
    if not trial.wrong:
        trial.finish()
    return trial


def main() -> int:
    counts = {"restores": (10, "savepoints and restores"), "rescales": (5, "rescales"),
              "redistributions": (5, "rescales of an exchange")}  # fmt: skip
    given = arguments("savepoints", **counts).parse_args()
    began = time.monotonic()
    with workplace("savepoints", given.keep) as folder:
        trial = play(folder, given.restores, given.rescales, given.redistributions, given.seed)
        rows = trial.rows()
    said = verdict(trial.wrong, "both tables equal by content, nothing left behind")
    print(
        f"{given.restores} restores, {given.rescales} rescales, {given.redistributions} redistributions, {trial.kills} "
        f"kills, {trial.starts} starts, seed "
        f"{given.seed}, {time.monotonic() - began:.0f} s: {rows}: {said}"
    )
    return 1 if trial.wrong else 0


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
