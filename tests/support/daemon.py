"""Spark's daemon that forks Python workers, with what the workers of the tests' session need imported beforehand.

A worker is forked for each schema, planning of a batch read, and commit; a planner or committer of a query too, see
`planners/sitecustomize.py`. Importing takes longer than their work.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from typing import Final

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.streaming.python_streaming_source_runner
import pyspark.sql.worker.python_streaming_sink_runner
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_ext.sinks.runtime.adapter
import spark_ext.sources.runtime.adapter
import spark_ext.sources.runtime.reader  # noqa: F401
from spark_ext.failures.in_worker import install
from spark_ext.spark import worker_times
from spark_ext.spark.attendance import attend_all

PLANNERS: Final = "SPARK_EXT_TESTS_PLANNERS"
"""Environment variable: name of the abstract socket where planners and committers are asked for."""


def fork_planners(name: str) -> None:
    """Fork a process that forks planners and committers until Spark closes its standard input.

    It is no descendant of the JVM, where the product looks for processes that work for queries.

    Args:
        name: of its socket; if it is taken, another daemon of this JVM has such a process.
    """
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    os.setpgid(0, 0)
    if os.fork() != 0:
        os._exit(0)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listening.bind(f"\0{name}")
    except OSError:
        os._exit(0)
    listening.listen(128)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    events = select.poll()
    events.register(0, 0)  # its end alone
    events.register(listening, select.POLLIN)
    while all(number != 0 for number, _ in events.poll()):
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            become_planner(asking)
            sys.exit()
        asking.close()
    os._exit(0)


def become_planner(asking: socket.socket) -> None:
    """Do what the process on the other side was started for, and end with it."""
    _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        return
    message, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
    start = json.loads(message)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(asking, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asking, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(asking, fcntl.F_SETFL, os.O_ASYNC)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(start["environment"])
    sys.path[:] = [sys.path[0], *start["path"]]  # `python -m` puts the working directory first
    sys.modules.pop(start["module"], None)  # as in a new process, where it is only `__main__`
    runpy.run_module(start["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    install()
    if PLANNERS in os.environ:
        fork_planners(os.environ[PLANNERS])
    attend_all()
    worker_times.install()
    manager()
