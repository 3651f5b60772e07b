"""When a query is stuck, and what holds it: pure functions of what was seen of it.

The clock of a stall runs on lack of progress, not on the age of an epoch. Progress is anything that Spark counts (an
epoch committed, a task done, a record read), and the CPU time of the processes that work on the epoch. Waiting for
data, for a slot, or for the end of a pause is not being stuck.

Stacks then say what holds the query. They are read innermost first: the first code that is not Spark's, and the part
of Spark that called it, decide whether that is a function, a source or a sink of the user's, of a library, or the
system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_ext.failures.evidence import Frame, Owner
from spark_ext.failures.labels import FailureType, Origin
from spark_ext.failures.owners import owner_of_class, owner_of_file
from spark_ext.model.execution import Look, Phase

SHORTEST: Final = 5.0
"""A query that moves in shorter epochs is not stuck before this time, s."""

FIRST: Final = 60.0
"""Before the first epoch of a start has been committed, nothing is known of how long one takes, s."""

USUAL: Final = 2.0
"""A query is looked at more closely after so many times its longest recent epoch."""

WEAK: Final = 6
"""A process that wakes up now and then, and does next to nothing, is stuck after so many times the patience."""

BUSY: Final = 0.02
"""The share of a processor that counts as progress."""


def patience(recent_ms: Sequence[int], fixed: float | None) -> float:
    """How long a query may make no progress, s.

    Args:
        recent_ms: durations of its recent epochs, ms.
        fixed: a time that the user has set, s.
    """
    if fixed is not None:
        return fixed
    return max(SHORTEST, USUAL * max(recent_ms) / 1000) if recent_ms else FIRST


@dataclass(frozen=True)
class Marks:
    """What Spark counts of a query: any difference is progress."""

    epoch: int
    phase: Phase
    jobs: tuple[int, ...] = ()
    done: int = 0
    failed: int = 0
    running: int = 0
    records: int = 0


@dataclass(frozen=True)
class StallClock:
    """How long a query has made no progress."""

    marks: Marks | None = None
    since: float = 0.0
    """The last progress, s, monotonic."""

    def after(self, look: Look, marks: Marks, now: float, *, paused: bool) -> StallClock:
        """The clock after a further look.

        Args:
            look: what Spark says.
            marks: what it counts.
            now: s, monotonic.
            paused: whether a control event keeps the sources from reading.
        """
        waits = look.tasks is not None and look.tasks.running == 0 and look.tasks.waiting > 0
        not_stuck = look.phase in (Phase.IDLE, Phase.UNKNOWN) or waits or (paused and look.tasks is None)
        if self.marks != marks or not_stuck:
            return StallClock(marks, now)
        return self

    def moved(self, now: float) -> StallClock:
        """Processes that work on the epoch are busy."""
        return StallClock(self.marks, now)

    def still(self, now: float) -> float:
        """For how long there has been no progress, s."""
        return 0.0 if self.marks is None else now - self.since


@dataclass(frozen=True)
class Thread:
    """The stack of one thread."""

    name: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    runs: bool = False
    """Whether it uses a processor, as far as its JVM knows."""


@dataclass(frozen=True)
class WorkerSample:
    """A Python process that works for a query, at one moment."""

    host: str
    pid: int
    role: str
    """`task`, `planner` or `committer`."""
    uid: str = ""
    """Of the source or sink, if it is one's planner or committer."""
    cpu: float = 0.0
    """CPU time so far, s."""
    switches: int = 0
    """How often it has waited so far."""
    threads: tuple[Thread, ...] = ()

    @property
    def who(self) -> str:
        """For people."""
        what = f"{self.role} of '{self.uid}'" if self.uid else "Python worker"
        return f"{what}, process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Sample:
    """What was seen of a query at one moment."""

    workers: tuple[WorkerSample, ...] = ()
    driver: tuple[Thread, ...] = ()
    """The thread that runs the query in the driver's JVM."""
    python: tuple[Thread, ...] = ()
    """Threads of the driver's Python process that the JVM has called."""
    tasks: tuple[Thread, ...] = ()
    """Threads of executors that run its tasks."""
    silent: tuple[str, ...] = ()
    """Executors that do not answer."""


