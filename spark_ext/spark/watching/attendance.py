"""How a Python process that works for a query can be asked for its stack, wherever it runs.

Few have the privilege to attach to a process. So each one that works for a query of a job with a monitor leaves a note
beside those of its machine, `<pid>.json`, and has faulthandler write its stacks to `<pid>.stack` at SIGUSR2, also while
it is in a C extension. A watcher per machine and state directory answers requests there; see `watch_workers`. A note
costs a small file per process and query; without a monitor no file is written and no process runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from spark_ext.storage import LocalFolder
from spark_ext.worker_internals import task_property

PROPERTY: Final = "spark_ext.samples"  # local property of a query's tasks: the job's state directory
QUERY: Final = "spark_ext.query"  # local property: the query's uid
# Run as a file: it needs nothing of this package, whose import would cost each machine a second.
WATCHER: Final = Path(__file__).with_name("watch_workers.py")
LOCK: Final = "watcher.lock"


@dataclass
class _Present:
    """For whom this process can be asked at present: a worker serves the tasks of one query after those of another."""

    state: str
    note: str
    place: Path
    stacks: IO[bytes]

    def leave(self) -> None:
        """Be asked for this job no more, so that its watcher can end. Stacks go elsewhere by now."""
        self.stacks.close()
        for suffix in ("json", "stack"):
            (self.place / f"{os.getpid()}.{suffix}").unlink(missing_ok=True)


_present: _Present | None = None


def attended(state: str) -> bool:
    """Whether processes of this machine can be asked."""
    return any(_folder(state).glob("*.json"))


def attending(state: str) -> frozenset[int]:
    """The processes of this machine that can be asked, for any query."""
    return frozenset(int(path.stem) for path in _folder(state).glob("*.json") if path.stem.isdigit())


def _folder(state: str) -> Path:
    name = hashlib.sha256(state.rstrip("/").encode()).hexdigest()[:20]
    return Path(tempfile.gettempdir()) / f"spark-ext-stacks-{os.getuid()}-{name}"


def folder_of(state: str) -> Path:
    """Where the processes of this machine leave their notes for a job, private to the user."""
    place = _folder(state)
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or place.is_symlink():
        raise PermissionError(f"{place} is not private to this user")
    return place


def attend_task() -> None:
    """Let the process of the present task be asked, if the task's query is one of a job with a monitor."""
    state = task_property(PROPERTY)
    if state:
        attend("task", state, task_property(QUERY) or "")


def attend(role: str, state: str, query: str, uid: str = "") -> None:
    """Let this process, a `task`, `planner` or `committer`, be asked for its stack.

    What goes wrong is ignored: only the stack will be missing.
    """
    global _present
    note = json.dumps({"pid": os.getpid(), "role": role, "query": query, "uid": uid})
    if _present is not None and (_present.state, _present.note) == (state, note):
        return
    with suppress(OSError, ValueError):
        place = folder_of(state)
        if _present is None or _present.state != state:
            before, _present = _present, _Present(state, "", place, _listening(place))
            if before is not None:
                before.leave()
        LocalFolder(place, make=False).write(f"{os.getpid()}.json", note)
        if not _present.note:
            watch(state, place)
        _present.note = note


def _listening(place: Path) -> IO[bytes]:
    import faulthandler

    stacks = (place / f"{os.getpid()}.stack").open("wb", buffering=0)
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    return stacks


def watch(state: str, place: Path) -> None:
    """Start the watcher of this machine, unless it runs."""
    with (place / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # it runs, and holds the lock
        fcntl.flock(lock, fcntl.LOCK_UN)
    # Two that are started at once: the second one finds the lock taken, and ends.
    subprocess.Popen(
        [sys.executable, "-E", "-s", str(WATCHER), state, str(place)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        close_fds=True,
    )
