"""What is measured of a side: how it starts, whom a kill hits, how far it is, and when it did what."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol

from benchmarks.nexmark.driver import checkpoint_of
from benchmarks.nexmark.events import FILES
from benchmarks.nexmark.queries import QUERIES
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session.jars import delta_jars
from spark_ext.spark.session.sessions import defaults
from tests.support.processes import Member, Tree

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


class Progress(NamedTuple):
    """Files of each stream."""

    due: int  # that count for the next kill
    read: int  # that would not be read again
    planned: int  # that were begun


class Times(NamedTuple):
    """Seconds since 1970."""

    first: float | None  # the first plan
    read: float | None  # the last events were committed, or read if the side does not tell that
    epochs: list[tuple[float, int]]  # commits, with the files read by then
    outputs: list[float]  # new rows could be read
    steps: Sequence[float] = ()  # equal parts of the input were begun, if epochs are not equal parts


class Side(Protocol):
    queries: ClassVar[Sequence[str]]
    parts: ClassVar[Sequence[str]]
    judged: ClassVar[bool]  # whether it writes rows

    def __init__(self, case: Case, source: Path, out: Path) -> None: ...

    def prepare(self) -> None:
        """Build and install what it needs, which is not measured."""

    def start(self) -> Tree: ...

    def role(self, member: Member) -> str | None:
        """`worker`, `driver`, or None for a process that is not killed."""

    def kill(self, tree: Tree, target: str) -> Tree:
        """Kill with SIGKILL; returns the tree of processes with which the side continues."""

    def progress(self) -> Progress: ...

    def times(self) -> Times: ...


class Spark:
    """Both of Spark's sides."""

    queries: ClassVar[Sequence[str]] = tuple(QUERIES)
    parts: ClassVar[Sequence[str]] = ("table", "kills", "hot")
    judged: ClassVar[bool] = True

    def __init__(self, case: Case, source: Path, out: Path) -> None:
        self._case, self._source, self._out = case, source, out
        self._checkpoint = checkpoint_of(case.side, out)
        self._log = SparkLog(str(self._checkpoint))

    def prepare(self) -> None:
        pass

    def start(self) -> Tree:
        case, master = self._case, _MASTER if self._case.kills is None else _CLUSTER
        command = [sys.executable, "-m", "benchmarks.nexmark.driver", case.side, case.query, self._source, self._out]
        class_path = os.pathsep.join(map(str, delta_jars(defaults())))
        env = {"BENCHMARK_CLASS_PATH": class_path, "PYSPARK_PYTHON": sys.executable}
        return Tree([*map(str, command), master], self._out / "driver.log", env)

    def role(self, member: Member) -> str | None:
        return ("worker" if member.is_executor else "driver") if member.is_jvm else None

    def kill(self, tree: Tree, target: str) -> Tree:
        if target == "driver":
            tree.kill_all()
            return self.start()
        for member in tree.members():
            _ = self.role(member) == target and member.kill()
        return tree

    def progress(self) -> Progress:
        read = files_read(self._log, self._log.newest_commit())
        return Progress(read, read, files_read(self._log, self._log.newest_offsets()))

    def times(self) -> Times:
        epochs = [(self._log.committed_at(one) or 0, files_read(self._log, one)) for one in self._log.commits()]
        planned = self._checkpoint / "offsets" / "0"
        return Times(
            planned.stat().st_mtime if planned.exists() else None,
            next((at for at, files in epochs if files == self._case.files), None),
            epochs,
            _outputs(self._out / "table"),
        )


def files_read(log: SparkLog, epoch: int | None) -> int:
    """How many files of each stream the epochs up to this one have read."""
    logged = None if epoch is None else log.offsets(epoch)
    if logged is None:
        return 0
    counts = (raw["logOffset"] + 1 if "logOffset" in raw else raw.get("sequence") for raw in logged.sources if raw)
    return min((int(count) for count in counts if count is not None), default=0)


def _outputs(table: Path) -> list[float]:
    """When each commit with rows was made."""
    log = sorted(path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())
    return [path.stat().st_mtime for path in log if any("add" in json.loads(line) for line in path.open())]
