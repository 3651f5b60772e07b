"""All access to Spark's JVM through py4j; only `state_files`, for the files of state stores, uses it too.

Spark's Python API does not expose a plan's sources, a writer's target or a query's resolved checkpoint. The classes
used here are Spark internals. `tests/spark/test_jvm.py` pins everything that this module relies on, so that a new Spark
version fails there first.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT

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
    """The name passed to `format()`; for `other` the class of the leaf."""
    options: Mapping[str, str]
    """The options set on it, keys in lower case; empty for `v1` and `other`. May hold secrets: never show or store."""
    uid: str | None
    """The option `uid`; None if it is not set or cannot be read."""
    description: str
    """The leaf as Spark names it, for messages; without options."""


@dataclass(frozen=True)
class WriterTarget:
    """What has been set on a `DataStreamWriter` so far."""

    format: str
    options: Mapping[str, str]
    """Options, keys in lower case, with `path` and `queryname`. May hold secrets: never show or store."""
    path: str | None
    output_mode: str
    """`Append`, `Complete` or `Update`."""
    query_name: str | None
    trigger: str
    """As Spark prints it: `ProcessingTimeTrigger(<ms>)`, `AvailableNowTrigger`, `OneTimeTrigger`."""
    partitioning: tuple[str, ...]
    """Columns passed to `partitionBy`."""
    clustering: tuple[str, ...] = ()
    """Columns passed to `clusterBy`."""


_STATIC, _FINAL = 0x0008, 0x0010
"""Of `java.lang.reflect.Modifier`."""

SOURCE_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""A setting of Spark's: each source of a query must have a name, under which the offset log keeps its offset."""

SINK_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
"""The same for sinks."""


def is_on(spark: SparkSession, setting: str) -> bool:
    """Whether a setting of the session is `true`."""
    return str(spark.conf.get(setting, "false")).strip().lower() == "true"


def evolution_name(uid: str) -> str:
    """A uid as a name that Spark accepts for a source or sink: letters, digits and underscores."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", uid)
    # Two uids that differ only in what was replaced must not get one name.
    return plain if plain == uid else f"{plain}_{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


def name_sink(writer: DataStreamWriter, uid: str) -> None:
    """Give a writer's sink a name, if sink evolution is on and it has none; pyspark has no method for it."""
    if is_on(writer_frame(writer).sparkSession, SINK_EVOLUTION) and _field(writer._jwrite, "sinkName").isEmpty():
        writer._jwrite = writer._jwrite.name(evolution_name(uid))


def java_version(spark: SparkSession) -> str:
    """Version of the driver's JVM, such as `17.0.15`."""
    return str(_jvm(spark).java.lang.System.getProperty("java.version"))


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the driver's JVM, which outlives the driver's Python process for a moment if that is killed."""
    return int(_jvm(spark).java.lang.ProcessHandle.current().pid())


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver can load a Java class, jars of the session included. Does not initialize the class."""
    from py4j.protocol import Py4JJavaError

    jvm = _jvm(spark)
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Py4JJavaError as failure:
        # Any other error (such as that of a broken jar) does not answer the question, and must not count as "no".
        kind = failure.java_exception.getClass().getSimpleName()
        if kind not in ("ClassNotFoundException", "NoClassDefFoundError"):
            raise
        return False
    return True


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Hadoop in the driver has a file system for the URIs of a scheme."""
    from py4j.protocol import Py4JJavaError

    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        _jvm(spark).org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop)
    except Py4JJavaError:
        return False
    return True


def plan_sources(df: DataFrame) -> tuple[PlanSource, ...]:
    """The streaming leaves of a DataFrame's analyzed plan, in plan order, each as often as it occurs.

    Static tables, such as the static side of a join, are not included. Leaves inside subquery expressions are not
    visited: Spark does not allow streaming ones there.
    """
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(position) for position in range(leaves.size()))
    return tuple(_plan_source(leaf) for leaf in found if leaf.isStreaming())


@dataclass(frozen=True)
class Watermark:
    """A watermark operator of a plan."""

    column: str
    """The event-time column."""
    sources: tuple[PlanSource, ...]
    """The streaming leaves directly below: those that no other watermark operator separates from it."""


def watermarks(df: DataFrame) -> tuple[Watermark, ...]:
    """The watermark operators of a DataFrame's analyzed plan, outermost first."""
    found: list[Watermark] = []
    left = [df._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop()
        if node.nodeName() == "EventTimeWatermark":
            found.append(Watermark(str(node.eventTime().name()), tuple(_leaves_below(node))))
        left.extend(_children(node))
    return tuple(found)


def _leaves_below(watermark: Any) -> list[PlanSource]:
    found: list[PlanSource] = []
    left = _children(watermark)
    while left:
        node = left.pop()
        if node.nodeName() == "EventTimeWatermark":
            continue
        children = _children(node)
        if not children and node.isStreaming():
            found.append(_plan_source(node))
        left.extend(children)
    return found


_STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "GlobalLimit": "limit",
    "Join": "join",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}
