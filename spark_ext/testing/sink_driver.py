"""Drives a sink as Spark and a job would, but without Spark. Shared by `SinkContract` and its child processes.

The author of a sink writes one `SinkTarget`; a `Driver` is one incarnation of a job that writes to it.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.model.commits import Claim, CommitOutcome, Epoch, Task
from spark_ext.model.identity import OPTION, Identity
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.runtime.position import remembered
from spark_ext.sinks.runtime.writer import EpochWriter, Written, write_task
from spark_ext.testing.every_type import EVERY_TYPE
from spark_ext.worker_internals import pickled, to_arrow_schema, unpickled

Row = Mapping[str, Any]

V = TypeVar("V")

STATES = "SPARK_EXT_KIT_STATES"
"""Environment variable: the folder in which drivers keep the states of their jobs; without it they keep none."""

NUMBERS = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])
"""Schema of the rows in most tests."""


class SinkTarget(ABC):
    """The target of one test: a table, a topic, a directory, a receiver. Empty or missing when the test begins.

    It is pickled and sent to child processes, so it should hold names and addresses, not connections.
    """

    before_commit: ClassVar[str]
    """Fail point in `commit` between the last check of the target and the step that makes the epoch visible."""
    after_commit: ClassVar[str]
    """Fail point in `commit` after that step, before `commit` returns."""
    points: ClassVar[tuple[str, ...]] = ()
    """Further fail points that each claim of a used target, or each epoch, passes: a driver is killed at each."""
    stages: ClassVar[bool] = True
    """Whether `write` stores something at the target that `leftovers` can list."""
    types: ClassVar[T.StructType] = EVERY_TYPE
    """Every type that the sink can store, as columns of `every_type.EVERY_TYPE` (see `every_type.without`)."""
    huge: ClassVar[int] = 1_000_000
    """Number of rows in the huge epoch."""
    wide_columns: ClassVar[int] = 500
    """Number of columns in the wide row."""
    wide_value: ClassVar[int] = 5_000_000
    """Size in bytes of one value in the wide row."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and tokens in the options: no error message may show them."""
        return ()

    @abstractmethod
    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        """A fresh sink that writes to this target."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The rows that a reader sees, in any order, as Python values; [] if the target does not exist yet."""

    @abstractmethod
    def leftovers(self) -> set[str]:
        """Names of everything that is prepared but not visible, for all sinks on this target."""

    @abstractmethod
    def damage(self) -> Callable[[], object]:
        """Make every commit fail with a transient error, without loss of data; returns a function that repairs it."""

    def drop(self) -> None:
        """Delete the target with all that the sink keeps in it, as its owner might by mistake.

        Without this method the tests of targets that are dropped or created again are skipped.
        """
        raise NotImplementedError

    def snapshot(self) -> Callable[[], object]:
        """Remember the target as it is; returns a function that puts it back, as from a backup.

        Without this method the tests of targets that are put back are skipped.
        """
        raise NotImplementedError

    def make_anew(self) -> None:
        """Create the target again after `drop`, empty, as its owner might; by default another job's sink does."""
        Driver(self, uid="maker", job_id="job-2").claim()

    spoiling: ClassVar[Mapping[str, str]] = {}
    """Further options of the sink for the tests of bad rows."""

    records_first: ClassVar[bool] = False
    """Whether the rows of an epoch are recorded before it is committed, so that another attempt takes up the same."""

    def spoiled(self, row: Row) -> Row:
        """The row in a form that the sink puts aside with `on_bad_row=quarantine` and `spoiling`; its id stays.

        Without this method the tests of bad rows are skipped.
        """
        raise NotImplementedError

    def make_strict(self) -> None:
        """Called before the first start in the tests of bad rows: create a target here that refuses spoiled rows."""
        return

    def id_of_bad(self, raw: str) -> int:
        """The id of a row that was put aside, from the text that the table has of it."""
        return int(json.loads(raw)["id"])

    def ids(self) -> list[int]:
        """The `id` of each visible row, sorted; a repeated row appears twice. Override it if `rows` is slow."""
        return sorted(row["id"] for row in self.rows())


def numbered(start: int, end: int) -> list[dict[str, Any]]:
    """Rows with the ids [start, end)."""
    return [{"id": number, "name": f"n{number}"} for number in range(start, end)]


