"""What Spark has measured of an epoch: its jobs and stages, and the operators of its plan, from the status stores.

Costs a few calls of the JVM for all queries, and four for each epoch, up to 50 ms. Spark shows times as texts, such as
`1.3 s`, exact enough for proportions. `tests/spark/test_epoch_times.py` pins what is relied on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spark_ext.model.epoch_parts import PlanTime, StageTime
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_JOBS: Final = 200  # the newest jobs that are looked at
MOST_PLANS: Final = 4  # of one epoch: a function of `foreachBatch` may run any number
_EPOCH: Final = re.compile(r"^runId = (\S+)\nbatch = (\d+)$", re.MULTILINE)
_TIME: Final = re.compile(r"^([\d.,]+) (ms|s|m|min|h)\b")
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}

_PYTHON: Final = "time to execute Python code"
_PYTHON_WHOLE: Final = "time to run Python workers"
_LOAD: Final = "RocksDB: load - time taken to load the store"
_STATE: Final = ("time to update", "time to remove", "time to commit changes", _LOAD)


@dataclass(frozen=True)
class JobTime:
    """A Spark job of an epoch that has succeeded."""

    run_id: str  # of the query
    epoch: int
    began: int  # ms since 1970
    ended: int
    stages: tuple[int, ...]
    execution: int | None  # of Spark SQL


@dataclass(frozen=True)
class EpochTime:
    """What was measured of an epoch."""

    epoch: int
    jobs: tuple[tuple[int, int], ...]  # when each began and ended, ms since 1970
    stages: tuple[StageTime, ...]
    plan: PlanTime


class EpochTimes:
    """Reads what Spark has measured of the newest epochs of queries; its methods raise what Spark raises."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = backend_of(spark).diagnosis(spark)

    def jobs(self, queries: int) -> tuple[JobTime, ...]:
        """The newest jobs of epochs that have succeeded, the newest first, for a number of queries."""
        ended = self._spark.ended_jobs(min(MOST_JOBS, 8 + 8 * queries))
        return tuple(job for one in ended if (job := job_of(one)) is not None)

    def read(self, jobs: Sequence[JobTime]) -> EpochTime:
        """What was measured of an epoch, given all of its jobs."""
        found = [stage_of(self._spark.stage(one)) for job in jobs for one in job.stages]
        executions = sorted({job.execution for job in jobs if job.execution is not None})[:MOST_PLANS]
        plans = [plan_of(*self._spark.plan(one)) for one in executions]
        return EpochTime(
            jobs[0].epoch,
            tuple((job.began, job.ended) for job in jobs),
            tuple({stage.id: stage for stage in found if stage is not None}.values()),
            together(plans),
        )


def newest_epochs(jobs: Sequence[JobTime], committed: Mapping[str, int]) -> dict[str, list[JobTime]]:
    """By run id, all jobs of the newest committed epoch that has any; `committed` is by run id, too.

    A later epoch may have further jobs.
    """
    newest: dict[str, int] = {}
    for job in jobs:
        if job.epoch <= committed.get(job.run_id, -1):
            newest[job.run_id] = max(job.epoch, newest.get(job.run_id, -1))
    found: dict[str, list[JobTime]] = defaultdict(list)
    for job in jobs:
        if newest.get(job.run_id) == job.epoch:
            found[job.run_id].append(job)
    return dict(found)


def job_of(given: Mapping[str, Any]) -> JobTime | None:
    """A job, as Spark's store has it; None if it is no epoch's, or has not succeeded."""
    info = given["info"]
    epoch = _EPOCH.search(info.get("description") or "")
    if epoch is None or info["status"] != "SUCCEEDED":
        return None
    began, ended = _at(info["submissionTime"]), _at(info["completionTime"])
    return JobTime(epoch[1], int(epoch[2]), began, ended, tuple(info["stageIds"]), given.get("sqlExecutionId"))


def stage_of(given: Mapping[str, Any]) -> StageTime | None:
    """A stage, as Spark's store has it; None if it was skipped."""
    began, ended = given.get("firstTaskLaunchedTime") or given.get("submissionTime"), given.get("completionTime")
    if began is None or ended is None:
        return None
    shuffle = given["shuffleWriteTime"] // 1_000_000, given["shuffleReadRecords"] > 0
    return StageTime(given["stageId"], _at(began), _at(ended), given["executorRunTime"], *shuffle)


