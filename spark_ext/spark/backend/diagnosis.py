"""What a Spark application is doing, from the JVM's status stores and management beans, and its log levels."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.backend.missing import all_by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json: TypeAlias = dict[str, Any]  # an object as Spark's REST interface gives it

DRIVER: Final = "driver"  # the executor id of the driver
_DEFAULT_LEVEL: Final = "WARN"  # of the root logger when nobody has set one, as in the shipped `log4j2.properties`
_HEAP_BEAN: Final = "com.sun.management.HotSpotDiagnosticMXBean"  # of HotSpot: OpenJDK and what is built from it


class Diagnosis(Protocol):
    """What a Spark application is doing. Each method raises what Spark raises, or what a dead JVM leads to."""

    def jobs(self, *, running: bool) -> list[Json]:
        """The jobs that are being run, or those and the last thousand that have ended."""

    def stages(self) -> list[Json]:
        """The stages that are being run."""

    def executors(self) -> list[Json]:
        """All executors that there have been, also those that were lost."""

    def tasks(self, stage: int, most: int) -> list[Json]:
        """Tasks of a stage's first attempt."""

    def ended_jobs(self, most: int) -> list[Json]:
        """The jobs that have ended last, the newest first: `info` and `sqlExecutionId`."""

    def stage(self, number: int) -> Json:
        """The last attempt of a stage."""

    def plan(self, execution: int) -> tuple[Json, dict[str, str]]:
        """The graph of a plan that was run, and its metrics as Spark's page shows them, by their numbers."""

    def threads(self, executor: str) -> list[Json] | None:
        """The threads of an executor; None if it does not answer. Waits up to two minutes."""

    def driver_threads(self) -> str:
        """The stacks of all threads of the driver's JVM, as text."""

    def deadlocked(self) -> tuple[str, ...]:
        """Names of the threads of the driver's JVM that wait for each other for good, in the order of the waiting."""

    def heap_used(self) -> int:
        """Bytes of the heap of the driver's JVM in use, with objects that nothing refers to any more."""

    def write_heap(self, path: Path) -> None:
        """Write the objects of the heap that are in use to a new file, whose name ends with `.hprof`.

        The JVM collects garbage first, and stands still meanwhile. Only its owner can read the file.
        """

    def set_log_level(self, logger: str, level: str | None) -> None:
        """Set the level of a logger in the driver's JVM, and that of the root logger, "", in executors too.

        Executors that come later get it if `spark.executor.syncLogLevel.enabled` is set, as `session` does. Spark has
        no such way for single loggers. None is a level that was never set.
        """

    def silence(self) -> None:
        """Switch off Spark's own logging, for a program that reports failures itself and would show each twice."""