class Moves:
    """What two samples say about progress."""

    NOT = 0
    WEAKLY = 1
    YES = 2


def moves(before: Sample, after: Sample, seconds: float) -> int:
    """Whether the processes of a query do anything: one of the values of `Moves`.

    Args:
        before: a sample.
        after: a later one.
        seconds: the time between them.
    """
    known = {(one.host, one.pid): one for one in before.workers}
    pairs = [(known[one.host, one.pid], one) for one in after.workers if (one.host, one.pid) in known]
    cpu = sum(max(0.0, late.cpu - early.cpu) for early, late in pairs)
    if cpu >= BUSY * seconds or (after.workers and not pairs):
        return Moves.YES
    stacks = {one.name: one.frames for one in before.tasks}
    if any(one.runs and not _waits_natively(one) for one in after.tasks) or any(
        one.name in stacks and stacks[one.name] != one.frames for one in after.tasks
    ):
        return Moves.YES
    return Moves.WEAKLY if any(late.switches != early.switches for early, late in pairs) else Moves.NOT


_NATIVE: Final = ("socketRead", "read0", "poll", "epollWait", "park", "wait", "SocketDispatcher", "write0", "force0")


def _waits_natively(thread: Thread) -> bool:
    """Whether a thread that the JVM calls runnable waits for the operating system."""
    return bool(thread.frames) and any(word in thread.frames[0].function for word in _NATIVE)


@dataclass(frozen=True)
class Holder:
    """What holds a query."""

    type: FailureType
    origin: Origin
    what: str
    """In words, for people."""
    frame: Frame | None = None
    """The innermost frame that is to blame; None: there is none."""
    threads: tuple[Thread, ...] = field(default=(), compare=False)
    """The stacks that say so."""

    @property
    def labels(self) -> dict[str, str]:
        """For the incident."""
        found = {"type": self.type.value, "origin": self.origin.value}
        if self.frame is not None:
            found |= {"file": self.frame.file, "line": str(self.frame.line), "function": self.frame.function}
        return found


_READING: Final = ("plan_data_source_read.py", "python_streaming_source_runner.py", "_source_runner.py")
_WRITING: Final = ("write_into_data_source.py", "python_streaming_sink_runner.py", "commit_data_source_write.py")


def holder(phase: Phase, sample: Sample) -> Holder:
    """What holds a query that makes no progress.

    Args:
        phase: what Spark says that it does.
        sample: its stacks.
    """
    planners = [one for one in sample.workers if one.role == "planner"]
    committers = [one for one in sample.workers if one.role == "committer"]
    tasks = [one for one in sample.workers if one.role == "task"]
    if phase in (Phase.PLANNING, Phase.STARTING):
        return _first(map(_of_planner, planners)) or _of_driver(sample)
    if sample.silent:
        names = ", ".join(sample.silent)
        return Holder(FailureType.SYSTEM, Origin.SPARK, f"executor {names} does not answer")
    if sample.tasks or any(_task(one) for one in tasks):
        return _first(map(_task, tasks)) or _silent(tasks, sample) or _of_jvm_tasks(sample)
    found = _first(map(_of_committer, committers)) if _commits(sample) else None
    return found or _of_driver(sample)


def _silent(tasks: Sequence[WorkerSample], sample: Sample) -> Holder | None:
    """Spark waits for a Python worker that does not answer."""
    waits = any(_PYTHON in frame.function for thread in sample.tasks for frame in thread.frames)
    mute = next((one for one in tasks if not one.threads), None)
    if not waits or mute is None:
        return None
    return Holder(FailureType.SYSTEM, Origin.SPARK, f"the {mute.who} does not answer", threads=sample.tasks)