def plan_of(graph: Mapping[str, Any], values: Mapping[str, str]) -> PlanTime:
    """What the operators of a plan have measured."""
    plan = _Plan(graph, values)
    reading_user = later_user = state = 0
    waits: list[int] = []
    for number in plan.nodes:
        user = plan.ms(number, _PYTHON)
        if plan.is_later(number):
            later_user += user
        else:
            reading_user += user
            if plan.has(number, _PYTHON) and not any(plan.has(below, _PYTHON) for below in plan.below(number)):
                waits.append(max(0, plan.ms(number, _PYTHON_WHOLE) - user))
        # An operator with state may run a function of the user's for it.
        state += max(0, sum(plan.ms(number, name) for name in _STATE) - user)
    pipelines = [plan.ms(number, "duration") for number in plan.reading_pipelines()]
    most = [sum(found) for found in (waits, pipelines) if found]
    return PlanTime(plan.shuffled, reading_user, later_user, state, min(most, default=None))


def together(plans: Sequence[PlanTime]) -> PlanTime:
    """Several plans of one epoch as one."""
    known = [plan.reading_most for plan in plans if plan.reading_most is not None]
    return PlanTime(
        any(plan.shuffled for plan in plans),
        sum(plan.reading_user for plan in plans),
        sum(plan.later_user for plan in plans),
        sum(plan.state for plan in plans),
        sum(known) if known and len(known) == len(plans) else None,
    )


def milliseconds(shown: str) -> int:
    """A time as Spark shows it, ms: `530 ms`, `1.3 s`, or a total with the least, median and most below a heading."""
    found = _TIME.match(shown.rpartition("\n")[2])
    return 0 if found is None else round(float(found[1].replace(",", "")) * _UNITS[found[2]])


class _Plan:
    def __init__(self, graph: Mapping[str, Any], values: Mapping[str, str]) -> None:
        self._values = values
        self.nodes: dict[int, Mapping[str, Any]] = {}
        self._inside: dict[int, tuple[int, ...]] = {}  # by group of operators that are compiled together, what is in it
        self._add(graph["nodes"])
        self._children: dict[int, list[int]] = defaultdict(list)
        for edge in graph["edges"]:
            self._children[edge["toId"]].append(edge["fromId"])

    def _add(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        for node in nodes:
            self.nodes[node["id"]] = node
            if "nodes" in node:
                self._inside[node["id"]] = tuple(one["id"] for one in node["nodes"])
                self._add(node["nodes"])

    @property
    def shuffled(self) -> bool:
        """Whether there is a shuffle."""
        return any(self._is_shuffle(number) for number in self.nodes)

    def _is_shuffle(self, number: int) -> bool:
        name = str(self.nodes[number]["name"])
        return name.endswith("Exchange") and not name.startswith("Broadcast")

    def has(self, number: int, metric: str) -> bool:
        """Whether an operator has a metric."""
        return any(one["name"] == metric for one in self.nodes[number]["metrics"])

    def ms(self, number: int, metric: str) -> int:
        """A metric of an operator, ms; 0 if it has none."""
        ids = [str(one["accumulatorId"]) for one in self.nodes[number]["metrics"] if one["name"] == metric]
        return sum(milliseconds(self._values.get(one, "")) for one in ids)

    def below(self, number: int) -> Iterator[int]:
        """The operators whose rows an operator gets, directly or not."""
        for child in self._children[number]:
            yield child
            yield from self.below(child)

    def is_later(self, number: int) -> bool:
        """Whether there is a shuffle between an operator and what is read."""
        return any(self._is_shuffle(one) for one in self.below(number))

    def reading_pipelines(self) -> Iterator[int]:
        """Groups of operators that get their rows from a source itself."""
        for number, inside in self._inside.items():
            # What has no child is a source.
            fed = {child for one in inside for child in self._children[one] if not self._children[child]}
            if fed or any(not self._children[one] for one in inside):
                yield number


def _at(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("GMT", "+00:00")).timestamp() * 1000)
