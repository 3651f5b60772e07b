"""What holds a query that makes no progress, by its stacks: pure functions of samples.

Stacks are read innermost first: the first code that is not Spark's, and the part of Spark that called it, decide
whether that is a function, a source or a sink of the user's, of a library, or the system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_ext.failures.evidence import Frame, Owner
from spark_ext.failures.labels import FailureType, Origin
from spark_ext.model.execution import Phase
from spark_ext.model.stacks import Sample, Thread, WorkerSample


@dataclass(frozen=True)
class Holder:
    """What holds a query."""

    type: FailureType
    origin: Origin
    what: str  # in words, for people
    frame: Frame | None = None  # the innermost frame to blame, if any
    threads: tuple[Thread, ...] = field(default=(), compare=False)  # the stacks that say so

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
    """What holds a query that makes no progress."""
    found = _holder(phase, sample)
    own = {one.name for one in (*sample.driver, *sample.tasks)}
    if sample.deadlocked and (found.origin is Origin.SPARK or any(one.name in own for one in sample.deadlocked)):
        return _deadlock(sample.deadlocked)  # else others are in it, and something else holds this one
    return found


def _holder(phase: Phase, sample: Sample) -> Holder:
    planners = [one for one in sample.workers if one.role == "planner"]
    committers = [one for one in sample.workers if one.role == "committer"]
    tasks = [one for one in sample.workers if one.role == "task"]
    # The partitions of an epoch are planned within it.
    if phase in (Phase.PLANNING, Phase.STARTING) or _is_in(sample, _PLANS):
        return _first(map(_of_planner, planners)) or _mute(planners) or _of_driver(sample)
    if sample.silent:
        names = ", ".join(sample.silent)
        return Holder(FailureType.SYSTEM, Origin.SPARK, f"executor {names} does not answer")
    if sample.tasks or any(_task(one) for one in tasks):
        return _first(map(_task, tasks)) or _silent(tasks, sample) or _unseen(sample) or _of_jvm_tasks(sample)
    if not _is_in(sample, _COMMITS):
        return _of_driver(sample)
    return _first(map(_of_committer, committers)) or _mute(committers) or _of_driver(sample)


def _deadlock(threads: tuple[Thread, ...]) -> Holder:
    """Threads of the driver's JVM wait for each other: the user's, if a frame of one is."""
    named = ", ".join(f"'{one.name}'" for one in threads)
    users = next((frame for one in threads if (frame := _blamed(one, [Owner.USER])) is not None), None)
    place = "" if users is None else f" at {users.place}"
    kind, origin = (FailureType.SYSTEM, Origin.SPARK) if users is None else (FailureType.USER_CODE, Origin.USER)
    return Holder(kind, origin, f"a deadlock in the driver's JVM{place}: {named} wait for each other", users, threads)


def _silent(tasks: Sequence[WorkerSample], sample: Sample) -> Holder | None:
    """Spark waits for a Python worker that does not answer."""
    return _mute(tasks, sample.tasks) if _waits_for_python(sample) else None


def _waits_for_python(sample: Sample) -> bool:
    return any(_PYTHON in frame.function for thread in sample.tasks for frame in thread.frames)


def _unseen(sample: Sample) -> Holder | None:
    """Spark waits for a Python worker that could not be asked: what it does is not known."""
    if not sample.no_stacks or not _waits_for_python(sample):
        return None
    found = _of_jvm_tasks(sample)
    return replace(found, what=f"{found.what}, which waits for a Python worker without a stack: {sample.no_stacks}")


def _mute(workers: Sequence[WorkerSample], threads: tuple[Thread, ...] = ()) -> Holder | None:
    """A process that is there, and has written no stack although it was asked to: it is frozen."""
    mute = next((one for one in workers if not one.threads and not one.no_stack), None)
    if mute is None:
        return None
    return Holder(FailureType.SYSTEM, Origin.SPARK, f"the {mute.who} does not answer", threads=threads)


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
_PLANS: Final = ("PythonStreamingSource", "PythonMicroBatchStream")


def _is_in(sample: Sample, words: Sequence[str]) -> bool:
    """Whether the driver's thread of the query is in a part of Spark."""
    return any(word in frame.function for thread in sample.driver for frame in thread.frames for word in words)


_PARTS: Final = (
    (("PythonForeachBatch", "ForeachBatchSink"), FailureType.USER_CODE, "the function of foreachBatch"),
    (_COMMITS, FailureType.SINK, "the commit of the sink"),
    (_PLANS, FailureType.SOURCE, "the planner of a Python source"),
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
    # A frame of the JDK says less than who called it.
    frames = (frame for thread in sample.tasks for frame in thread.frames)
    inner = next((frame for frame in frames if frame.owner is not Owner.STANDARD), None)
    place = "" if inner is None else f" ({inner.place})"
    return Holder(FailureType.SYSTEM, Origin.SPARK, f"an executor{place}", inner, sample.tasks)
