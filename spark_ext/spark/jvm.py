"""Everything that reaches through py4j into Spark's JVM: the only module that may.

Spark's Python API does not show a plan's sources, a writer's target or a query's resolved checkpoint. The
classes used here are Spark's internals; `tests/spark/test_jvm.py` pins what is relied on, so that a new Spark
version fails there first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class PlanSource:
    """One streaming leaf of a query's plan."""

    kind: Literal["v2", "v1", "other"]
    """`v2`: Python sources, Kafka, rate; `v1`: Spark's file streams and Delta; `other`: an unknown class."""
    format: str
    """The name that was given to `format()`; for `other` the class of the leaf."""
    options: Mapping[str, str]
    """Given options, keys in lower case; none for `v1` and `other`. May hold secrets: never show or store."""
    uid: str | None
    """The option `uid`; None when there is none or it cannot be seen."""
    description: str
    """The leaf in Spark's words, for messages; without options."""


@dataclass(frozen=True)
class WriterTarget:
    """What a `DataStreamWriter` was told so far."""

    format: str
    options: Mapping[str, str]
    """Options, keys in lower case, with `path` and `queryname`. May hold secrets: never show or store."""
    path: str | None
    output_mode: str
    """`Append`, `Complete` or `Update`."""
    query_name: str | None
    trigger: str
    """In Spark's words: `ProcessingTimeTrigger(<ms>)`, `AvailableNowTrigger`, `OneTimeTrigger`."""
    partitioning: tuple[str, ...]
    """Columns given to `partitionBy`."""


def java_version(spark: SparkSession) -> str:
    """Version of the driver's JVM, as `17.0.15`."""
    return str(_jvm(spark).java.lang.System.getProperty("java.version"))


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the driver's JVM, which outlives the driver's Python for a moment when that is killed."""
    return int(_jvm(spark).java.lang.ProcessHandle.current().pid())


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver can load a Java class, also from jars of the session; does not initialise it."""
    from py4j.protocol import Py4JJavaError

    jvm = _jvm(spark)
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Py4JJavaError as failure:
        # Anything but these (a broken jar, say) is not an answer to the question, and must not pass as "no".
        kind = failure.java_exception.getClass().getSimpleName()
        if kind not in ("ClassNotFoundException", "NoClassDefFoundError"):
            raise
        return False
    return True


def plan_sources(df: DataFrame) -> tuple[PlanSource, ...]:
    """The streaming leaves of a DataFrame's analysed plan, in plan order, each as often as it occurs.

    Tables joined in are not streaming and not in it. Leaves inside subquery expressions are not visited:
    Spark refuses streaming ones there.
    """
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(position) for position in range(leaves.size()))
    return tuple(_plan_source(leaf) for leaf in found if leaf.isStreaming())


def has_watermark(df: DataFrame) -> bool:
    """Whether an event-time watermark is defined anywhere in a DataFrame's analysed plan."""
    left = [df._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop()
        if node.nodeName() == "EventTimeWatermark":
            return True
        children = node.children()
        left.extend(children.apply(position) for position in range(children.size()))
    return False


def writer_target(writer: DataStreamWriter) -> WriterTarget:
    """What a writer was told: its format, options, mode and trigger, read from its private fields."""
    jwriter = writer._jwrite
    options = _scala_map(_field(jwriter, "extraOptions"))
    return WriterTarget(
        format=str(_field(jwriter, "source")),
        options=options,
        path=options.get("path"),
        output_mode=str(_field(jwriter, "outputMode").toString()),
        query_name=options.get("queryname"),
        trigger=str(_field(jwriter, "trigger").toString()),
        partitioning=_scala_option_seq(_field(jwriter, "partitioningColumns")),
    )


def writer_frame(writer: DataStreamWriter) -> DataFrame:
    """The DataFrame that a writer writes."""
    frame: DataFrame = writer._df
    return frame


def checkpoint_location(query: StreamingQuery) -> str:
    """The checkpoint directory of a started query, as Spark resolved it: a URI such as `file:/…`."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def activate(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread.

    Spark looks Python data sources up in the active session, which a thread that did not make one lacks: a query
    that is started there fails with DATA_SOURCE_NOT_FOUND.
    """
    _jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def silence(spark: SparkSession) -> None:
    """Switch Spark's own logging off, for a program that tells failures itself and would else show each twice."""
    log4j = _jvm(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels("org.apache.spark", log4j.Level.OFF)


def recent_progress(query: StreamingQuery, after: int) -> list[str]:
    """A query's latest progress reports as JSON, oldest first: those of epochs after the given one."""
    reports = query._jsq.recentProgress()
    found: list[str] = []
    for index in range(len(reports) - 1, -1, -1):
        if reports[index].batchId() <= after:
            break
        found.append(str(reports[index].json()))
    return found[::-1]


class QueryEvents(Protocol):
    """What hears of the queries of a session."""

    def started(self, query_id: str, run_id: str) -> None:
        """A query has started."""

    def progressed(self, report: str) -> None:
        """An epoch is done; the report is Spark's JSON."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """A query has ended."""


class QueryListener:
    """Spark's listener interface, implemented through py4j.

    pyspark's own takes each event apart by some hundred calls into the JVM, which costs an epoch 10 ms and more.
    Here an epoch costs two calls.
    """

    def __init__(self, events: QueryEvents) -> None:
        self._events = events

    def onQueryStarted(self, event: Any) -> None:
        """Called by Spark."""
        self._events.started(event.id().toString(), event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:
        """Called by Spark."""
        self._events.progressed(str(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:
        """Called by Spark."""

    def onQueryTerminated(self, event: Any) -> None:
        """Called by Spark."""
        self._events.terminated(event.id().toString(), event.runId().toString())

    class Java:
        """What py4j has to know."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def wrapped(listener: QueryListener) -> Any:
    """The listener as an object of the JVM, for `spark.streams.addListener`."""
    from pyspark import SparkContext

    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(listener)  # type: ignore[union-attr]


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _plan_source(leaf: Any) -> PlanSource:
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelationV2":
        options = {str(entry.getKey()).lower(): str(entry.getValue()) for entry in leaf.extraOptions().entrySet()}
        name = str(leaf.sourceName())
        uid = options.get("uid")
        return PlanSource("v2", name, options, uid, f"source '{name}'" + (f" with uid '{uid}'" if uid else ""))
    if kind == "StreamingRelation":
        name = str(leaf.sourceName())
        return PlanSource("v1", name, {}, None, f"Spark's own source '{name}'")
    return PlanSource("other", kind, {}, None, f"a streaming relation of class {kind}")


def _field(target: Any, name: str) -> Any:
    declared = target.getClass().getDeclaredField(name)
    declared.setAccessible(True)
    return declared.get(target)


def _scala_map(options: Any) -> dict[str, str]:
    """A Scala map as a dict, keys in lower case, as Spark compares them."""
    found = {}
    entries = options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1()).lower()] = str(entry._2())
    return found


def _scala_option_seq(option: Any) -> tuple[str, ...]:
    if option.isEmpty():
        return ()
    names = option.get()
    return tuple(str(names.apply(position)) for position in range(names.size()))
