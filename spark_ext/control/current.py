"""The epoch that the calling code belongs to, and what is in force in it.

A job gives the thread that starts a query some local properties, which reach every task of the query. With the number
of the epoch, which Spark adds, a task finds the offsets of its epoch in Spark's log, and by them its stamp: two small
files, read once per process and epoch, the same in all processes. No table of the ledger is read: delta-rs fails in a
process that was forked from one that has used it.

Planners and committers are no tasks; the runtime says for which epoch it calls them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, cached_property, lru_cache
from typing import Final

from spark_ext.control import stamps
from spark_ext.errors import EnvironmentProblem, StateError
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.offsets import Json
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.backend.process import local_property
from spark_ext.spark.logs.spark_log import SparkLog, parse_offsets
from spark_ext.spark.session import registry
from spark_ext.spark.watching import attendance
from spark_ext.worker_internals import in_task, task_property

CHECKPOINT: Final = "spark_ext.checkpoint"  # local property: path or URI of the query's checkpoint directory
QUERY: Final = attendance.QUERY  # local property: the query's uid
JOB: Final = "spark_ext.job"  # local property: the job's name
START: Final = "spark_ext.start"  # local property: a start of the query in Spark; later ones are greater

EPOCH: Final = "streaming.sql.batchId"  # local property of Spark's: the number of the epoch


@dataclass(frozen=True)
class BroadcastEvent:
    """An event of the user's own, as functions see it."""

    type: str
    value: Json
    sequence: int
    """Its place in the one order of the job's events."""
    event_id: str
    at: datetime
    """When it was accepted, UTC."""


class UserConfiguration(Mapping[str, Json]):
    """The user's keys and values in an epoch; cannot be changed. Lists and dicts come as copies."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Json:
        found = self._values[key]
        return copy.deepcopy(found) if isinstance(found, (dict, list)) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


@dataclass(frozen=True)
class EpochContext:
    """An epoch of a query in one of its starts."""

    job: str
    query: str
    checkpoint: str  # path or URI of the query's checkpoint directory
    start: str
    number: int

    @property
    def operator(self) -> str:
        """Job, query and epoch, for messages."""
        return f"job '{self.job}', query '{self.query}', epoch {self.number}"


@dataclass(frozen=True)
class InForce:
    """What is in force where the calling code runs."""

    query: str
    operator: str  # for messages
    configuration: Configuration
    found: Callable[[], tuple[Mapping[str, Json], ...]]  # events that take effect with the epoch, when needed

    @cached_property
    def user(self) -> UserConfiguration:
        """The user's configuration."""
        return UserConfiguration(self.configuration.user(self.query))

    @cached_property
    def events(self) -> tuple[BroadcastEvent, ...]:
        """The user's events, in their order."""
        return tuple(
            BroadcastEvent(
                one["type"],
                one["value"],
                one["sequence"],
                one["event_id"],
                datetime.fromtimestamp(one["at_ms"] / 1000, tz=timezone.utc),
            )
            for one in self.found()
        )

    @cached_property
    def levels(self) -> Mapping[str, str]:
        """The log levels that were requested, by name of the logger; "" is the root."""
        slots = self.configuration.standing.get("log_level", {}).get("job", {})
        return {name: one["level"] for name, one in slots.items()}


_entered: Callable[[], InForce] | None = None  # in a planner or committer: for which epoch it is called

_planning = False  # whether this process is a planner in a call of Spark's; nothing is in force for one driven by hand

_last: tuple[str | None, str | None, InForce | None] = (None, None, None)  # what the last task found: serves its epoch


def current() -> InForce:
    """What is in force in the epoch to which the calling code belongs."""
    found = in_worker()
    if found is not None:
        return found
    return _in_force(of_driver() or _refuse("configuration and events are those of an epoch"))


def in_worker() -> InForce | None:
    """Like `current`, in a process of Spark's other than the driver; None elsewhere, and outside of any epoch."""
    global _last
    if _entered is not None:
        return _entered()
    if not in_task():
        return None
    start, number = task_property(START), task_property(EPOCH)
    if start == _last[0] and number == _last[1]:
        return _last[2]
    place = of_task()
    found = None if place is None else _in_force(place)
    _last = start, number, found
    return found


def of_task() -> EpochContext | None:
    """The epoch of the task that the calling code is a part of; None outside of tasks of jobs."""
    return _place(task_property)


