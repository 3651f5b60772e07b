"""What the driver asks of a session of Spark Connect: of the plans and messages that its client makes, and the server.

A client has no JVM, and its plan is data: sources, options and watermarks are read from it, and options are added to
it. What only a JVM could answer is absent: `NO_DIAGNOSIS`, or an error that names it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakKeyDictionary

from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.spark.backend.contract import (
    Loss,
    OpenGroups,
    OwnEnd,
    PlanSource,
    Watermark,
    WriterTarget,
    evolution_name,
    evolves,
    reads_in,
)
from spark_ext.spark.backend.diagnosis import NO_DIAGNOSIS, Diagnosis
from spark_ext.spark.backend.state_formats import LocalStateFiles
from spark_ext.worker_internals import encoded_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from spark_ext.spark.backend.contract import Backend
    from spark_ext.spark.backend.state import StateFiles

_AT_ONCE: Final = re.compile(r"0+(\.0+)? *[a-z]*", re.IGNORECASE)
_RELATION: Final = "spark.connect.Relation"
_FUNCTION: Final = "spark.connect.CommonInlineUserDefinedFunction"

# Relations without streaming reads below them that the server may still resolve to a stream.
_HIDING: Final = ("sql", "read", "cached_remote_relation", "cached_local_relation", "unresolved_table_valued_function")

_STATEFUL: Final = {
    "aggregate": "aggregate",
    "apply_in_pandas_with_state": "applyInPandasWithState",
    "deduplicate": "dropDuplicates",
    "group_map": "transformWithState",
    "join": "join",
    "limit": "limit",
}


# Conditions and messages of calls to a server that does not know the session any more.
_SESSION_GONE: Final = (
    *("SESSION_CHANGED", "SESSION_CLOSED", "SESSION_NOT_FOUND"),
    "Received incorrect server side session identifier",
)
_UNAVAILABLE: Final = "StatusCode.UNAVAILABLE"


class _Connect:
    """See `Backend`."""

    own_workers = False

    def __init__(self) -> None:
        self._environments: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
        self._lost: WeakKeyDictionary[SparkSession, Loss] = WeakKeyDictionary()
        self._parallelism: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()

    # -- frames and writers

    def sources(self, df: DataFrame) -> tuple[PlanSource, ...]:
        root = _plan(df)
        for relation in _relations(root):
            if relation.WhichOneof("rel_type") in _HIDING and not _is_read(relation):
                _refuse_hidden(df, relation)
        return tuple(_source(one.read) for one in _relations(root) if _is_read(one))

    def watermarks(self, df: DataFrame) -> tuple[Watermark, ...]:
        found = (one.with_watermark for one in _relations(_plan(df)) if one.WhichOneof("rel_type") == "with_watermark")
        return tuple(Watermark(one.event_time, tuple(_below(one.input))) for one in found)

    def stateful_operators(self, df: DataFrame) -> tuple[str, ...]:
        return tuple(_described(one) for one in _relations(_plan(df)) if _keeps_state(one))

    def open_groups(self, df: DataFrame) -> OpenGroups | None:
        what = "a client of Spark Connect does not see by what an aggregation groups; use a classic session"
        return OpenGroups(what) if self.stateful_operators(df) else None

    def configuration_reads(self, df: DataFrame) -> tuple[tuple[str, str], ...]:
        return reads_in(_functions(_plan(df)))

    def makes(self, df: DataFrame, column: str) -> bool | None:
        root = _plan(df)
        if root.WhichOneof("rel_type") == "project" and list(root.project.expressions[-1].alias.name) == [column]:
            return True
        return False if column.encode() in root.SerializeToString() else None

    def target(self, writer: DataStreamWriter) -> WriterTarget:
        given = _message(writer)
        options = {name.lower(): value for name, value in given.options.items()}
        places = {"path": given.path, "queryname": given.query_name}
        return WriterTarget(
            format=_format(writer, given),
            options={**options, **{name: value for name, value in places.items() if value}},
            output_mode=(given.output_mode or "append").capitalize(),
            trigger=_trigger(given),
            partitioning=tuple(given.partitioning_column_names),
            clustering=tuple(given.clustering_column_names),
        )

    def frame(self, writer: DataStreamWriter) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame

        given: Any = writer
        return DataFrame(given._write_stream._child, given._session)

    def copy(self, writer: DataStreamWriter) -> DataStreamWriter:
        return _writer_like(writer, self.frame(writer))

    def remove_option(self, writer: DataStreamWriter, name: str) -> None:
        options = _message(writer).options
        for key in [key for key in options if key.lower() == name.lower()]:
            del options[key]

    def name_source(self, reader: DataStreamReader, spark: SparkSession, uid: str) -> DataStreamReader:
        return reader.name(evolution_name(uid)) if evolves(spark, "Source") else reader

    def name_sink(self, writer: DataStreamWriter, uid: str) -> None: ...  # a client cannot

    def for_workers(
        self, writer: DataStreamWriter, options: Mapping[str, str], is_ours: Callable[[str], bool]
    ) -> DataStreamWriter:
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import LogicalPlan

        given: Any = writer

        class WithOptions(LogicalPlan):
            """The plan of the writer, with options for streaming reads."""

            def plan(self, session: Any) -> Any:
                assert self._child is not None
                made = self._child.plan(session)
                for read in (one.read.data_source for one in _relations(made) if _is_read(one)):
                    if is_ours(read.format):
                        read.options.update(options)
                return made

        made = _writer_like(writer, DataFrame(WithOptions(given._write_stream._child), given._session))
        if is_ours(self.target(writer).format):
            made = made.options(**options)
        return made

    # -- sessions

    def application_id(self, spark: SparkSession) -> str:
        return str(spark.conf.get("spark.app.id", None) or _session_id(spark))

    def application_name(self, spark: SparkSession) -> str:
        return str(spark.conf.get("spark.app.name", ""))

    def parallelism(self, spark: SparkSession) -> int:
        if spark not in self._parallelism:
            from pyspark.sql import functions as F

            # A range has a part for each core.
            found = spark.range(1_000_000).select(F.spark_partition_id().alias("part")).agg(F.max("part")).collect()
            self._parallelism[spark] = int(found[0][0]) + 1
        return self._parallelism[spark]

    def environment(self, spark: SparkSession) -> MutableMapping[str, str]:
        return self._environments.setdefault(spark, {})

    def python(self, spark: SparkSession) -> str | None:
        return None

    def java_version(self, spark: SparkSession) -> str | None:
        return None

    def jvm_pid(self, spark: SparkSession) -> int | None:
        return None

    def has_class(self, spark: SparkSession, name: str) -> bool:
        return True  # the server's matter

    def has_file_system(self, spark: SparkSession, scheme: str) -> bool:
        return True

    def hadoop_option(self, spark: SparkSession, name: str) -> str | None:
        return spark.conf.get(f"spark.hadoop.{name}", None)

    def set_hadoop_option(self, spark: SparkSession, name: str, value: str) -> None:
        _absent(f"the option {name} of Hadoop", "set it where the server is started")

    def is_stopped(self, spark: SparkSession) -> bool:
        given: Any = spark
        return bool(given.is_stopped)

    is_stopping = is_stopped

    def lost(self, spark: SparkSession, failure: BaseException, pid: int | None) -> Loss | None:
        from pyspark.errors import StreamingQueryException

        client: Any = spark
        text = str(failure)
        has_stack = bool(getattr(failure, "_stacktrace", None))  # it comes from the server: the user's code has failed
        if spark in self._lost:
            return self._lost[spark]
        if not has_stack and _UNAVAILABLE in f"{_status_of(failure)} {text}":
            what = "the server of Spark Connect does not answer"
            client.client.close()  # each further call would wait again, as this one has
        elif not isinstance(failure, StreamingQueryException) and any(sign in text for sign in _SESSION_GONE):
            what = "the server of Spark Connect was started again, or has ended the session"
        else:
            return None
        self._lost[spark] = Loss(what, "start the server, if it does not run, and then this program: the job continues")
        return self._lost[spark]

    def local_properties(self, spark: SparkSession) -> Any:
        return None

    def activate(self, spark: SparkSession, properties: Any) -> None: ...

    def activate_if_none(self, spark: SparkSession) -> None: ...

    # -- queries

    @contextlib.contextmanager
    def task_properties(self, spark: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
        tag = encoded_properties(properties)
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)

    def with_local_files(
        self, spark: SparkSession, root: str, allowed: Callable[[str | None], bool]
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # The client's own listener dies at the first accumulator in a report (4.2): reports are polled.

    def add_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None: ...

    def remove_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None: ...

    def checkpoint(self, query: StreamingQuery) -> str:
        return ""  # known to who has started it

    def recent_progress(self, query: StreamingQuery, after: int) -> list[str]:
        found = [json.loads(report.json) for report in query.recentProgress if report.batchId > after]
        return [json.dumps(_as_in_jvm(one)) for one in found]

    def own_end(self, query: StreamingQuery) -> OwnEnd | None:
        return None

    def ends_by_itself(self, query: StreamingQuery) -> bool:
        return False

    def query(self, streams: StreamingQueryManager, query_id: str) -> StreamingQuery | None:
        return streams.get(query_id)

    def set_task_properties(self, spark: SparkSession, query_id: str, properties: Mapping[str, str]) -> bool:
        return False

    def has_listener(self, streams: StreamingQueryManager, listener: Any) -> bool:
        return True

    # -- state

    def state_files(self, spark: SparkSession, codec: str) -> StateFiles:
        return LocalStateFiles(codec)

    def repartition_state(self, spark: SparkSession, checkpoint: str, partitions: int) -> None:
        _absent("distributing state over another number of partitions", "rescale the job with a classic session")

    def settle_state(self, spark: SparkSession, folder: str) -> bool:
        return True

    def diagnosis(self, spark: SparkSession) -> Diagnosis:
        return NO_DIAGNOSIS


CONNECT: Final[Backend] = _Connect()


def new_session(name: str, remote: str) -> SparkSession:
    """A client's session, which notices within a minute that its server does not answer."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark = SparkSession.Builder().remote(remote).appName(name).getOrCreate()
    client: Any = spark
    # Up to 45 s; Spark's default is ten minutes.
    client.client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=10_000)])
    return spark