"""Logical operators that keep state when they are on a stream, and their names in Spark's API."""


def stateful_operators(df: DataFrame) -> tuple[str, ...]:
    """The operators of a DataFrame's analyzed plan that keep state, each with what its state depends on.

    That is keys, aggregates, windows and conditions, down to the columns of the sources: what a projection below
    computes stands in place of its column's name. Filters, and what is done with the results, are not part of it. Spark
    draws ids and seeds anew for each plan, so they are left out; its optimizer has no part in the analyzed plan.

    In the order in which Spark numbers their state, or its reverse: for comparison with another plan.
    """
    nodes: list[Any] = []
    found: list[tuple[Any, Any]] = []
    left = [(df._jdf.queryExecution().analyzed(), None)]
    while left:
        node, above = left.pop()
        nodes.append(node)
        children = _children(node)
        name = node.nodeName()
        # A stream that is joined with a table keeps no state.
        if name in _STATEFUL and node.isStreaming() and all(one.isStreaming() for one in children if name == "Join"):
            found.append((node, above))
        left.extend((child, node) for child in children)
        if name == "LateralJoin":
            left.append((node.right().plan(), node))
    columns = _Columns(nodes[::-1] if found else [])
    return tuple(columns.described(node, above) for node, above in found)


class _Columns:
    """The columns of a plan, by what they are computed from.

    Args:
        nodes: of the plan, the sources first.
    """

    def __init__(self, nodes: list[Any]) -> None:
        self._made: dict[int, list[Any]] = {}
        """By the id of a column the expressions that it is made of: one for each branch of a union or window."""
        self._texts: dict[int, str] = {}
        self._places: dict[int, int] = {}
        """By the id of a column its number among those that one expression makes."""
        defined = {node.id(): node.child().output() for node in nodes if node.nodeName() == "CTERelationDef"}
        for node in nodes:
            for one in _items(node.expressions()):
                if _kind(one) == "Alias":
                    self._made[one.exprId().id()] = [one.child()]
            if node.nodeName() == "Generate":
                self._several(node.generatorOutput(), node.generator())
            elif node.nodeName().startswith("MapIn"):
                self._several(node.output(), next(one for one in _items(node.expressions()) if not _is_column(one)))
            elif node.nodeName() == "CTERelationRef" and node.cteId() in defined:
                for one, other in zip(_items(node.output()), _items(defined[node.cteId()]), strict=True):
                    if one.exprId().id() != other.exprId().id():
                        self._made[one.exprId().id()] = [other]
            elif node.nodeName() == "Expand":
                self._branches(node, _items(node.projections()))
            elif node.nodeName() == "Union":
                self._branches(node, [one.output() for one in _children(node) if not _is_marker(one)])

    def _several(self, columns: Any, made_by: Any) -> None:
        for place, one in enumerate(_items(columns)):
            self._made[one.exprId().id()] = [made_by]
            if columns.size() > 1:
                self._places[one.exprId().id()] = place

    def _branches(self, node: Any, rows: list[Any]) -> None:
        for column, *given in zip(_items(node.output()), *map(_items, rows), strict=True):
            number = column.exprId().id()
            self._made[number] = [
                one
                for each in given
                for one in (self._made.get(each.exprId().id(), [each]) if _is_column(each) else [each])
            ]

    def described(self, node: Any, above: Any) -> str:
        """A stateful operator.

        Args:
            node: the operator.
            above: the one that reads it; None: none does.
        """
        kind, timing = node.nodeName(), ""
        name = _STATEFUL[kind]
        if kind == "Join":
            given = node.condition()
            if given.isEmpty() and above is not None and above.nodeName() == "Filter":
                return f"{node.joinType().sql().lower()} {name} where {self._text(above.condition())}"
            on = "" if given.isEmpty() else f" on {self._text(given.get())}"
            return f"{node.joinType().sql().lower()} {name}{on}"
        if kind == "GlobalLimit":
            return name
        if kind == "Aggregate":
            found = dict.fromkeys(map(self._aggregate, _aggregates(_items(node.aggregateExpressions()))))
            name, keys = f"{name} {', '.join(found)}".strip(), node.groupingExpressions()
        elif kind.startswith("Deduplicate"):
            keys = node.keys()
        elif kind == "Distinct":
            keys = node.child().output()
        elif kind == "TransformWithStateInPySpark":
            timing, keys = node.timeMode().toString(), node.leftAttributes()
            name = f"{name} in {timing} mode"
        else:
            timing, keys = node.timeout().toString(), node.groupingAttributes()
            name = f"{name} with {timing}"
        if kind == "DeduplicateWithinWatermark" or timing.startswith("EventTime"):
            # How long it keeps what depends on this column.
            times = (one for one in _items(node.child().output()) if one.metadata().contains(_DELAY))
            name = f"{name} of {', '.join(self._text(one) for one in times)}"
        by = ", ".join(self._typed(one) for one in _items(keys))
        state = f" with {node.stateType().simpleString()}" if kind == "FlatMapGroupsInPandasWithState" else ""
        return f"{name} by {by}{state}" if by else f"{name}{state}"

    def _aggregate(self, expression: Any) -> str:
        function = expression.aggregateFunction()
        name = _NOT_IN_SQL.get(_kind(function))
        return self._typed(expression) + (f" with {name} {_text_of(getattr(function, name)())}" if name else "")

    def _typed(self, expression: Any) -> str:
        text = self._text(expression)
        return text if text.startswith("window(") else f"{text} {expression.dataType().simpleString()}"

    def _text(self, expression: Any) -> str:
        """An expression in SQL, with each column as what it is made of."""
        sql = str(expression.sql())
        if sql.startswith("named_struct('start', ") and f"{_CONVERSION.lower()}(" in sql:
            ends = (self._text(next(_converted(one))) for one in _children(expression)[1::2])
            times = (int(time) for time in re.findall(r"(?<![\w.])(-?\d+)L\b", sql))
            lengths = (f"{time} us" if time % 1_000_000 else f"{time // 1_000_000} s" for time in times)
            return f"window({', '.join(dict.fromkeys((*ends, *lengths)))})"
        leaves = (
            (one, one.e() if _kind(one) == "OuterReference" else one) for one in _items(expression.collectLeaves())
        )
        columns = [(one, column) for one, column in leaves if _is_column(column)]
        return inlined(sql, [(str(one.sql()), str(one.name()), self._column(column)) for one, column in columns])

    def _column(self, column: Any) -> str:
        number = column.exprId().id()
        if number not in self._texts:
            self._texts[number] = str(column.name())  # for what is made of itself
            made = dict.fromkeys(self._text(one) for one in self._made.get(number, ()))
            self._texts[number] = " or ".join(made) or str(column.name())
            if number in self._places:
                self._texts[number] += f"[{self._places[number]}]"
        return self._texts[number]