_PYTHON: Final = "org.apache.spark.api.python."


def _first(found: Iterable[Holder | None]) -> Holder | None:
    there = [one for one in found if one is not None]
    # Where the user's own line is known, it says most.
    return next((one for one in there if one.origin is Origin.USER), there[0] if there else None)


def _blamed(thread: Thread, owners: Sequence[Owner]) -> Frame | None:
    return next((frame for frame in thread.frames if frame.owner in owners), None)


def _called_by(thread: Thread, files: Sequence[str]) -> bool:
    return any(frame.file.endswith(tuple(files)) for frame in thread.frames)


def _operator(thread: Thread, kind: FailureType, who: str, threads: tuple[Thread, ...], uid: str = "") -> Holder:
    """A source or sink: the user's, if a frame of the user's is there."""
    users = _blamed(thread, [Owner.USER])
    frame = users or _blamed(thread, [Owner.LIBRARY, Owner.SPARK_EXT])
    origin = Origin.USER if users is not None else Origin.LIBRARY
    name = f"{kind.value.lower()}{f' {uid!r}' if uid else ''}"
    place = "" if frame is None else f" at {frame.place}"
    return Holder(kind, origin, f"the {name}{place} ({who})", frame, threads)


def _working(worker: WorkerSample) -> Iterable[Thread]:
    """The threads that Spark's own code has begun: others may belong to a library, or wait for these."""
    return [one for one in worker.threads if any(frame.owner is Owner.SPARK for frame in one.frames)]


def _task(worker: WorkerSample) -> Holder | None:
    """What a Python worker of a task does; None: it waits for Spark."""
    for thread in _working(worker):
        if not any(frame.owner in (Owner.USER, Owner.LIBRARY, Owner.SPARK_EXT) for frame in thread.frames):
            continue
        if _waits_for_spark(thread):
            continue
        if _called_by(thread, _READING):
            return _operator(thread, FailureType.SOURCE, worker.who, worker.threads)
        if _called_by(thread, _WRITING):
            return _operator(thread, FailureType.SINK, worker.who, worker.threads)
        users = _blamed(thread, [Owner.USER])
        if users is not None:
            what = f"a function at {users.place} ({worker.who})"
            return Holder(FailureType.USER_CODE, Origin.USER, what, users, worker.threads)
        frame = _blamed(thread, [Owner.LIBRARY, Owner.SPARK_EXT])
        if frame is not None and not _SERIALIZERS.search(frame.file):
            what = f"a library at {frame.place} ({worker.who})"
            return Holder(FailureType.USER_CODE, Origin.LIBRARY, what, frame, worker.threads)
    return None


_SERIALIZERS: Final = re.compile(r"[/\\](?:pyarrow|numpy|pandas|spark_ext[/\\](?:spark|failures))[/\\]")
_READS: Final = re.compile(r"pyspark[/\\].*(?:serializers|daemon|worker)\.py$|pyarrow[/\\]ipc\.py$")


def _waits_for_spark(thread: Thread) -> bool:
    """Whether it reads its input from Spark, rather than running anything."""
    inner = [frame for frame in thread.frames if frame.owner is not Owner.STANDARD]
    return bool(inner) and _READS.search(inner[0].file) is not None


def _of_planner(worker: WorkerSample) -> Holder | None:
    return next(
        (
            _operator(thread, FailureType.SOURCE, worker.who, worker.threads, worker.uid)
            for thread in _working(worker)
            if _called_by(thread, _READING) and not _waits_for_spark(thread)
        ),
        None,
    )


def _of_committer(worker: WorkerSample) -> Holder | None:
    return next(
        (
            _operator(thread, FailureType.SINK, worker.who, worker.threads, worker.uid)
            for thread in _working(worker)
            if _called_by(thread, _WRITING) and not _waits_for_spark(thread)
        ),
        None,
    )


