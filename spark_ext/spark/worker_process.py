"""What a Python worker process of Spark's can be spared: delays of its socket, and collections of its modules."""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_REUSED: Final = "SPARK_REUSE_WORKER"
"""Environment variable that Spark sets for workers that it uses again."""

_loaded = 0
"""How many modules there were when the collector was last told."""


def begin_task() -> None:
    """At the beginning of a task, before its first row is asked for: have the JVM send it at once.

    The JVM sends a task and then its rows. Nagle's algorithm holds a few rows back until this side's kernel has
    confirmed the task, which it puts off for 40 ms in the hope of an answer to send it with. Linux can be told not to.

    Does nothing in a process that is not a worker of Spark's.
    """
    if _REUSED in os.environ and hasattr(socket, "TCP_QUICKACK"):
        _set(socket.TCP_QUICKACK)  # not kept by the kernel: it has to be said again for each task


def tune() -> None:
    """At the end of a task, a planning or a commit, before the worker answers: send at once, and collect less.

    Does nothing in a process that is not a worker of Spark's, and next to nothing from the second call on.
    """
    global _loaded
    if _REUSED not in os.environ or len(sys.modules) == _loaded:
        return
    # A worker answers in two or three small writes, while the JVM waits for the last and has nothing to send.
    _set(socket.TCP_NODELAY)
    _freeze()
    _loaded = len(sys.modules)


def _set(option: int) -> None:
    """Switch a TCP option on for each connection of this process, of which the one to the JVM is what matters."""
    try:
        numbers = [int(opened.name) for opened in Path("/dev/fd").iterdir()]
    except OSError:
        return  # a system without that folder: slower, and nothing worse
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=number)
        except OSError:
            continue  # the folder's own, closed since
        try:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                with suppress(OSError):  # a connection that has just ended
                    found.setsockopt(socket.IPPROTO_TCP, option, 1)
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