def inlined(sql: str, columns: list[tuple[str, str, str]]) -> str:
    """SQL of Spark's with its columns replaced; without seeds, and short: a long text ends with its checksum.

    Args:
        sql: of an expression.
        columns: those in it, in their order: as SQL, as its name alone, and what to put in its place.
    """
    done = ""
    for *names, text in columns:
        found = re.search("|".join(rf"(?<![\w.`']){re.escape(name)}(?![\w.`'(])" for name in names), sql)
        if found is None:
            sql += f" of {text}"
            continue
        done, sql = done + sql[: found.start()] + text, sql[found.end() :]
    whole = re.sub(r"\b(randn?|uuid)\(-?\d+L?\)", r"\1()", done + sql)
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[:_LONGEST]}... {hashlib.sha256(whole.encode()).hexdigest()[:12]}"


_CONVERSION: Final = "PreciseTimestampConversion"
"""What Spark makes a window of, around the time column."""

_LONGEST: Final = 200

_DELAY: Final = "spark.watermarkDelayMs"
"""In the metadata of the column that has a watermark."""

_NOT_IN_SQL: Final = {
    "First": "ignoreNulls",
    "Last": "ignoreNulls",
    "AnyValue": "ignoreNulls",
    "HyperLogLogPlusPlus": "relativeSD",
    "PivotFirst": "pivotColumnValues",
}
"""What Spark leaves out of the SQL of aggregate functions, by their classes."""


