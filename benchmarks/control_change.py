"""A change of configuration, from the request to the commit of the first epoch with it: by an event, and by a restart.

Four ways to change what a function of a running job uses:

* `set_config`: the function reads the key; nothing is restarted.
* `built anew`: the query is a function of the key; it is restarted between two epochs.
* `stop and start`: the job is stopped, its file edited, and it is started again in the same Spark session.
* `new driver`: the driver is stopped, the file edited, and another driver started, as it is usual.

The driver is a process of its own; requests come from this one, over the state directory.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import checkpoint_of, committed_at, until, workplace
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.processes import Tree

ROUNDS = 5
EVENT, BUILT, SESSION, DRIVER = "set_config", "built anew", "stop and start", "new driver"
SETTLED = 15  # epochs between two changes


def run(rounds: int = ROUNDS) -> Figures:
    with workplace() as folder:
        driver = _Driver(folder)
        try:
            driver.measure(EVENT)
            found = beside((EVENT, BUILT, SESSION, DRIVER), rounds, driver.measure)
        finally:
            driver.end()
    sides = {side: Sample.of(values, "s") for side, values in found.items()}
    return [
        Figure(
            name, f"from the request to the first epoch with the change: {slow} / {fast}",
            sides[slow].median / sides[fast].median, Aim(">=", least), sides,
        )
        for name, slow, fast, least in (
            ("control_change", DRIVER, EVENT, 10),
            ("control_change_session", SESSION, EVENT, 2),
            ("control_change_built", DRIVER, BUILT, 2),
        )
    ]  # fmt: skip


class _Driver:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoint = checkpoint_of(folder / "state")
        self._log = SparkLog(str(self._checkpoint))
        self._epochs = Ledger(str(folder / "state")).table(EpochRow)
        self._number = 0
        (folder / "edited").write_text("0")
        self._process = self._started()
        until(self._newest, "the driver has committed an epoch")
        self._control = sx.Control(folder / "state")

    def _started(self) -> Tree:
        command = [sys.executable, "-m", "benchmarks._control_driver", str(self._folder)]
        return Tree(command, self._folder / "driver.log")

    def _newest(self) -> int:
        if self._process.poll() is not None:
            raise RuntimeError(self._process.text()[-3000:])
        return self._log.newest_commit() or 0

    def measure(self, side: str) -> float:
        """Make one change; returns s until the first epoch with it was committed."""
        settled = self._newest() + SETTLED
        until(lambda: self._newest() >= settled, "the job runs")
        self._number += 1
        begin = time.time()
        if side in (EVENT, BUILT):
            sent = self._control.set("threshold" if side == EVENT else "built", self._number, wait=60)
            applied = sent.applied["q"]
            assert applied is not None
            return committed_at(self._checkpoint, applied) - begin
        before = self._incarnation()
        self._restart(again=side == SESSION)
        until(lambda: self._newest() >= 0 and self._incarnation() > before, "the job was started again")
        return min(row.committed_at for row in self._rows(before)).timestamp() - begin

    def _rows(self, after: int) -> list[EpochRow]:
        return self._epochs.rows([("query", "=", "q"), ("incarnation", ">", after)])

    def _incarnation(self) -> int:
        return max(row.incarnation for row in self._rows(0))

    def _restart(self, *, again: bool) -> None:
        (self._folder / "edited").write_text(str(self._number))
        if again:
            (self._folder / "again").touch()
        else:
            (self._folder / "again").unlink(missing_ok=True)
        self._control.stop(wait=60)
        if not again:
            assert self._process.wait(60) == 0, self._process.text()[-3000:]
            self._process = self._started()

    def end(self) -> None:
        (self._folder / "again").unlink(missing_ok=True)
        self._process.terminate(60)
