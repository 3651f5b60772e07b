"""Stacks of threads and samples of processes, and how they are read from what Python and a JVM write. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from spark_ext.failures.evidence import Frame
from spark_ext.failures.owners import owner_of_class, owner_of_file


@dataclass(frozen=True)
class Thread:
    """The stack of one thread."""

    name: str
    frames: tuple[Frame, ...] = ()  # innermost first
    runs: bool = False  # whether it uses a processor, according to its JVM
    cpu: float | None = field(default=None, compare=False)  # so far, s, of a thread of the driver's Python


@dataclass(frozen=True)
class WorkerSample:
    """A Python process that works for a query, at one moment."""

    host: str
    pid: int
    role: str  # `task`, `planner` or `committer`
    uid: str = ""  # of the source or sink, if it is one's planner or committer
    cpu: float = 0.0  # CPU time so far, s
    switches: int = 0  # how often it has waited so far
    threads: tuple[Thread, ...] = ()
    no_stack: str = ""  # why it could not be asked for its stack; "" if it was
    alone: bool = True  # whether it works for this query, or else for any of several that run

    @property
    def who(self) -> str:
        """For people."""
        what = f"{self.role} of '{self.uid}'" if self.uid else "Python worker"
        return f"{what}, process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Sample:
    """What was seen of a query at one moment."""

    workers: tuple[WorkerSample, ...] = ()
    driver: tuple[Thread, ...] = ()  # the thread that runs the query in the driver's JVM
    python: tuple[Thread, ...] = ()  # threads of the driver's Python process that the JVM has called
    tasks: tuple[Thread, ...] = ()  # threads of executors that run its tasks
    silent: tuple[str, ...] = ()
    deadlocked: tuple[Thread, ...] = ()  # threads of the driver's JVM that wait for each other for good
    no_stacks: str = ""  # why Python workers that may work for it could not be asked for their stacks; "" if all were


BUSY: Final = 0.02  # the share of a processor that counts as progress

_THREAD: Final = re.compile(
    r"^(?:Current thread|Thread) (?P<name>0x[0-9a-f]+(?: \[[^\]]*\])?) \(most recent call first\):"
)
_FILE: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def threads_of(text: str) -> tuple[Thread, ...]:
    """The threads of what Python's faulthandler has written."""
    found: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        begin = _THREAD.match(line)
        if begin is not None:
            found.append((begin["name"], []))
            continue
        match = _FILE.match(line)
        if match is not None and found:
            number = 0 if match["line"] == "???" else int(match["line"])
            file = match["file"]
            found[-1][1].append(Frame(owner_of_file(file), file, number, match["function"]))
    return tuple(Thread(name, tuple(frames)) for name, frames in found)


def threads_of_py_spy(text: str) -> tuple[Thread, ...]:
    """The threads of what py-spy has written about a process, as JSON."""
    found = []
    try:
        for one in json.loads(text):
            frames = tuple(
                Frame(owner_of_file(frame["filename"]), frame["filename"], frame["line"], frame["name"])
                for frame in one["frames"]
            )
            name = one["thread_name"] or hex(one["thread_id"])
            found.append(Thread(name, frames, bool(one["active"])))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"these are no stacks of py-spy: {problem!r}") from problem
    return tuple(found)


def module_of(command: Sequence[str]) -> str:
    """The module that a Python process runs, by its command line; "" if it runs something else."""
    return next((word for before, word in pairwise(command) if before == "-m"), "")


def role_of(command: Sequence[str]) -> str:
    """What a Python process does that Spark has started, by its command line: `task`, `planner` or `committer`."""
    module = module_of(command)
    if module.endswith("sink_runner"):
        return "committer"
    return "planner" if module.endswith(("source_runner", "plan_data_source_read")) else "task"


def certain(sample: Sample) -> Sample:
    """A sample without the workers that may work for another query."""
    return replace(sample, workers=tuple(one for one in sample.workers if one.alone))


def unmoved(before: Sample, after: Sample, seconds: float) -> Sample:
    """The later one of two samples, without the workers that may work for another query and have moved between them."""
    known = {(one.host, one.pid): one for one in before.workers}

    def stays(worker: WorkerSample) -> bool:
        earlier = known.get((worker.host, worker.pid))
        if worker.alone or earlier is None:
            return worker.alone
        return worker.cpu - earlier.cpu < BUSY * seconds and worker.threads == earlier.threads

    return replace(after, workers=tuple(one for one in after.workers if stays(one)))


_JAVA: Final = re.compile(r"^\s*(?:at )?(?P<method>[\w.$/<>@+-]+)\((?P<file>[^:)]*)(?::(?P<line>\d+))?\)")


def java_thread(name: str, state: str, stack: Iterable[str]) -> Thread:
    """A thread of a JVM."""
    frames = []
    for line in stack:
        match = _JAVA.match(line)
        if match is not None:
            method = match["method"].rpartition("/")[2]
            owner = owner_of_class(method.rpartition(".")[0])
            frames.append(Frame(owner, match["file"], int(match["line"] or 0), method))
    return Thread(name, tuple(frames), state == "RUNNABLE")