def _text_of(value: Any) -> str:
    return str(value) if isinstance(value, (bool, float)) else str(value.mkString(", "))


def _is_marker(node: Any) -> bool:
    """Whether a branch of a union is the marker of a watermark, which brings no rows of the user's."""
    leaves = _items(node.collectLeaves())
    return all(one.isStreaming() and _plan_source(one).format == END_OF_INPUT for one in leaves)


def _aggregates(expressions: list[Any]) -> Iterator[Any]:
    for one in expressions:
        if _kind(one) == "AggregateExpression":
            yield one
        else:
            yield from _aggregates(_children(one))


def _converted(expression: Any) -> Iterator[Any]:
    """The time columns that a window is made of, the innermost first."""
    for child in _children(expression):
        yield from _converted(child)
    if _kind(expression) == _CONVERSION:
        yield expression.child()


def _is_column(expression: Any) -> bool:
    return _kind(expression) == "AttributeReference"


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(found: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [found.apply(position) for position in range(found.size())]


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def writer_target(writer: DataStreamWriter) -> WriterTarget:
    """What has been set on a writer: its format, options, mode and trigger, read from its private fields."""
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
        clustering=_scala_option_seq(_field(jwriter, "clusteringColumns")),
    )


def writer_frame(writer: DataStreamWriter) -> DataFrame:
    """The DataFrame that a writer writes."""
    frame: DataFrame = writer._df
    return frame


def writer_copy(writer: DataStreamWriter) -> DataStreamWriter:
    """A writer with the same settings: what a job sets on it is not set on the user's, which Spark changes in place."""
    copy = writer_frame(writer).writeStream
    for declared in writer._jwrite.getClass().getDeclaredFields():
        if not declared.getModifiers() & (_STATIC | _FINAL):
            declared.setAccessible(True)
            declared.set(copy._jwrite, declared.get(writer._jwrite))
    return copy


def take_option(writer: DataStreamWriter, name: str) -> None:
    """Take an option off a writer, which Spark's own interface can only set."""
    declared = writer._jwrite.getClass().getDeclaredField("extraOptions")
    declared.setAccessible(True)
    declared.set(writer._jwrite, getattr(declared.get(writer._jwrite), "$minus")(name))


def checkpoint_location(query: StreamingQuery) -> str:
    """The checkpoint directory of a started query, as Spark resolved it: a URI such as `file:/…`."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""A setting of Spark's: the class that reads and writes the files of a checkpoint directory."""

_CHECKPOINTING: Final = "org.apache.spark.sql.execution.streaming.checkpointing."

LOCAL_FILES: Final = _CHECKPOINTING + "FileSystemBasedCheckpointFileManager"
"""The class that does so without starting a process for each file."""


