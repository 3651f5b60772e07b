"""The jobs that chaos tests run: how to start one, and what it leaves behind."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from spark_ext.exchange.kinds import parts_at
from spark_ext.failpoints import FailPoint
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.verify import Content, leftovers

ROOT = Path(__file__).parents[2]
# Fail points of the final checkpoint and of a start, passed in the driver's own process.
FINAL_STEPS = (*(point for point in FailPoint if point.startswith("final.")), FailPoint.JOB_ENDED)
START_STEPS = (FailPoint.INCARNATION_TAKEN, FailPoint.DELTA_FENCED, FailPoint.DELTA_CLEANED, FailPoint.SINK_CLAIMED)
# Fail points of an epoch, passed in Python workers of the driver's JVM or of an executor.
COMMIT_STEPS = (
    *(FailPoint.SOURCE_PLANNED, FailPoint.SINK_WRITTEN, FailPoint.SINK_BEFORE_COMMIT, FailPoint.DELTA_BEFORE_COMMIT),
    *(FailPoint.DELTA_COMMITTED, FailPoint.SINK_COMMITTED, FailPoint.END_OF_INPUT_PLANNED),
)
_IN_WORKERS = (FailPoint.EXCHANGE_BEFORE_ENTRY, FailPoint.EXCHANGE_ENTRY, FailPoint.SOURCE_STAMPED)
_IN_THE_DRIVER = (
    *(FailPoint.EXCHANGE_BEFORE_CLAIM, FailPoint.EXCHANGE_CLAIMED, FailPoint.EXCHANGE_CLEANED),
    *(FailPoint.EXCHANGE_BEFORE_RELEASE, FailPoint.EXCHANGE_RELEASED, FailPoint.EXCHANGE_BEFORE_DELETING),
    *(FailPoint.EXCHANGE_DELETED, FailPoint.EXCHANGE_BEFORE_SEAL, FailPoint.EXCHANGE_SEALED),
    *(FailPoint.LEDGER_BEFORE_EXCHANGES, FailPoint.LEDGER_EXCHANGES, FailPoint.CHECKPOINT_TRIGGERED),
    *(FailPoint.CHECKPOINT_CUT, FailPoint.CHECKPOINT_RECORDED),
)
# Fail points of an exchange and of aligned checkpoints, and who is killed there.
EXCHANGE_STEPS = {**dict.fromkeys(_IN_THE_DRIVER, "kill"), **dict.fromkeys(_IN_WORKERS, "kill-driver")}


def actions(job: str) -> dict[str, str]:
    """The action at each named step: the driver is killed, by itself or by a worker."""
    own: dict[str, str] = dict.fromkeys((*START_STEPS, *FINAL_STEPS), "kill")
    own |= dict.fromkeys(COMMIT_STEPS, "kill-driver")
    return own | (EXCHANGE_STEPS if job in ("diamond", "speeds") else {})


class Server(Protocol):
    def kill(self) -> None:
        """`kill -9` it."""

    def start(self) -> None:
        """Start it again, at the same address, and wait until it answers."""


@dataclass(frozen=True)
class Scenario:
    """A job as a script that is started again until it has finished."""

    module: str  # of the script
    tables: dict[str, str]  # output tables: from the directory below the output to the sink's uid
    queries: tuple[str, ...]
    data: Path | None = None  # prepared input that runs share; None: the script keeps its own below its output
    server: Server | None = None  # killed as target `server`
    look_every: float = 0.02  # how often a kill that is due looks how far the job is, s
    exchanges: tuple[str, ...] = ()  # nothing of them is left at the end

    def place(self, out: Path) -> Path | str:
        return out

    def command(self, out: Path) -> list[str]:
        given = ["--data", str(self.data)] if self.data is not None else []
        return [sys.executable, "-m", self.module, "--out", str(self.place(out)), *given]

    def state(self, out: Path) -> str:
        return f"{self.place(out)}/state"

    def committed(self, out: Path) -> int:
        return sum(len(SparkLog(place).commits()) for place in self.checkpoints(out))

    def checkpoints(self, out: Path) -> list[str]:
        return [f"{self.state(out)}/queries/{query}/checkpoint" for query in self.queries]

    def content(self, out: Path) -> dict[str, Content]:
        return {name: Content.delta(f"{self.place(out)}/{name}") for name in self.tables}

    def disallowed(self, out: Path) -> list[str]:
        """What of the job's history the model of the commit protocol does not allow; see `tests.spec.traces`."""
        return []

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        """What dead incarnations have left prepared or staged.

        On a cluster tasks of a dead driver may write data files for a moment (`late_tasks`).
        """
        found = (leftovers(name, out / name, uid) for name, uid in self.tables.items() if not late_tasks)
        left = [problem for problems in found for problem in problems]
        for name in self.exchanges:
            folder = out / "state" / "exchanges" / name
            left += [f"exchange {name}: {file.name}" for file in (folder / "data").iterdir()]
            left += [f"exchange {name}: {file.name}" for file in (folder / "log").iterdir() if file.name[0] == "."]
        return left


def compact() -> Scenario:
    """A small, quick job for `make test`: windows with state, and a copy of files."""
    return Scenario("tests.chaos.compact", {"windows": "windows-table", "copy": "copy-table"}, ("windows", "copy"))


def diamond() -> Scenario:
    """Four queries over two exchanges; windows, a union of two ways, aligned checkpoints while it runs."""
    tables = {"diamond": "diamond-table", "copy": "copy-table"}
    return Scenario("tests.chaos.diamond", tables, ("rows", "minutes", "both", "copy"), exchanges=("x", "y"))


def speeds() -> Scenario:
    """Windows over two exchanges of unequal speed, beside the same in one query."""
    tables = {name: f"{name}-table" for name in ("windows", "single")}
    return Scenario("tests.chaos.speeds", tables, ("left", "right", *tables), exchanges=("x", "y"))


@dataclass(frozen=True)
class ExchangeScenario(Scenario):
    """Two queries over an exchange of one kind."""

    given: tuple[str, ...] = ()

    def command(self, out: Path) -> list[str]:
        return [*super().command(out), *self.given]

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        place = str(out / "state" / "exchanges" / "x")
        held = parts_at(place, "exchange 'x'").master.held()
        return [] if (held.rows, held.bytes, held.sealed) == (0, 0, True) else [f"exchange x holds {held}"]


def exchange(kind: str, server: Server | None, options: Mapping[str, str]) -> Scenario:
    """One query writes an exchange of this kind, and one copies it into a table, in which the order is checked."""
    given = ("--kind", kind, "--options", json.dumps(dict(options)))
    tables, queries = {"copy": "copy-table"}, ("rows", "copy")
    return ExchangeScenario("tests.chaos.exchange_job", tables, queries, server=server, given=given)


def remote_flights(data: Path) -> Scenario:
    """The flights example in a client of Spark Connect."""
    return replace(flights(data), module="tests.chaos.remote_flights")


FLIGHTS = ("daily", "hourly", "with_weather")


def flights(data: Path) -> Scenario:
    """The flights example: 336,776 real rows, windows and a join."""
    return Scenario("examples.flights", {name: f"{name}-table" for name in FLIGHTS}, FLIGHTS, data)