_COMMITS: Final = ("PythonStreamingSinkCommitRunner", "PythonStreamingWrite", "PythonStreamingSink")


def _commits(sample: Sample) -> bool:
    return any(word in frame.function for thread in sample.driver for frame in thread.frames for word in _COMMITS)


_PARTS: Final = (
    (("PythonForeachBatch", "ForeachBatchSink"), FailureType.USER_CODE, "the function of foreachBatch"),
    (_COMMITS, FailureType.SINK, "the commit of the sink"),
    (("PythonStreamingSource", "PythonMicroBatchStream"), FailureType.SOURCE, "the planner of a Python source"),
    (("kafka010",), FailureType.SOURCE, "Spark's Kafka source"),
    (("sql.delta.", "io.delta."), FailureType.SINK, "a Delta table"),
    (("MetadataLog", "CheckpointFileManager", "OffsetSeqLog", "CommitLog"), FailureType.SYSTEM, "Spark's checkpoint"),
    (("streaming.state.", "rocksdb"), FailureType.SYSTEM, "the state store"),
    (("DataSourceV2", "latestOffset", "planInputPartitions"), FailureType.SOURCE, "the planner of a source"),
)
"""Parts of Spark by words in their classes, the more specific ones first."""


def _part(threads: Sequence[Thread]) -> tuple[FailureType, str, Frame] | None:
    for words, kind, name in _PARTS:
        for thread in threads:
            for frame in thread.frames:
                if any(word in frame.function for word in words):
                    return kind, name, frame
    return None


def _of_driver(sample: Sample) -> Holder:
    """What the thread that runs the query in the driver's JVM does."""
    found = _part(sample.driver)
    if found is None:
        return Holder(FailureType.SYSTEM, Origin.SPARK, "the driver's JVM", threads=sample.driver)
    kind, name, frame = found
    if kind is FailureType.USER_CODE:
        for thread in sample.python:
            users = _blamed(thread, [Owner.USER])
            if users is not None:
                return Holder(kind, Origin.USER, f"{name} at {users.place}", users, sample.python)
    origin = Origin.SPARK if kind is FailureType.SYSTEM else Origin.LIBRARY
    return Holder(kind, origin, f"{name} ({frame.place})", frame, sample.driver)


def _of_jvm_tasks(sample: Sample) -> Holder:
    """What the tasks do in the executors' JVMs, where no Python process of theirs does anything."""
    for thread in sample.tasks:
        users = _blamed(thread, [Owner.USER])
        if users is not None:
            return Holder(FailureType.USER_CODE, Origin.USER, f"a function at {users.place}", users, sample.tasks)
    found = _part(sample.tasks)
    if found is not None:
        kind, name, frame = found
        origin = Origin.SPARK if kind is FailureType.SYSTEM else Origin.LIBRARY
        return Holder(kind, origin, f"{name} ({frame.place})", frame, sample.tasks)
    inner = next((frame for thread in sample.tasks for frame in thread.frames), None)
    place = "" if inner is None else f" ({inner.place})"
    return Holder(FailureType.SYSTEM, Origin.SPARK, f"an executor{place}", inner, sample.tasks)


# -- stacks -----------------------------------------------------------------------------------------------------------

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


_JAVA: Final = re.compile(r"^\s*(?:at )?(?P<method>[\w.$/<>]+)\((?P<file>[^:)]*)(?::(?P<line>\d+))?\)")


def java_thread(name: str, state: str, stack: Iterable[str]) -> Thread:
    """A thread of a JVM.

    Args:
        name: its name.
        state: as the JVM calls it.
        stack: its lines, innermost first.
    """
    frames = []
    for line in stack:
        match = _JAVA.match(line)
        if match is not None:
            method = match["method"].rpartition("/")[2]
            owner = owner_of_class(method.rpartition(".")[0])
            frames.append(Frame(owner, match["file"], int(match["line"] or 0), method))
    return Thread(name, tuple(frames), state == "RUNNABLE")
