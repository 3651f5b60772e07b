"""What a Spark application is busy with at one moment: the jobs, stages and executors in Spark's status store.

It costs three calls of the JVM, 2 to 5 ms, for any number of queries. `tests/spark/test_activity.py` pins what is
relied on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.model.execution import Cluster, Look, Phase, Tasks
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Executor:
    """An executor, as Spark's status store has it."""

    id: str
    active: bool
    host: str
    slots: int
    running: int  # tasks
    failed: int = 0  # attempts of tasks that have failed on it so far
    removed: str = ""  # why it was removed; "" if it is there, or Spark does not say


@dataclass(frozen=True)
class Stage:
    """A stage that is being run."""

    id: int
    running: int  # tasks
    done: int
    total: int
    records: int  # records read and written, also of shuffles; in local mode of tasks that have ended


@dataclass(frozen=True)
class Job:
    """A Spark job."""

    id: int
    group: str  # of a streaming query: its run id
    done: int  # tasks
    failed: int  # attempts of tasks
    stages: tuple[int, ...]


MOST_TASKS: Final = 1_000  # tasks of a stage that are looked at for the reason of a failure
_RECORDS: Final = ("inputRecords", "outputRecords", "shuffleReadRecords", "shuffleWriteRecords")


@dataclass(frozen=True)
class Activity:
    """What a Spark application is busy with."""

    at: datetime  # UTC
    jobs: tuple[Job, ...] = ()
    stages: Mapping[int, Stage] = field(default_factory=dict)
    executors: tuple[Executor, ...] = ()  # also those that were lost

    @property
    def cluster(self) -> Cluster:
        """The executors that are there."""
        # The driver is one that has slots only in local mode.
        there = [one for one in self.executors if one.active and one.slots]
        return Cluster(len(there), sum(one.slots for one in there), sum(one.running for one in there))

    def stages_of(self, group: str) -> tuple[Stage, ...]:
        """The stages that are being run for a streaming query."""
        found = (self.stages.get(stage) for job in self.jobs if job.group == group for stage in job.stages)
        return tuple(stage for stage in found if stage is not None)

    def tasks(self, group: str) -> Tasks | None:
        """The tasks of a streaming query, by its run id; None if it runs no job."""
        jobs = [job for job in self.jobs if job.group == group]
        if not jobs:
            return None
        stages = self.stages_of(group)
        last = {max(job.stages) for job in jobs if job.stages}
        return Tasks(
            running=sum(stage.running for stage in stages),
            waiting=sum(max(0, stage.total - stage.done - stage.running) for stage in stages),
            done=sum(job.done for job in jobs),
            failed=sum(job.failed for job in jobs),
            last_stage_done=sum(stage.done for stage in stages if stage.id in last),
        )


class ActivityReader:
    """Reads what a Spark application is busy with; its methods raise what Spark raises if it does not answer."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = backend_of(spark).diagnosis(spark)

    def read(self) -> Activity:
        """Look once."""
        at = datetime.now(timezone.utc)
        jobs = tuple(_job(one) for one in self._spark.jobs(running=True))
        stages = [_stage(one) for one in self._spark.stages()] if jobs else []
        return Activity(at, jobs, {stage.id: stage for stage in stages}, self.executors())

    def executors(self) -> tuple[Executor, ...]:
        """All executors that there have been, also those that were lost."""
        return tuple(map(_executor, self._spark.executors()))

    def survived(self) -> tuple[Job, ...]:
        """The jobs of streaming queries that had failed tasks, and have succeeded nevertheless, oldest first.

        Costs more than a look: Spark keeps the last thousand jobs. To be asked only when tasks have failed.
        """
        jobs = (one for one in self._spark.jobs(running=False) if one["numFailedTasks"] and one.get("jobGroup"))
        return tuple(sorted((_job(one) for one in jobs if one["status"] == "SUCCEEDED"), key=lambda job: job.id))

    def reason(self, stages: Iterable[int]) -> str:
        """Why a task of some stages has failed, as Spark reports it; "" if it is no longer known."""
        for stage in stages:
            for task in self._spark.tasks(stage, MOST_TASKS):
                if task["status"] == "FAILED" and task.get("errorMessage"):
                    return str(task["errorMessage"])
        return ""


def look_at(query: StreamingQuery, activity: Activity) -> Look:
    """What Spark says of one query; the activity of its application was read just before."""
    phase = Phase.of(str(query.status["message"]))
    return Look(activity.at, phase, activity.tasks(str(query.runId)), activity.cluster)


def _job(given: Mapping[str, Any]) -> Job:
    group, stages = given.get("jobGroup") or "", tuple(given["stageIds"])
    return Job(given["jobId"], group, given["numCompletedTasks"], given["numFailedTasks"], stages)


def _stage(given: Mapping[str, Any]) -> Stage:
    records = sum(given[name] for name in _RECORDS)
    return Stage(given["stageId"], given["numActiveTasks"], given["numCompleteTasks"], given["numTasks"], records)


def _executor(given: Mapping[str, Any]) -> Executor:
    return Executor(
        given["id"],
        given["isActive"],
        given["hostPort"].rpartition(":")[0],
        given["maxTasks"],
        given["activeTasks"],
        given["failedTasks"],
        given.get("removeReason") or "",
    )