def _status_of(failure: BaseException) -> Any:
    """The status of a call that has failed, of gRPC."""
    return getattr(failure, "_grpc_status_code", None)


def _as_in_jvm(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as the JVM has it: a client's has offsets as text, metrics as rows with a schema, and no sum of rows."""
    sources = [{**source, "endOffset": _parsed(source["endOffset"])} for source in report["sources"]]
    return {
        **report,
        "sources": sources,
        "numInputRows": sum(source["numInputRows"] for source in sources),
        "observedMetrics": {name: _by_field(row) for name, row in report.get("observedMetrics", {}).items()},
    }


def _by_field(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row.keys() >= {"schema", "values"}:
        return dict(row)
    return dict(zip((one["name"] for one in row["schema"]["fields"]), row["values"], strict=True))


def _parsed(offset: Any) -> Any:
    with contextlib.suppress(ValueError, TypeError):
        return json.loads(offset)
    return offset


def _absent(what: str, do: str) -> NoReturn:
    raise EnvironmentProblem(
        f"{what} needs the driver's JVM, which a client of Spark Connect does not have",
        operator="the Spark session",
        kept="nothing was changed",
        do=do,
    )


def _session_id(spark: SparkSession) -> str:
    given: Any = spark
    return str(given.session_id)


def _message(writer: DataStreamWriter) -> Any:
    given: Any = writer
    return given._write_proto


def _writer_like(writer: DataStreamWriter, frame: Any) -> DataStreamWriter:
    made = frame.writeStream
    made._write_proto.CopyFrom(_message(writer))
    return made  # type: ignore[no-any-return]


def _format(writer: DataStreamWriter, given: Any) -> str:
    if given.HasField("foreach_batch"):
        return "foreachBatch"
    if given.HasField("foreach_writer"):
        return "foreach"
    session: Any = writer
    return given.format or str(session._session.conf.get("spark.sql.sources.default", "parquet"))


def _trigger(given: Any) -> str:
    kind = given.WhichOneof("trigger")
    named = {"available_now": "AvailableNowTrigger", "once": "OneTimeTrigger"}.get(kind)
    if named is not None:
        return named
    if kind in (None, "processing_time_interval"):
        interval = given.processing_time_interval
        return f"ProcessingTimeTrigger({0 if not interval or _AT_ONCE.fullmatch(interval) else interval})"
    return f"{kind}({getattr(given, kind)})"


# -- plans


def _plan(df: DataFrame) -> Any:
    given: Any = df
    return given._plan.plan(given._session.client)


def _relations(message: Any) -> Iterator[Any]:
    """All relations in a message, each before those below it."""
    if message.DESCRIPTOR.full_name == _RELATION:
        yield message
    for below in _messages(message):
        yield from _relations(below)


def _functions(message: Any) -> Iterator[str]:
    """The names of the functions of the user's in a message."""
    if message.DESCRIPTOR.full_name == _FUNCTION:
        yield message.function_name
    for below in _messages(message):
        yield from _functions(below)


def _messages(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from value if isinstance(value, Iterable) else (value,)


def _inputs(relation: Any) -> Iterator[Any]:
    """The relations right below one."""
    for below in _messages(getattr(relation, relation.WhichOneof("rel_type"))):
        yield from _nearest(below)


def _nearest(message: Any) -> Iterator[Any]:
    if message.DESCRIPTOR.full_name == _RELATION:
        yield message
    else:
        for below in _messages(message):
            yield from _nearest(below)


def _is_read(relation: Any) -> bool:
    return relation.WhichOneof("rel_type") == "read" and bool(relation.read.is_streaming)


def _is_streaming(relation: Any) -> bool:
    return any(map(_is_read, _relations(relation)))


def _below(relation: Any) -> Iterator[PlanSource]:
    """The streaming leaves of a relation that no watermark separates from it."""
    if _is_read(relation):
        yield _source(relation.read)
    elif relation.WhichOneof("rel_type") != "with_watermark":
        for one in _inputs(relation):
            yield from _below(one)


def _source(read: Any) -> PlanSource:
    if read.WhichOneof("read_type") != "data_source":
        return PlanSource("table", {}, None, f"the streaming table {read.named_table.unparsed_identifier}")
    given = read.data_source
    options = {name.lower(): value for name, value in given.options.items()}
    if len(given.paths) == 1:
        options["path"] = given.paths[0]
    uid = options.get("uid")
    description = f"source '{given.format}'" + (f" with uid '{uid}'" if uid else "")
    return PlanSource(given.format, options, uid, description)


def _refuse_hidden(df: DataFrame, relation: Any) -> None:
    """Refuse a relation that is a stream by what the server knows: its sources cannot be read here."""
    from pyspark.sql.connect import proto

    client: Any = df
    plan = proto.Plan()
    plan.root.CopyFrom(relation)
    if not client._session.client._analyze(method="is_streaming", plan=plan).is_streaming:
        return
    kind = relation.WhichOneof("rel_type")
    name = relation.read.named_table.unparsed_identifier if kind == "read" else relation.sql.query[:100]
    raise ConfigurationError(
        f"the query reads a stream by a name that only the server of Spark Connect resolves: {name or kind}",
        operator="a streaming DataFrame of Spark Connect",
        kept="nothing was started",
        do="use the DataFrame of spark.readStream...load() itself in place of a temporary view, sql() or checkpoint()",
    )


def _keeps_state(relation: Any) -> bool:
    kind = relation.WhichOneof("rel_type")
    if kind not in _STATEFUL or not _is_streaming(relation):
        return False
    # A stream that is joined with a table keeps no state.
    return kind != "join" or all(map(_is_streaming, (relation.join.left, relation.join.right)))


def _described(relation: Any) -> str:
    kind = relation.WhichOneof("rel_type")
    given, name = getattr(relation, kind), _STATEFUL[kind]
    if kind == "aggregate":
        found = map(_text, given.aggregate_expressions)
        return f"{name} {', '.join(found)} by {', '.join(map(_text, given.grouping_expressions))}"
    if kind == "deduplicate":
        keys = "all columns" if given.all_columns_as_keys else ", ".join(given.column_names)
        return f"{name}{'WithinWatermark' if given.within_watermark else ''} by {keys}"
    if kind == "join":
        on = _text(given.join_condition) if given.HasField("join_condition") else ", ".join(given.using_columns)
        return f"join {given.join_type} on {on}"
    if kind in ("group_map", "apply_in_pandas_with_state"):
        return f"{name} by {', '.join(map(_text, given.grouping_expressions))}"
    return name


def _text(expression: Any) -> str:
    """An expression as text, without what a client draws for each plan."""
    kind = expression.WhichOneof("expr_type")
    given = getattr(expression, kind)
    if kind == "unresolved_attribute":
        return str(given.unparsed_identifier)
    if kind == "alias":
        return _text(given.expr)
    if kind in ("unresolved_function", "common_inline_user_defined_function"):
        return f"{given.function_name}({', '.join(map(_text, given.arguments))})"
    if kind == "literal":
        value = getattr(given, given.WhichOneof("literal_type"))
        return json.dumps(value) if isinstance(value, (str, int, float, bool)) else " ".join(str(value).split())
    below = [one for one in _messages(given) if one.DESCRIPTOR.full_name == expression.DESCRIPTOR.full_name]
    return f"{kind}({', '.join(map(_text, below))})"
