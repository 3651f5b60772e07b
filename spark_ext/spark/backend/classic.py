"""What the driver asks of a classic session: through py4j, of its JVM, and of pyspark's private fields.

`tests/spark/test_backend.py` pins what this relies on, so that a new Spark version fails there first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

import psutil
from py4j.protocol import Py4JError, Py4JJavaError

from spark_ext.masking import logger
from spark_ext.spark.backend import plans, state
from spark_ext.spark.backend.contract import (
    FILE_MANAGER,
    Loss,
    OwnEnd,
    WriterTarget,
    evolution_name,
    evolves,
    local_files,
)
from spark_ext.spark.backend.diagnosis import Diagnosis, of_jvm
from spark_ext.spark.backend.listeners import listening
from spark_ext.spark.backend.missing import all_by_name, missing_name
from spark_ext.spark.backend.state import accessible, field
from spark_ext.spark.capabilities import capabilities

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from spark_ext.spark.backend.contract import Backend

log = logger("spark_ext.job")

_STATIC, _FINAL = 0x0008, 0x0010  # of `java.lang.reflect.Modifier`
_QUERY_ID: Final = "sql.streaming.queryId"  # local property that Spark sets on the thread of each query
_DIES_WITHIN: Final = 2.0  # how long a JVM whose connections have broken may take to be gone, s
_ENDING: Final = ("AvailableNowTrigger", "OneTimeTrigger")  # triggers with which a query ends by itself


@all_by_name
class _Classic:
    """See `Backend`."""

    own_workers = True

    # -- frames and writers

    sources = staticmethod(plans.sources)
    configuration_reads = staticmethod(plans.configuration_reads)
    makes = staticmethod(plans.makes)
    watermarks = staticmethod(plans.watermarks)
    stateful_operators = staticmethod(plans.stateful_operators)
    open_groups = staticmethod(plans.open_groups)

    def target(self, writer: DataStreamWriter) -> WriterTarget:
        jwriter = writer._jwrite
        return WriterTarget(
            format=str(field(jwriter, "source")),
            options=_scala_map(field(jwriter, "extraOptions")),
            output_mode=str(field(jwriter, "outputMode").toString()),
            trigger=str(field(jwriter, "trigger").toString()),
            partitioning=_scala_option_seq(field(jwriter, "partitioningColumns")),
            clustering=_scala_option_seq(field(jwriter, "clusteringColumns")),
        )

    def frame(self, writer: DataStreamWriter) -> DataFrame:
        return writer._df

    def copy(self, writer: DataStreamWriter) -> DataStreamWriter:
        copy = self.frame(writer).writeStream
        for declared in writer._jwrite.getClass().getDeclaredFields():
            if not declared.getModifiers() & (_STATIC | _FINAL):
                declared.setAccessible(True)
                declared.set(copy._jwrite, declared.get(writer._jwrite))
        return copy

    def remove_option(self, writer: DataStreamWriter, name: str) -> None:
        declared = accessible(writer._jwrite.getClass(), "extraOptions")
        declared.set(writer._jwrite, getattr(declared.get(writer._jwrite), "$minus")(name))

    def name_source(self, reader: DataStreamReader, spark: SparkSession, uid: str) -> DataStreamReader:
        return reader.name(evolution_name(uid)) if evolves(spark, "Source") else reader

    def name_sink(self, writer: DataStreamWriter, uid: str) -> None:
        # pyspark has no method for it.
        if evolves(self.frame(writer).sparkSession, "Sink") and field(writer._jwrite, "sinkName").isEmpty():
            writer._jwrite = writer._jwrite.name(evolution_name(uid))

    def for_workers(
        self, writer: DataStreamWriter, options: Mapping[str, str], is_ours: Callable[[str], bool]
    ) -> DataStreamWriter:
        return writer

    # -- sessions

    def application_id(self, spark: SparkSession) -> str:
        return str(spark.sparkContext.applicationId)

    def application_name(self, spark: SparkSession) -> str:
        return str(spark.sparkContext.appName)

    def parallelism(self, spark: SparkSession) -> int:
        return int(spark.sparkContext.defaultParallelism)

    def environment(self, spark: SparkSession) -> MutableMapping[str, str]:
        return spark.sparkContext.environment

    def python(self, spark: SparkSession) -> str | None:
        return spark.sparkContext.pythonExec

    def java_version(self, spark: SparkSession) -> str:
        return str(_jvm(spark).java.lang.System.getProperty("java.version"))

    def jvm_pid(self, spark: SparkSession) -> int:
        return int(_jvm(spark).java.lang.ProcessHandle.current().pid())

    def has_class(self, spark: SparkSession, name: str) -> bool:
        java = _jvm(spark).java.lang
        try:
            java.Class.forName(name, False, java.Thread.currentThread().getContextClassLoader())
        except Py4JJavaError as failure:
            # Any other error (such as that of a broken jar) does not answer the question, and must not count as "no".
            kind = failure.java_exception.getClass().getSimpleName()
            if kind not in ("ClassNotFoundException", "NoClassDefFoundError"):
                raise
            return False
        return True

    def has_file_system(self, spark: SparkSession, scheme: str) -> bool:
        try:
            _jvm(spark).org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, _hadoop(spark))
        except Py4JJavaError:
            return False
        return True

    def hadoop_option(self, spark: SparkSession, name: str) -> str | None:
        return cast("str | None", _hadoop(spark).get(name))

    def set_hadoop_option(self, spark: SparkSession, name: str, value: str) -> None:
        _hadoop(spark).set(name, value)

    def is_stopped(self, spark: SparkSession) -> bool:
        return spark.sparkContext._jsc is None

    def is_stopping(self, spark: SparkSession) -> bool:
        context: Any = spark.sparkContext._jsc
        with contextlib.suppress(Exception):
            return context is None or bool(context.sc().isStopped())
        return False

    def lost(self, spark: SparkSession, failure: BaseException, pid: int | None) -> Loss | None:
        broken = isinstance(failure, (OSError, EOFError, Py4JError)) and not isinstance(failure, Py4JJavaError)
        if self.is_stopped(spark) or pid is None or not broken or not _dies(pid):
            return None
        return Loss(
            f"Spark's JVM, process {pid}, has died",
            "look for the cause: the system's log for the out-of-memory killer, hs_err_pid*.log for a crash; then "
            "start the program again: the job continues",
        )

    def local_properties(self, spark: SparkSession) -> Any:
        return spark._jsparkSession.sparkContext().getLocalProperties().clone()

    def activate(self, spark: SparkSession, properties: Any) -> None:
        _jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
        spark._jsparkSession.sparkContext().setLocalProperties(properties)

    def activate_if_none(self, spark: SparkSession) -> None:
        sessions = _jvm(spark).org.apache.spark.sql.SparkSession
        if sessions.getActiveSession().isEmpty():
            sessions.setActiveSession(spark._jsparkSession)

    # -- queries

    @contextlib.contextmanager
    def task_properties(self, spark: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
        for name, value in properties.items():
            # Of this thread, from which that of the query, and so all its tasks, take them over.
            spark.sparkContext.setLocalProperty(name, value)
        yield

    def add_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        spark.streams.addListener(listener)

    def remove_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        spark.streams.removeListener(listener)

    @contextlib.contextmanager
    def with_local_files(self, spark: SparkSession, root: str, allowed: Callable[[str | None], bool]) -> Iterator[None]:
        files = _LocalFiles(spark, root, allowed)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(listening(spark, files))
            except Exception as problem:
                files.warn(problem)
            yield

    def checkpoint(self, query: StreamingQuery) -> str:
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())

    def recent_progress(self, query: StreamingQuery, after: int) -> list[str]:
        reports = query._jsq.recentProgress()
        found: list[str] = []
        for index in range(len(reports) - 1, -1, -1):
            if reports[index].batchId() <= after:
                break
            found.append(str(reports[index].json()))
        return found[::-1]

    def own_end(self, query: StreamingQuery) -> OwnEnd | None:
        try:
            execution = query._jsq.streamingQuery()
            executor = str(execution.triggerExecutor().getClass().getSimpleName())
            return OwnEnd(bool(execution.noNewData()), executor == "SingleBatchExecutor")
        except Exception as problem:
            if missing_name(problem) is None:
                raise
            return None

    def ends_by_itself(self, query: StreamingQuery) -> bool:
        return str(query._jsq.streamingQuery().trigger().toString()).startswith(_ENDING)

    def query(self, streams: StreamingQueryManager, query_id: str) -> StreamingQuery | None:
        from pyspark.sql.streaming.query import StreamingQuery

        found = streams._jsqm.get(query_id)
        return None if found is None else StreamingQuery(found)

    def set_task_properties(self, spark: SparkSession, query_id: str, properties: Mapping[str, str]) -> bool:
        # Spark announces a start on the query's thread, and py4j lets Python call back on the same one.
        context = spark._jsparkSession.sparkContext()
        if context.getLocalProperty(_QUERY_ID) != query_id:
            return False
        for name, value in properties.items():
            context.setLocalProperty(name, value)
        return True

    def has_listener(self, streams: StreamingQueryManager, listener: Any) -> bool:
        return any(one.equals(listener) for one in streams._jsqm.listListeners())

    # -- state

    state_files = staticmethod(state.JvmStateFiles)
    settle_state = staticmethod(state.settle)

    def repartition_state(self, spark: SparkSession, checkpoint: str, partitions: int) -> None:
        # With the first access the driver begins to coordinate state stores, without which Spark cannot load any.
        spark.streams  # noqa: B018
        spark._streamingCheckpointManager.repartition(checkpoint, partitions, enforce_exactly_once_sink=True)

    def diagnosis(self, spark: SparkSession) -> Diagnosis:
        return of_jvm(spark)


CLASSIC: Final[Backend] = _Classic()


class _LocalFiles:
    """Sets `local_files` in the clone of the session in which a query runs, before that reads or writes a log."""

    def __init__(self, spark: SparkSession, root: str, allowed: Callable[[str | None], bool]) -> None:
        self._spark = spark
        self._root = root
        self._allowed = allowed

    def started(self, query_id: str, run_id: str) -> None:
        try:
            execution = self._spark._jsparkSession.streams().get(query_id).streamingQuery()
            if str(execution.resolvedCheckpointRoot()) == self._root:
                clone = execution.sparkSessionForStream()
                if self._allowed(clone.sessionState().newHadoopConf().get(FILE_MANAGER)):
                    if not CLASSIC.has_class(self._spark, local_files()):
                        raise LookupError(f"the installed Spark has no {local_files()}")
                    clone.conf().set(FILE_MANAGER, local_files())
                    self._replace_logs(execution, clone)
        except Exception as problem:
            self.warn(problem)

    def warn(self, problem: Exception) -> None:
        log.warning("the files of %s are written in Spark's own way, which is slower: %s", self._root, problem)

    def _replace_logs(self, execution: Any, clone: Any) -> None:
        # Spark has made its two logs before anybody could reach the clone; those of asynchronous progress are left.
        name_of_package = capabilities(self._spark.version).checkpointing
        package = getattr(_jvm(self._spark), name_of_package)
        for name, old, kind in (
            ("offsetLog", execution.offsetLog(), "OffsetSeqLog"),
            ("commitLog", execution.commitLog(), "CommitLog"),
        ):
            if old.getClass().getName() == f"{name_of_package}.{kind}":
                declared = accessible(execution.getClass().getSuperclass(), name)
                made_of = [clone, old.metadataPath().toString(), False]
                # The last one, whether the log is read only, came with 4.2.
                expected = min(len(one.getParameterTypes()) for one in old.getClass().getConstructors())
                declared.set(execution, getattr(package, kind)(*made_of[:expected]))

    def progressed(self, report: str) -> None: ...

    def terminated(self, query_id: str, run_id: str) -> None: ...


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _hadoop(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def _scala_map(options: Any) -> dict[str, str]:
    """A Scala map as a dict, keys in lower case: Spark ignores their case."""
    found = {}
    entries = options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1()).lower()] = str(entry._2())
    return found


def _scala_option_seq(option: Any) -> tuple[str, ...]:
    return () if option.isEmpty() else tuple(str(option.get().apply(at)) for at in range(option.get().size()))


def _dies(pid: int) -> bool:
    by = time.monotonic() + _DIES_WITHIN
    while _lives(pid):
        if time.monotonic() > by:
            return False
        time.sleep(0.05)
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
