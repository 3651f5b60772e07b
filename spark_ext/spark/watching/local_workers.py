"""The Python processes that this application's JVM has started on the driver's own machine, and what they do.

They are there in any session, also in one whose workers leave no notes (see `attendance`). Whether a process belongs to
this application is decided by its ancestors alone: it is below the JVM, and the JVM is an ancestor or a descendant of
this process. In local mode those are all Python workers, on a cluster the planners and committers.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import psutil

from spark_ext.model.stacks import Thread, WorkerSample, module_of, role_of
from spark_ext.spark.jvm import jvm_pid
from spark_ext.spark.watching.py_spy import PySpy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN: Final = 5.0
"""How long the stacks of all processes may take, s."""

MOST: Final = 32
"""So many processes are looked at."""


class LocalWorkers:
    """Finds and samples them; for one thread at a time.

    Args:
        spark: any session of the application.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = _own_jvm(jvm_pid(spark))
        self._host = socket.gethostname()
        self._py_spy = PySpy.here()

    @property
    def refused(self) -> str:
        """Why no stacks can be had; "" if they can."""
        return self._py_spy.refused

    def take(self, *, besides: Collection[int], alone: Collection[str]) -> tuple[WorkerSample, ...]:
        """What those do that leave no notes.

        Args:
            besides: processes that do, of any query.
            alone: roles of those that cannot work for another query.
        """
        found, by = [], time.monotonic() + WITHIN
        for process, role in [one for one in self._below() if one[0].pid not in besides][:MOST]:
            with suppress(psutil.Error):
                times, switches = process.cpu_times(), process.num_ctx_switches().voluntary
                threads, why = self._stacks(process) if time.monotonic() < by else ((), "others have taken too long")
                cpu = times.user + times.system
                found.append(
                    WorkerSample(self._host, process.pid, role, "", cpu, switches, threads, why, role in alone)
                )
        return tuple(found)

    def completed(self, workers: Collection[WorkerSample]) -> tuple[WorkerSample, ...]:
        """Workers that leave notes, with the stacks of those that were asked and have not answered.

        Args:
            workers: as they have answered.
        """
        if self.refused or all(one.threads for one in workers):
            return tuple(workers)
        below = {process.pid: process for process, _ in self._below()}
        found = []
        for one in workers:
            process = below.get(one.pid) if one.host == self._host and not one.threads else None
            found.append(one if process is None else replace(one, threads=self._stacks(process)[0]))
        return tuple(found)

    def _stacks(self, process: psutil.Process) -> tuple[tuple[Thread, ...], str]:
        with suppress(psutil.Error):
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return (), ""  # its stack does not say why it stands still
            return self._py_spy.threads(process.pid)
        return (), "it has ended"

    def _below(self) -> list[tuple[psutil.Process, str]]:
        return [] if self._jvm is None else list(started_by(self._jvm))


def started_by(jvm: int) -> Iterator[tuple[psutil.Process, str]]:
    """The Python processes that a JVM has started for Spark, and that its daemons have forked, with their roles.

    Not what these have started in turn, and not the daemons: they and the watcher (see `watch_workers`) wake up each
    second. Not this process either, which `spark-submit` has the JVM start.

    Args:
        jvm: its process.
    """
    for process in _children(jvm):
        with suppress(psutil.Error):
            command = process.cmdline()
            if process.pid == os.getpid() or not _is_python(command):
                continue
            if "daemon" in module_of(command):
                yield from ((worker, "task") for worker in _children(process.pid))
            elif module_of(command):
                yield process, role_of(command)


def _children(pid: int) -> list[psutil.Process]:
    """Those of this user."""
    with suppress(psutil.Error):
        return [process for process in psutil.Process(pid).children() if process.uids().real == os.getuid()]
    return []


def _is_python(command: Sequence[str]) -> bool:
    return bool(command) and PurePath(command[0]).name.startswith("python")


def _own_jvm(pid: int) -> int | None:
    """The JVM's process, if it is one of this machine and this application; None otherwise."""
    with suppress(psutil.Error):
        mine = psutil.Process()
        if pid in {process.pid for process in [*mine.parents(), *mine.children(recursive=True)]}:
            return pid
    return None