def table(schema: T.StructType, rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table; `to_pylist` turns equal rows into equal Python values."""
    names = schema.fieldNames()
    return pa.Table.from_pylist([{name: row[name] for name in names} for row in rows], schema=to_arrow_schema(schema))


@dataclass
class Driver:
    """One incarnation of a job with a sink. As under Spark, the sink is created and pickled again for each call."""

    target: SinkTarget
    incarnation: int = 1
    uid: str = "out"
    job_id: str = "job-1"
    schema: T.StructType = field(default_factory=lambda: NUMBERS)
    query_id: str = "6f9b3d54-2f5e-4b2c-9a86-0f0f3c1d7e11"
    options: Mapping[str, str] = field(default_factory=dict)
    start: int = 0
    """Random number of the start, other than 0. Drivers of one incarnation have the same unless it is given: they are
    processes of one start."""
    planned: int | None = None
    """The newest epoch that Spark's log in this driver's state has planned; None: not known."""
    starts: frozenset[int] | None = None
    """Random numbers of the starts that this driver's state remembers; None: not known."""
    early: bool = False
    """Whether an epoch is that of a copy of the query, with rows of windows that are open after the one before."""
    attempts: int = 0
    """Number of calls of the sink's `commit`."""
    outcomes: list[CommitOutcome] = field(default_factory=list)
    """The values that they returned."""

    def __post_init__(self) -> None:
        if self.incarnation:  # outside a job there is none
            self.start = self.start or 1000 + self.incarnation

    def claim(self) -> Driver:
        """Validate and then claim the target, as at the start of a job; returns the driver."""
        self._validated().claim(self._claim())
        return self

    def check_claim(self) -> None:
        """Look whether the target could be claimed, as a plan does."""
        self._validated().check_claim(self._claim())

    def _validated(self) -> TwoPhaseCommitSink:
        sink = self.target.sink(self.uid, **self.options)
        sink.validate(self.schema)
        return sink

    def _claim(self) -> Claim:
        last = remembered(self._identity.checkpoint) if self._identity.checkpoint else None
        return Claim(
            sink=self.uid,
            job="job",
            job_id=self.job_id,
            incarnation=self.incarnation,
            lineage=0,
            start=self.start,
            query_id=self.query_id,
            planned=self.planned,
            starts=self.starts,
            previous=last.of(self.uid, 0, self.query_id) if last else None,
        )

    def write(self, epoch: int, rows: Iterable[Row], partition: int = 0, attempt: int = 0) -> Written:
        """Phase one in one task, in small batches."""
        rows = list(rows)
        return self.write_batches(epoch, iter(table(self.schema, rows).to_batches(1000)), partition, attempt)

    def write_batches(
        self, epoch: int, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0
    ) -> Written:
        """Phase one in one task."""
        task = Task(self.uid, self.query_id, epoch, partition, attempt, self.incarnation, 0, self.start)
        return _pickled(write_task(self._sent(), self.schema, batches, task, self._identity))

    def commit(self, messages: Sequence[Written | None], epoch: int) -> None:
        """Phase two, with retries; the incarnation is in the writer's options, as in a job."""
        EpochWriter(_Watched(self._sent(), self), self.schema).commit(messages, epoch)  # type: ignore[arg-type]

    def abort(self, messages: Sequence[Written | None], epoch: int) -> None:
        """Called by Spark after a failed commit."""
        EpochWriter(self._sent(), self.schema).abort(messages, epoch)

    def run(self, epoch: int, rows: Sequence[Row], partitions: int = 1) -> None:
        """Run an epoch with its rows distributed over a number of tasks."""
        self.commit([self.write(epoch, rows[n::partitions], n) for n in range(partitions)], epoch)

    @cached_property
    def _identity(self) -> Identity:
        """What a job puts into the writer's options; with a state of its own if the environment names a folder."""
        folder = os.environ.get(STATES)
        state = f"{folder}/{self.job_id}" if folder else ""
        if folder:
            Path(state, "queries", "q").mkdir(parents=True, exist_ok=True)
        return Identity(
            job="job",
            job_id=self.job_id,
            query="q",
            state=state,
            checkpoint=f"{state}/queries/q/checkpoint" if folder else "",
            incarnation=self.incarnation,
            start=self.start,
            early=self.query_id if self.early else "",
        )

    def _sent(self) -> TwoPhaseCommitSink:
        """The sink as it arrives in a worker."""
        sink = self.target.sink(self.uid, **self.options)
        sink.given = {**sink.given, OPTION: self._identity.encode()}
        return _pickled(sink)


class _Watched:
    """Wraps a sink and records the results of its commits."""

    def __init__(self, sink: TwoPhaseCommitSink, driver: Driver) -> None:
        self._sink, self._driver = sink, driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def commit(self, schema: T.StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        """Call the sink's own `commit`, and record its result."""
        self._driver.attempts += 1
        outcome = self._sink.commit(schema, epoch, prepared)
        self._driver.outcomes.append(outcome)
        return outcome


def _pickled(value: V) -> V:
    """A copy as it arrives in another process."""
    copy: V = unpickled(pickled(value))
    return copy


# -- what child processes run -----------------------------------------------------------------------------------------


def run_epoch(target: SinkTarget, incarnation: int, epoch: int, start: int, end: int, claim: bool = False) -> None:
    """Run one epoch with the rows [start, end); with `claim`, as a newly started job."""
    driver = Driver(target, incarnation)
    if claim:
        driver.claim()
    driver.run(epoch, numbered(start, end))


def beside(target: SinkTarget, mine: int, incarnation: int) -> Driver:
    """One of several jobs on a target: its uid, its id and Spark's id of its query are its own, in each incarnation."""
    query_id = f"6f9b3d54-2f5e-4b2c-9a86-0f0f3c1d7e{mine:02x}"
    return Driver(target, incarnation, uid=f"out-{mine}", job_id=f"job-{mine}", query_id=query_id)


def run_job_beside_another(target: SinkTarget, mine: int) -> None:
    """Run a job with its own uid: 4 epochs, then a new start that repeats one of them, then 2 more."""
    for incarnation, epochs in ((1, range(4)), (2, range(3, 6))):
        driver = beside(target, mine, incarnation).claim()
        for epoch in epochs:
            start = mine * 1000 + epoch * 5
            driver.run(epoch, numbered(start, start + 5), partitions=2)
    print("all epochs done")