def require_environment(operator: str) -> None:
    """In a task: raise an error if it is a job's, and the variables that `register` gives to workers are missing.

    Without them neither planners nor tasks know their job. A planner cannot tell that from a query outside of jobs.
    """
    if registry.folder() is None and of_task() is not None:
        raise EnvironmentProblem(
            f"this session starts its Python workers without the environment variable {registry.VARIABLE}, which "
            "register gave it, so that they do not know the job that they work for",
            operator=operator,
            kept="nothing of this epoch was committed",
            do="use a session that passes its environment on to the workers, or one of Spark Connect, where jobs "
            "need no such variables",
        )


def of_driver() -> EpochContext | None:
    """The epoch whose `foreachBatch` function the calling thread of the driver runs; None for any other thread."""
    return _place(local_property)


def _place(given: Callable[[str], str | None]) -> EpochContext | None:
    start, number = given(START), given(EPOCH)
    if not start or not number:
        return None
    return EpochContext(given(JOB) or "", given(QUERY) or "", given(CHECKPOINT) or "", start, int(number))


@contextmanager
def planning() -> Iterator[None]:
    """In a source's planner: a call of Spark's, in which `planned` says what is in force."""
    global _entered, _planning
    _planning = True
    try:
        yield
    finally:
        _entered, _planning = None, False


def planned(job: str, query: str, configuration: Callable[[], Configuration], stamp: Stamp | None = None) -> None:
    """Say what is in force in the epoch that is being planned, until `planning` ends; nothing outside of it.

    Without a stamp the epoch obeys no further events.
    """
    global _entered
    if not _planning:
        return
    broadcasts = stamp.broadcasts if stamp is not None else ()
    operator = f"job '{job}', query '{query}', the epoch that is being planned"
    _entered = cache(lambda: InForce(query, operator, configuration(), lambda: broadcasts))


@contextmanager
def committing(place: EpochContext) -> Iterator[None]:
    """In a sink's committer: the commit of an epoch."""
    global _entered
    _entered = cache(lambda: _in_force(place))
    try:
        yield
    finally:
        _entered = None


@lru_cache(maxsize=16)
def _in_force(place: EpochContext) -> InForce:
    """Read an epoch's offsets and stamp."""
    sequence, name = _newest(place, place.number)
    stamp = stamps.read(place.checkpoint, name) if name else Stamp(Configuration())

    def found() -> tuple[Mapping[str, Json], ...]:
        if not stamp.broadcasts or stamp.broadcasts[-1]["sequence"] <= (before := _before(place)):
            return ()
        return tuple(one for one in stamp.broadcasts if before < one["sequence"] <= sequence)

    return InForce(place.query, place.operator, stamp.seen_by(place.query), found)


def _before(place: EpochContext) -> int:
    """The highest sequence that the epoch before has obeyed."""
    return _newest(place, place.number - 1)[0] if place.number else 0


def _newest(place: EpochContext, number: int) -> tuple[int, str]:
    """The highest control sequence in the offsets of an epoch, and the stamp that goes with it."""
    text = SparkLog(place.checkpoint).read(f"offsets/{number}")
    if text is not None and '"stamp"' not in text:
        return 0, ""  # no source has obeyed an event: offsets of many channels need not be parsed
    logged = None if text is None else parse_offsets(number, text)
    if logged is None:
        raise StateError(
            f"offsets/{number} is missing in the query's checkpoint directory: what is in force in epoch "
            f"{place.number} is unknown",
            operator=place.operator,
            kept="everything up to the previous epoch; nothing of this one was committed",
            do=f"make {place.checkpoint} readable under this path on all machines of the cluster",
        )
    return stamps.newest(source_offsets(logged).values())


def _refuse(what: str) -> EpochContext:
    raise StateError(
        f"{what}, and this code does not run in an epoch of a job",
        operator="sx.control",
        kept="nothing was read",
        do="call it in a function that Spark runs for the rows of a job's query (a UDF, mapInArrow, mapInPandas, "
        "applyInPandas), in foreachBatch, or in a method of a source or sink while an epoch is planned, read, "
        "written or committed; elsewhere use job.control. To explore in batch, let the function that builds the query "
        "take the configuration as an argument, and call it with a dict",
    )
