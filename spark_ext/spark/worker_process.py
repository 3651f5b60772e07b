"""What a Python worker process of Spark's can be spared: delays of its socket, and collections of its modules."""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Final

_REUSED: Final = "SPARK_REUSE_WORKER"
"""Environment variable that Spark sets for workers that it uses again."""

_loaded = 0
"""How many modules there were when the collector was last told."""


def tune() -> None:
    """Make this worker quicker for small epochs; at the end of a task, a planning or a commit, before it answers.

    Does nothing in a process that is not a worker of Spark's, and next to nothing from the second call on.
    """
    global _loaded
    if _REUSED not in os.environ or len(sys.modules) == _loaded:
        return
    _send_at_once()
    _freeze()
    _loaded = len(sys.modules)


def _send_at_once() -> None:
    """Switch Nagle's algorithm off on connections, of which the one to the JVM is what matters.

    A worker answers in two or three small writes. Each is held back until the JVM's kernel has confirmed the one
    before, which it puts off for 40 ms since the JVM has nothing to say: it waits for the rest of the answer.
    """
    for opened in list(Path("/dev/fd").iterdir()):
        number = int(opened.name)
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=number)
        except OSError:
            continue  # the folder's own, closed since
        try:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        finally:
            found.detach()


def _freeze() -> None:
    """Take what is loaded by now out of the garbage collector's sight, after one last collection.

    Spark's daemon makes each worker collect garbage, all generations, before it is used again. Modules are most of what
    a worker holds: with pyspark, pyarrow and a sink's client 70,000 objects, 15 ms of processor time, in four processes
    for each epoch. They do not become garbage. What is frozen is still freed when its last reference goes; only a cycle
    that was frozen and is dropped later stays.
    """
    gc.collect()
    gc.freeze()
