"""The Python processes that this application's JVM has started on the driver's own machine, and what they do.

They are found in any session, by their ancestors alone: below a JVM that is an ancestor or a descendant of this
process. In local mode those are all Python workers, on a cluster the planners and committers. py-spy
(`spark-ext[stacks]`, and the kernel has to allow it) reads their stacks from outside without stopping them, also while
a function in C runs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import psutil

from spark_ext.masking import mask
from spark_ext.model.stacks import Thread, WorkerSample, module_of, role_of, threads_of_py_spy
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN: Final = 5.0  # how long the stacks of all processes may take, s
MOST: Final = 32  # processes that are looked at

PY_SPY_WITHIN: Final = 3.0  # how long py-spy may take for one process, s
_LONGEST: Final = 200

NICE: Final = "10"

NOT_INSTALLED: Final = "py-spy is not installed (spark-ext[stacks])"

_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_STATUS: Final = Path("/proc/self/status")
_CAP_SYS_PTRACE: Final = 1 << 19


class LocalWorkers:
    """Finds and samples them; for one thread at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._driver = _own_jvm(backend_of(spark).jvm_pid(spark))
        self._host = socket.gethostname()
        self._py_spy = PySpy.here()

    @property
    def refused(self) -> str:
        """Why no stacks can be had; "" if they can."""
        return self._py_spy.refused

    def take(self, *, besides: Collection[int], alone: Collection[str]) -> tuple[WorkerSample, ...]:
        """What those do that leave no notes."""
        found, by = [], time.monotonic() + WITHIN
        for process, role in [one for one in self._below() if one[0].pid not in besides][:MOST]:
            with suppress(psutil.Error):
                times, switches = process.cpu_times(), process.num_ctx_switches().voluntary
                threads, why = self._stacks(process) if time.monotonic() < by else ((), "others have taken too long")
                used = times.user + times.system, switches
                found.append(WorkerSample(self._host, process.pid, role, "", *used, threads, why, role in alone))
        return tuple(found)

    def completed(self, workers: Collection[WorkerSample]) -> tuple[WorkerSample, ...]:
        """Workers that leave notes, with the stacks of those that were asked and have not answered."""
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
        return [] if self._driver is None else list(started_by(self._driver))


def started_by(jvm: int) -> Iterator[tuple[psutil.Process, str]]:
    """The Python processes that a JVM has started for Spark, and that its daemons have forked, with their roles.

    Not what these have started in turn, and not the daemons: they and the watcher (see `watch_workers`) wake up each
    second. Not this process either, which `spark-submit` has the JVM start.
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
    with suppress(psutil.Error):
        return [process for process in psutil.Process(pid).children() if process.uids().real == os.getuid()]
    return []


def _is_python(command: Sequence[str]) -> bool:
    return bool(command) and PurePath(command[0]).name.startswith("python")


def _own_jvm(pid: int | None) -> int | None:
    """The JVM's process, if it is one of this machine and this application; None otherwise."""
    with suppress(psutil.Error):
        mine = psutil.Process()
        if pid in {process.pid for process in [*mine.parents(), *mine.children(recursive=True)]}:
            return pid
    return None


@dataclass(frozen=True)
class PySpy:
    """py-spy, if this machine has it and allows it."""

    program: str  # its path; "" if it is not to be used
    refused: str = ""  # why it is not

    @classmethod
    def here(cls) -> PySpy:
        """What this interpreter's environment has, and what the kernel allows; reads three small files."""
        program = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
        if program is None:
            return cls("", NOT_INSTALLED)
        if not sys.platform.startswith("linux"):
            return cls("", f"py-spy needs privileges on {sys.platform}")
        refused = ptrace_refused(_text(_SCOPE), _text(_STATUS))
        return cls("" if refused else program, refused)

    def threads(self, pid: int) -> tuple[tuple[Thread, ...], str]:
        """The stacks of a process, and "" or why they are missing."""
        if not self.program:
            return (), self.refused
        nice = shutil.which("nice")
        command = [*([nice, "-n", NICE] if nice else []), self.program, "dump", "--pid", str(pid)]
        try:
            done = subprocess.run(
                [*command, "--json", "--nonblocking"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PY_SPY_WITHIN,
                check=False,
                text=True,
                errors="replace",
            )
            if done.returncode == 0:
                return threads_of_py_spy(mask(done.stdout)), ""
            words = " ".join(done.stderr.split())
        except subprocess.TimeoutExpired:
            words = f"it has not answered within {PY_SPY_WITHIN:g} s"
        except (OSError, ValueError) as problem:
            words = f"{type(problem).__name__}: {problem}"
        return (), f"py-spy has failed for process {pid}: {mask(words)[:_LONGEST]}"


def ptrace_refused(scope: str, status: str) -> str:
    """Why this process may not read the memory of others of its user, by the setting of Linux's module Yama; or ""."""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    # Its children may only be read by their parents, which py-spy is not.
    level = int(scope.strip() or 0)
    if level == 0 or (level < 3 and int(effective, 16) & _CAP_SYS_PTRACE):
        return ""
    return f"ptrace is not allowed: kernel.yama.ptrace_scope is {level}"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
