"""Makes Spark's Python workers faster: without delays on their sockets, and with less garbage collection."""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from spark_ext.failures import record
from spark_ext.spark.watching.attendance import attend_task

_REUSED: Final = "SPARK_REUSE_WORKER"  # environment variable that Spark sets for workers that it reuses

_loaded = 0  # number of modules at the last call of `gc.freeze`


def begin_task() -> None:
    """Let the JVM send the rows at once. To be called at the beginning of a task, before its first row is requested.

    The JVM sends a task and then its rows. Nagle's algorithm holds back a few rows until this side's kernel has
    acknowledged the task, which the kernel delays by up to 40 ms so as to combine the acknowledgement with an answer.
    Linux can switch that delay off.

    Does nothing in a process that is not one of Spark's workers. Failures of this one then carry a record.
    """
    record.install()
    attend_task()
    if _REUSED in os.environ and hasattr(socket, "TCP_QUICKACK"):
        _set(socket.TCP_QUICKACK)  # the kernel does not keep it: it has to be set for each task


def tune() -> None:
    """Send answers at once, and collect less garbage. To be called when a task, planning or commit ends.

    It has to precede the worker's answer. Does nothing in a process that is not one of Spark's workers, and next to
    nothing from the second call on.
    """
    global _loaded
    if _REUSED not in os.environ or len(sys.modules) == _loaded:
        return
    # A worker answers in two or three small writes, while the JVM waits for the last one and has nothing to send.
    _set(socket.TCP_NODELAY)
    _freeze()
    _loaded = len(sys.modules)


def end_quietly() -> None:
    """Let this process print no stack when it ends because the JVM has closed the connection. Called by a planner.

    pyspark answers the end of its input with the failure that this was for it, into the same closed connection.
    """
    if _REUSED in os.environ and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_unless_closed


def _show_unless_closed(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    found: BaseException | None = problem
    while isinstance(found, ConnectionError):
        found = found.__context__
    if found is problem or not isinstance(found, EOFError):
        sys.__excepthook__(kind, problem, trace)


def _set(option: int) -> None:
    """Set a TCP option on each connection of this process; only the one to the JVM matters."""
    try:
        numbers = [int(opened.name) for opened in Path("/dev/fd").iterdir()]
    except OSError:
        return  # a system without that directory: only slower
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=number)
        except OSError:
            continue  # the descriptor of the listing itself, closed since
        try:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                with suppress(OSError):  # a connection that was just closed
                    found.setsockopt(socket.IPPROTO_TCP, option, 1)
        finally:
            found.detach()


def _freeze() -> None:
    """Collect garbage once more, then exclude all objects that exist by now from later collections.

    Spark's daemon makes each worker collect garbage, all generations, before it is reused. Modules are most of what a
    worker holds: with pyspark, pyarrow and a sink's client 70,000 objects, which cost 15 ms of CPU time in each of four
    processes per epoch. They never become garbage. A frozen object is still freed with its last reference; only a
    frozen cycle that is dropped later is never freed.
    """
    gc.collect()
    gc.freeze()
