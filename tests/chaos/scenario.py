"""The jobs that chaos tests run: how to start one, and what it leaves behind."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spark_ext.failpoints import FailPoint
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.verify import Content, leftovers

ROOT = Path(__file__).parents[2]

FINAL_STEPS = (*(point for point in FailPoint if point.startswith("final.")), FailPoint.JOB_ENDED)
"""Fail points of the final checkpoint; all are passed in the driver's own process."""

START_STEPS = (
    FailPoint.INCARNATION_TAKEN,
    FailPoint.DELTA_FENCED,
    FailPoint.DELTA_CLEANED,
    FailPoint.SINK_CLAIMED,
)
"""Fail points of a start, in the driver's own process."""

COMMIT_STEPS = (
    FailPoint.SOURCE_PLANNED,
    FailPoint.SINK_WRITTEN,
    FailPoint.SINK_BEFORE_COMMIT,
    FailPoint.DELTA_BEFORE_COMMIT,
    FailPoint.DELTA_COMMITTED,
    FailPoint.SINK_COMMITTED,
    FailPoint.END_OF_INPUT_PLANNED,
)
"""Fail points of an epoch, passed in Python workers of the driver's JVM or of an executor."""


EXCHANGE_STEPS: dict[str, str] = {
    **dict.fromkeys(
        (
            FailPoint.EXCHANGE_BEFORE_CLAIM,
            FailPoint.EXCHANGE_CLAIMED,
            FailPoint.EXCHANGE_CLEANED,
            FailPoint.EXCHANGE_BEFORE_RELEASE,
            FailPoint.EXCHANGE_RELEASED,
            FailPoint.EXCHANGE_BEFORE_DELETING,
            FailPoint.EXCHANGE_DELETED,
            FailPoint.EXCHANGE_BEFORE_SEAL,
            FailPoint.EXCHANGE_SEALED,
            FailPoint.LEDGER_BEFORE_EXCHANGES,
            FailPoint.LEDGER_EXCHANGES,
            FailPoint.CHECKPOINT_TRIGGERED,
            FailPoint.CHECKPOINT_CUT,
            FailPoint.CHECKPOINT_RECORDED,
        ),
        "kill",
    ),
    **dict.fromkeys(
        (FailPoint.EXCHANGE_BEFORE_ENTRY, FailPoint.EXCHANGE_ENTRY, FailPoint.SOURCE_STAMPED), "kill-driver"
    ),
}
"""Fail points of an exchange and of aligned checkpoints, and who is killed there: most are passed in the driver."""


class Server(Protocol):
    """A server process to which a sink writes."""

    def kill(self) -> None:
        """`kill -9` it."""

    def start(self) -> None:
        """Start it again, at the same address, and wait until it answers."""


@dataclass(frozen=True)
class Scenario:
    """A job as a script that is started again until it has finished."""

    name: str
    script: Path
    data: Path | None
    """Directory with prepared input that runs share; None: the script keeps its own below its output."""
    tables: dict[str, str]
    """Output tables: from the directory below the output to the sink's uid."""
    queries: tuple[str, ...]
    server: Server | None = None
    """The server that is killed as target `server`."""
    look_every: float = 0.02
    """How often a kill that is due looks how far the job is, s."""
    exchanges: tuple[str, ...] = ()
    """Its exchanges; nothing of them is left at the end."""

    def command(self, out: Path) -> list[str]:
        """The command that starts it."""
        given = ["--data", str(self.data)] if self.data is not None else []
        return [sys.executable, str(self.script), "--out", str(out), *given]

    def state(self, out: Path) -> Path | str:
        """The job's state directory."""
        return out / "state"

    def committed(self, out: Path) -> int:
        """Epochs that Spark has committed so far, over all queries."""
        return sum(len(SparkLog(place).commits()) for place in self.checkpoints(out))

    def checkpoints(self, out: Path) -> list[str]:
        """Spark's checkpoint directories of its queries."""
        return [f"{self.state(out)}/queries/{query}/checkpoint" for query in self.queries]

    def content(self, out: Path) -> dict[str, Content]:
        """Its outputs, by name."""
        return {name: Content.delta(out / name) for name in self.tables}

    def disallowed(self, out: Path) -> list[str]:
        """What of the job's history the model of the commit protocol does not allow; see `tests.spec.traces`."""
        return []

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        """Descriptions of what dead incarnations have left prepared or staged."""
        found = (leftovers(name, out / name, uid, late_tasks=late_tasks) for name, uid in self.tables.items())
        left = [problem for problems in found for problem in problems]
        for name in self.exchanges:
            folder = Path(self.state(out)) / "exchanges" / name
            left += [f"exchange {name}: {file.name}" for file in (folder / "data").iterdir()]
            left += [f"exchange {name}: {file.name}" for file in (folder / "log").iterdir() if file.name[0] == "."]
        return left


def compact() -> Scenario:
    """A small, quick job for `make test`: windows with state, and a copy of files."""
    return Scenario(
        "compact",
        ROOT / "tests" / "chaos" / "compact.py",
        None,
        {"windows": "windows-table", "copy": "copy-table"},
        ("windows", "copy"),
    )


def diamond() -> Scenario:
    """Four queries over two exchanges; windows, a union of two ways, aligned checkpoints while it runs."""
    return Scenario(
        "diamond",
        ROOT / "tests" / "chaos" / "diamond.py",
        None,
        {"diamond": "diamond-table", "copy": "copy-table"},
        ("rows", "minutes", "both", "copy"),
        exchanges=("x", "y"),
    )


def flights(data: Path) -> Scenario:
    """The flights example: 336,776 real rows, windows and a join."""
    names = ("daily", "hourly", "with_weather")
    return Scenario("flights", ROOT / "examples" / "flights.py", data, {name: f"{name}-table" for name in names}, names)
