"""The watcher of one machine: answers requests for the stacks and CPU times of a job's Python processes.

    python watch_workers.py STATE NOTES

It is started by the first process that leaves a note (see `attendance`) and ends when none of them is alive. A request
is `samples/<id>.request` in the state directory; the answer is `samples/<id>.answer-<who>`. Needs the standard library,
psutil and this package's storage; for a state directory on an object store pyarrow as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from spark_ext.storage import Folder

EVERY: Final = 0.5  # how often requests are looked for in a local folder, s
EVERY_REMOTE: Final = 2.0  # how often on an object store, s
STACK_WITHIN: Final = 1.0  # how long a process may take to write its stacks, s
LONGEST: Final = 64_000  # bytes of a process's stacks that are passed on
OLDEST: Final = 60.0  # age at which a request is not answered any more, s


def samples_of(state: str) -> tuple[Folder, float]:
    """The folder of the requests, and how often to look."""
    from spark_ext.storage import LocalFolder, folder_at

    # A folder that is gone is not made again for an answer.
    samples = folder_at(f"{state.rstrip('/')}/samples", make=False)
    return samples, EVERY if isinstance(samples, LocalFolder) else EVERY_REMOTE


class Watcher:
    """Answers requests."""

    def __init__(self, samples: Folder, notes: Path) -> None:
        self._samples = samples
        self._notes = notes
        self._who = f"{socket.gethostname()}-{os.getpid()}"
        self._answered: set[str] = set()
        self._known: dict[int, psutil.Process] = {}

    def look(self) -> bool:
        """Answer what is asked; returns whether any process is there that could be asked."""
        there = dict(self._processes())
        names = self._samples.names() if there else []
        for name in names:
            asked = name.removesuffix(".request")
            if asked != name and asked not in self._answered:
                with suppress(OSError, ValueError):
                    request = json.loads(self._samples.read(name))
                    self._answered.add(asked)
                    self._answer(asked, request, there)
        return bool(there)

    def _processes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for path in self._notes.glob("*.json"):
            pid = int(path.stem)
            try:
                process = self._known.get(pid)
                if process is None:
                    process = psutil.Process(pid)
                    # Not a later process with the same number.
                    if process.create_time() > path.stat().st_mtime + 1:
                        raise psutil.NoSuchProcess(pid)
                    self._known[pid] = process
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    raise psutil.NoSuchProcess(pid)
                yield pid, json.loads(path.read_text())
            except psutil.Error:
                self._known.pop(pid, None)
                path.unlink(missing_ok=True)
                path.with_suffix(".stack").unlink(missing_ok=True)
            except (OSError, ValueError):
                continue

    def _answer(self, asked: str, request: dict[str, Any], there: dict[int, dict[str, Any]]) -> None:
        if time.time() - request["at"] > OLDEST:
            return
        found = {}
        for pid, note in there.items():
            if note["query"] == request["query"]:
                with suppress(psutil.Error, OSError):
                    found[pid] = {**note, **self._usage(pid), "stack": ""}
        if request["stacks"]:
            for pid, text in self._stacks(found).items():
                found[pid]["stack"] = text
        answer = {"host": socket.gethostname(), "processes": list(found.values())}
        self._samples.write(f"{asked}.answer-{self._who}", json.dumps(answer))

    def _usage(self, pid: int) -> dict[str, Any]:
        process = self._known[pid]
        times = process.cpu_times()
        return {"cpu": times.user + times.system, "switches": process.num_ctx_switches().voluntary}

    def _stacks(self, pids: Iterable[int]) -> dict[int, str]:
        """What processes write of their stacks; nothing of one that is frozen, for which no other one waits."""
        before: dict[int, int] = {}
        for pid in pids:
            with suppress(OSError):
                before[pid] = self._path(pid).stat().st_size
                os.kill(pid, signal.SIGUSR2)
        sizes = dict(before)
        by = time.monotonic() + STACK_WITHIN
        waiting = set(before)
        while waiting and time.monotonic() < by:
            time.sleep(0.02)
            for pid in list(waiting):
                now = self._path(pid).stat().st_size
                if now == sizes[pid] > before[pid]:
                    waiting.remove(pid)
                sizes[pid] = now
        return {pid: self._written(pid, begin) for pid, begin in before.items()}

    def _path(self, pid: int) -> Path:
        return self._notes / f"{pid}.stack"

    def _written(self, pid: int, begin: int) -> str:
        with self._path(pid).open("rb") as stream:
            stream.seek(begin)
            return stream.read(LONGEST).decode(errors="replace")


def main(state: str, notes: str) -> None:
    """Watch until nobody is left."""
    place = Path(notes)
    with (place / "watcher.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        samples, every = samples_of(state)
        watcher = Watcher(samples, place)
        empty = 0
        while empty < 4 and place.exists():
            # Twice more after the last one: another may be about to leave a note.
            try:
                empty = 0 if watcher.look() else empty + 1
            except OSError:
                empty += 0
            time.sleep(every)
        for path in place.glob("*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            place.rmdir()


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # run as a file: the package's folder, not this file's
    main(sys.argv[1], sys.argv[2])