@all_by_name
class _JvmDiagnosis:
    """That of a classic session. See `Diagnosis`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @cached_property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm

    @cached_property
    def _context(self) -> Any:
        return self._spark.sparkContext._jsc.sc()

    @cached_property
    def _store(self) -> Any:
        return self._context.statusStore()

    @cached_property
    def _mapper(self) -> Any:
        return getattr(self._jvm, "org.apache.spark.status.api.v1.JacksonMessageWriter")().mapper()

    @cached_property
    def _running(self) -> Any:
        running = self._jvm.java.util.ArrayList()
        running.add(getattr(self._jvm, "org.apache.spark.JobExecutionStatus").RUNNING)
        return running

    def _json(self, given: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(given))

    def _list(self, given: Any) -> list[Json]:
        return cast("list[Json]", self._json(given))

    def jobs(self, *, running: bool) -> list[Json]:
        return self._list(self._store.jobsList(self._running if running else None))

    def stages(self) -> list[Json]:
        return self._list(self._store.activeStages())

    def executors(self) -> list[Json]:
        return self._list(self._store.executorList(False))

    def tasks(self, stage: int, most: int) -> list[Json]:
        return self._list(self._store.taskList(stage, 0, most))

    def ended_jobs(self, most: int) -> list[Json]:
        kind = self._jvm.java.lang.Class.forName("org.apache.spark.status.JobDataWrapper")
        return self._list(self._store.store().view(kind).index("completionTime").reverse().max(most))

    def stage(self, number: int) -> Json:
        return cast("Json", self._json(self._store.lastStageAttempt(number)))

    def plan(self, execution: int) -> tuple[Json, dict[str, str]]:
        store = self._spark._jsparkSession.sharedState().statusStore()
        return self._json(store.planGraph(execution)), self._json(store.executionMetrics(execution))

    def threads(self, executor: str) -> list[Json] | None:
        given = self._context.getExecutorThreadDump(executor)
        return self._list(given.get()) if given.isDefined() else None

    def driver_threads(self) -> str:
        threads = self._beans.getThreadMXBean().dumpAllThreads(True, True)
        return "".join(_thread(thread) for thread in threads)

    def deadlocked(self) -> tuple[str, ...]:
        beans = self._beans.getThreadMXBean()
        found = beans.findDeadlockedThreads()
        return (
            () if found is None else tuple(one.getThreadName() for one in beans.getThreadInfo(found) if one is not None)
        )

    def heap_used(self) -> int:
        return int(self._beans.getMemoryMXBean().getHeapMemoryUsage().getUsed())

    def write_heap(self, path: Path) -> None:
        kind = self._jvm.java.lang.Class.forName(_HEAP_BEAN)
        self._beans.getPlatformMXBean(kind).dumpHeap(str(path), True)

    def set_log_level(self, logger: str, level: str | None) -> None:
        if not logger:
            self._spark.sparkContext.setLogLevel(level or _DEFAULT_LEVEL)
        elif level is not None:
            self._log4j.core.config.Configurator.setLevel(logger, self._log4j.Level.valueOf(level))
        else:
            context = self._log4j.LogManager.getContext(False)
            context.getConfiguration().removeLogger(logger)
            context.updateLoggers()

    def silence(self) -> None:
        self._log4j.core.config.Configurator.setAllLevels("org.apache.spark", self._log4j.Level.OFF)

    @property
    def _beans(self) -> Any:
        return self._jvm.java.lang.management.ManagementFactory

    @property
    def _log4j(self) -> Any:
        return self._jvm.org.apache.logging.log4j


class _NoDiagnosis:
    """That of a client of Spark Connect, which has no JVM: nothing is known, and log levels stay. See `Diagnosis`."""

    def jobs(self, *, running: bool) -> list[Json]:
        return []

    def stages(self) -> list[Json]:
        return []

    def executors(self) -> list[Json]:
        return []

    def tasks(self, stage: int, most: int) -> list[Json]:
        return []

    def ended_jobs(self, most: int) -> list[Json]:
        return []

    def stage(self, number: int) -> Json:
        return {}

    def plan(self, execution: int) -> tuple[Json, dict[str, str]]:
        return {}, {}

    def threads(self, executor: str) -> list[Json] | None:
        return []  # None would say that it does not answer

    def driver_threads(self) -> str:
        return ""

    def deadlocked(self) -> tuple[str, ...]:
        return ()

    def heap_used(self) -> int:
        return 0

    def write_heap(self, path: Path) -> None:
        raise EnvironmentProblem(
            "a client of Spark Connect has no JVM whose heap could be written",
            operator="the Spark session",
            kept="nothing was written",
            do="write it on the server's machine, with jmap",
        )

    def set_log_level(self, logger: str, level: str | None) -> None: ...

    def silence(self) -> None: ...


def of_jvm(spark: SparkSession) -> Diagnosis:
    """That of a classic session."""
    return _JvmDiagnosis(spark)


NO_DIAGNOSIS: Final[Diagnosis] = _NoDiagnosis()


def _thread(thread: Any) -> str:
    frames = "".join(f"    at {frame}\n" for frame in thread.getStackTrace())
    return f'"{thread.getThreadName()}" {thread.getThreadState()}\n{frames}\n'
