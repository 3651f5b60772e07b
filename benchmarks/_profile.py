"""Which threads and processes the CPU time of a benchmark goes to, for each of its sides."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil
from rich.table import Table

LOOK: Final = 0.1  # seconds between two looks: what a process uses after the last look before its end is missing
SHOWN: Final = 14  # rows of the table; the others are added up
_JVM: Final = {  # by the name of a thread up to its first digit
    "C": "compilers", "GC Thread": "garbage collection", "G": "garbage collection", "VM Thread": "garbage collection",
    "stream executio": "queries: plan and commit", "Executor task l": "tasks", "java": "start",
}  # fmt: skip
_NUMBER: Final = re.compile(r"[-#]?\d+.*$")


class Profile:
    """Looks at all processes that this one has started, while it is entered."""

    def __init__(self) -> None:
        self.spent: dict[str, dict[str, float]] = {}
        self._seen: dict[tuple[int, float, int], float] = {}
        self._side = "before the first side"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Profile:
        self._thread.start()
        _entered.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.remove(self)
        self._end.set()
        self._thread.join()

    def turn(self, side: str) -> None:
        """What is used from now on is of this side."""
        self._look()
        with self._lock:
            self._side = side

    def table(self) -> Table:
        """CPU seconds by thread or process, and side; the greatest sums first."""
        sums = {
            name: sum(one.get(name, 0.0) for one in self.spent.values())
            for spent in self.spent.values()
            for name in spent
        }
        names = sorted(sums, key=lambda name: -sums[name])[:SHOWN]
        table = Table(title="CPU seconds")
        for column in ("", *self.spent):
            table.add_column(column, justify="right" if column else "left")
        for name in names:
            table.add_row(name, *(f"{spent.get(name, 0.0):.1f}" for spent in self.spent.values()))
        others = (sum(seconds for name, seconds in spent.items() if name not in names) for spent in self.spent.values())
        table.add_row("others", *(f"{seconds:.1f}" for seconds in others))
        table.add_row("all", *(f"{sum(spent.values()):.1f}" for spent in self.spent.values()))
        return table

    def _watch(self) -> None:
        while not self._end.wait(LOOK):
            self._look()
        self._look()

    def _look(self) -> None:
        with self._lock:
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    self._add(process)

    def _add(self, process: psutil.Process) -> None:
        command, began = process.cmdline(), process.create_time()
        spent = self.spent.setdefault(self._side, {})
        for thread in process.threads():
            key, used = (process.pid, began, thread.id), thread.user_time + thread.system_time
            if added := used - self._seen.get(key, 0.0):
                name = _name(command, process.pid, thread.id)
                spent[name] = spent.get(name, 0.0) + added
                self._seen[key] = used


_entered: list[Profile] = []


def turn(side: object) -> None:
    """A benchmark's next measurement is of this side."""
    for profile in _entered:
        profile.turn(str(side))


def _name(command: list[str], pid: int, thread: int) -> str:
    if Path(command[0]).name != "java":
        modules = [word for word in command if re.fullmatch(r"[a-z_]+(\.\w+)+", word)]
        return f"Python: {' '.join(one.rpartition('.')[2] for one in modules) or 'driver'}"
    comm = _NUMBER.sub("", Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip())
    return f"JVM: {_JVM.get(comm, comm)}"