class StartingQuery:
    """A query that has written no epoch yet, because Spark waits for `QueryEvents.started` to return."""

    def __init__(self, spark: SparkSession, query_id: str) -> None:
        self._jvm = _jvm(spark)
        self._execution = spark._jsparkSession.streams().get(query_id).streamingQuery()

    @property
    def checkpoint(self) -> str:
        """Its checkpoint directory, as Spark resolved it."""
        return str(self._execution.resolvedCheckpointRoot())

    @property
    def file_manager(self) -> str | None:
        """The class that somebody has set, wherever Spark looks for it; None: Spark chooses."""
        given = self._execution.sparkSessionForStream().sessionState().newHadoopConf().get(FILE_MANAGER)
        return None if given is None else str(given)

    def use_local_files(self) -> None:
        """Let this query alone use `LOCAL_FILES`, by the clone of the session in which it runs its epochs."""
        clone = self._execution.sparkSessionForStream()
        clone.conf().set(FILE_MANAGER, LOCAL_FILES)
        # Spark has made its two logs before anybody could reach the clone; those of asynchronous progress are left.
        package = getattr(self._jvm, _CHECKPOINTING.rstrip("."))
        for name, old, kind in (
            ("offsetLog", self._execution.offsetLog(), "OffsetSeqLog"),
            ("commitLog", self._execution.commitLog(), "CommitLog"),
        ):
            if old.getClass().getName() == _CHECKPOINTING + kind:
                field = self._execution.getClass().getSuperclass().getDeclaredField(name)
                field.setAccessible(True)
                field.set(self._execution, getattr(package, kind)(clone, old.metadataPath().toString(), False))


def activate(spark: SparkSession, properties: Any = None) -> None:
    """Make a session the active one of the calling thread.

    Spark looks up Python data sources in the active session. A thread that did not create a session has none, so a
    query started there fails with DATA_SOURCE_NOT_FOUND.

    Args:
        spark: the session.
        properties: another thread's `local_properties`, which this one takes over; None: it keeps its own.
    """
    _jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    if properties is not None:
        spark._jsparkSession.sparkContext().setLocalProperties(properties)


def local_properties(spark: SparkSession) -> Any:
    """The calling thread's local properties, such as its scheduler pool, to be passed to `activate`."""
    return spark._jsparkSession.sparkContext().getLocalProperties().clone()


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session's context was stopped by this process; asks no JVM."""
    return spark.sparkContext._jsc is None


def activate_if_none(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, unless that has one; see `activate`."""
    if _jvm(spark).org.apache.spark.sql.SparkSession.getActiveSession().isEmpty():
        activate(spark)


def silence(spark: SparkSession) -> None:
    """Switch off Spark's own logging, for a program that reports failures itself and would show each twice."""
    log4j = _jvm(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels("org.apache.spark", log4j.Level.OFF)


def recent_progress(query: StreamingQuery, after: int) -> list[str]:
    """A query's progress reports of the epochs after the given one, as JSON, oldest first."""
    reports = query._jsq.recentProgress()
    found: list[str] = []
    for index in range(len(reports) - 1, -1, -1):
        if reports[index].batchId() <= after:
            break
        found.append(str(reports[index].json()))
    return found[::-1]


class QueryEvents(Protocol):
    """Receives the events of a session's queries."""

    def started(self, query_id: str, run_id: str) -> None:
        """A query has started."""

    def progressed(self, report: str) -> None:
        """An epoch has completed; the report is Spark's JSON."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """A query has ended."""


class QueryListener:
    """Spark's listener interface, implemented through py4j.

    pyspark's own listener makes about a hundred calls into the JVM for each event, which costs an epoch 10 ms or more.
    This one makes two calls per epoch.
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
        """Required by py4j."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def wrapped(listener: QueryListener) -> Any:
    """The listener as an object of the JVM, for `spark.streams.addListener`."""
    from pyspark import SparkContext

    streaming = SparkContext._jvm.org.apache.spark.sql.streaming  # type: ignore[union-attr]
    return streaming.PythonStreamingQueryListenerWrapper(listener)


@contextlib.contextmanager
def listening(spark: SparkSession, events: QueryEvents) -> Iterator[None]:
    """Pass the events of a session's queries on for the duration of a block."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    streams, listener = spark._jsparkSession.streams(), wrapped(QueryListener(events))
    streams.addListener(listener)
    try:
        yield
    finally:
        # Where that fails the JVM has died, which what the block raises says better.
        with contextlib.suppress(Exception):
            streams.removeListener(listener)


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
    """A Scala map as a dict, keys in lower case: Spark ignores their case."""
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
