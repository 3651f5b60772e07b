"""What the driver asks of Spark beyond pyspark's documented interface, and the plain values in which it is answered.

A `Backend` does it for one kind of session; `kinds.backend_of` finds that of a session, frame, writer or query.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, unquote

from spark_ext.spark.capabilities import capabilities

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from spark_ext.spark.backend.diagnosis import Diagnosis
    from spark_ext.spark.backend.state import StateFiles

# The setting for the class that reads and writes the files of a checkpoint directory, and the class that does so
# without starting a process for each file.
FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"


# Settings of Spark's: each source, or sink, of a query must have a name, under which the offset log knows it.
_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enable{}Evolution"


def evolves(spark: SparkSession, kind: str) -> bool:
    """Whether each `Source`, or each `Sink`, needs a name."""
    if not capabilities(spark.version).evolution:
        return False
    return str(spark.conf.get(_EVOLUTION.format(kind), "false")).strip().lower() == "true"


def evolution_name(uid: str) -> str:
    """A uid as a name that Spark accepts for a source or sink: letters, digits and underscores."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", uid)
    # Two uids that differ only in what was replaced must not get one name.
    return plain if plain == uid else f"{plain}_{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


# Spark shows a function of Python's by its name alone, so the name of one that reads a key says which, and its type.
_READ: Final = re.compile(r"sx\.control\.value\('([^']+)', '([^']+)'\)")


def name_of_read(key: str, kind: str) -> str:
    """The name of the function that reads a key of the user's configuration as a type."""
    return f"sx.control.value('{quote(key, safe='')}', '{quote(kind, safe='<>():, ')}')"


def reads_in(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The keys, and the types as which they are read, in the names of functions in some texts; sorted."""
    found = {(unquote(key), unquote(kind)) for text in texts for key, kind in _READ.findall(text)}
    return tuple(sorted(found))


def local_files() -> str:
    """The class that does so without starting a process for each file."""
    import pyspark

    return capabilities(pyspark.__version__).local_files


@dataclass(frozen=True)
class PlanSource:
    """One streaming leaf of a query's plan.

    Its options are those of a Python source, Kafka or rate, keys in lower case; empty for Spark's file streams and
    Delta. They may hold secrets: never show or store.
    """

    format: str  # the name passed to `format()`; of an unknown kind of relation its class
    options: Mapping[str, str]
    uid: str | None  # the option `uid`; None if it is not set or cannot be read
    description: str  # the leaf as Spark names it, for messages; without options


@dataclass(frozen=True)
class Watermark:
    """A watermark operator of a plan, and the streaming leaves that no other watermark operator separates from it."""

    column: str  # the event-time column
    sources: tuple[PlanSource, ...]


@dataclass(frozen=True)
class OpenGroups:
    """What a plan would emit of its state if its input ended now."""

    problem: str = ""  # why a row of it might not be replaced by a later one
    keys: tuple[frozenset[str], ...] = ()  # of each grouping column, the columns of the result that it equals


@dataclass(frozen=True)
class WriterTarget:
    """What has been set on a `DataStreamWriter` so far."""

    format: str
    options: Mapping[str, str]  # keys in lower case, with `path` and `queryname`; may hold secrets: never show or store
    output_mode: str  # `Append`, `Complete` or `Update`
    trigger: str  # as Spark prints it: `ProcessingTimeTrigger(<ms>)`, `AvailableNowTrigger`, `OneTimeTrigger`
    partitioning: tuple[str, ...]  # columns passed to `partitionBy`
    clustering: tuple[str, ...] = ()  # columns passed to `clusterBy`


@dataclass(frozen=True)
class OwnEnd:
    """How a query with the trigger `availableNow` has ended: Spark reports a stop and its own end alike."""

    found_nothing: bool  # when it last looked at its sources there was nothing to plan
    one_epoch: bool  # it was to run one epoch only, because one of its sources cannot say what is available now


@dataclass(frozen=True)
class Loss:
    """Spark has gone, for this process."""

    what: str
    do: str  # what the user can do


class QueryEvents(Protocol):
    """Receives the events of a session's queries."""

    def started(self, query_id: str, run_id: str) -> None:
        """A query has started. Spark waits on the query's own thread until this returns."""

    def progressed(self, report: str) -> None:
        """An epoch has completed; the report is Spark's JSON."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """A query has ended."""


class Backend(Protocol):
    """One kind of Spark session."""

    @property
    def own_workers(self) -> bool:
        """Whether the driver's session decides the environment of its workers, and planners run on its machine.

        Else what they have to know travels in `for_workers`, and what they have to find lies in the state directory.
        """

    # -- frames and writers

    def sources(self, df: DataFrame) -> tuple[PlanSource, ...]:
        """The streaming leaves of a DataFrame's analyzed plan, in plan order, each as often as it occurs.

        Static tables, such as the static side of a join, are not included. Leaves inside subquery expressions are not
        visited: Spark does not allow streaming ones there.
        """

    def watermarks(self, df: DataFrame) -> tuple[Watermark, ...]:
        """The watermark operators of a DataFrame's analyzed plan, outermost first."""

    def stateful_operators(self, df: DataFrame) -> tuple[str, ...] | None:
        """The operators of a DataFrame's analyzed plan that keep state, each with what its state depends on.

        That is keys, aggregates, windows and conditions, down to the columns of the sources: what a projection below
        computes stands in place of its column's name. Filters, and what is done with the results, are not part of it.
        Spark draws ids and seeds for each plan, so they are left out; its optimizer has no part in the analyzed plan.

        In the order in which Spark numbers their state, or its reverse: for comparison with another plan. None if the
        installed Spark lacks a name that this needs; a warning says so.
        """

    def open_groups(self, df: DataFrame) -> OpenGroups | None:
        """Of an aggregation by columns that are fixed when a group begins, by what its rows are known.

        None: the plan emits nothing at the end of its input that it has not emitted before.
        """

    def configuration_reads(self, df: DataFrame) -> tuple[tuple[str, str], ...]:
        """The keys of the user's configuration that a DataFrame's analyzed plan reads with `sx.control.value`.

        Each with its type as Spark's `simpleString`, sorted.
        """

    def makes(self, df: DataFrame, column: str) -> bool | None:
        """Whether the last operation of a DataFrame is the one that adds a column, its last; None: no operation does.

        The column's name is one that stands for nothing else.
        """

    def target(self, writer: DataStreamWriter) -> WriterTarget:
        """What has been set on a writer."""

    def frame(self, writer: DataStreamWriter) -> DataFrame:
        """The DataFrame that a writer writes."""

    def copy(self, writer: DataStreamWriter) -> DataStreamWriter:
        """A writer with the same settings: what is set on it is not set on the user's, which Spark changes in place."""

    def remove_option(self, writer: DataStreamWriter, name: str) -> None:
        """Take an option off a writer, which Spark's own interface can only set."""

    def name_source(self, reader: DataStreamReader, spark: SparkSession, uid: str) -> DataStreamReader:
        """Name a source that the user never sees, if source evolution is on: each source needs a name then."""

    def name_sink(self, writer: DataStreamWriter, uid: str) -> None:
        """Give a writer's sink a name, if sink evolution is on and it has none."""

    def for_workers(
        self, writer: DataStreamWriter, options: Mapping[str, str], is_ours: Callable[[str], bool]
    ) -> DataStreamWriter:
        """A writer whose sources and sink of our formats carry options, for which its session has no environment."""

    # -- sessions

    def application_id(self, spark: SparkSession) -> str:
        """Spark's id of the application; one of Connect serves many clients."""

    def application_name(self, spark: SparkSession) -> str:
        """The name that was given to the application."""

    def parallelism(self, spark: SparkSession) -> int:
        """How many tasks run at the same time, by default."""

    def environment(self, spark: SparkSession) -> MutableMapping[str, str]:
        """What is added to the environment of Python workers.

        Spark copies it when a source or sink is registered; without `own_workers` it is only kept here.
        """

    def python(self, spark: SparkSession) -> str | None:
        """The interpreter of planners and committers; None if it is on another machine."""

    def java_version(self, spark: SparkSession) -> str | None:
        """Version of the driver's JVM, such as `17.0.15`; None if it is a server's."""

    def jvm_pid(self, spark: SparkSession) -> int | None:
        """Process id of the driver's JVM, which outlives a killed driver's Python process for a moment.

        None if it is a server's, which outlives its clients.
        """

    def has_class(self, spark: SparkSession, name: str) -> bool:
        """Whether the driver can load a Java class, jars of the session included. Does not initialize the class."""

    def has_file_system(self, spark: SparkSession, scheme: str) -> bool:
        """Whether Hadoop in the driver has a file system for the URIs of a scheme."""

    def hadoop_option(self, spark: SparkSession, name: str) -> str | None:
        """An option of Hadoop in the driver."""

    def set_hadoop_option(self, spark: SparkSession, name: str, value: str) -> None:
        """Set an option of Hadoop for the application."""

    def is_stopped(self, spark: SparkSession) -> bool:
        """Whether this process has stopped the session's context. Does not ask Spark, which may not answer."""

    def is_stopping(self, spark: SparkSession) -> bool:
        """Whether Spark is being stopped or was, which ends its queries with failures that are none of theirs."""

    def lost(self, spark: SparkSession, failure: BaseException, pid: int | None) -> Loss | None:
        """What has gone, if a call failed for that: the driver's JVM, or a server, whose session is then closed here.

        Takes up to two seconds, and only when the connection to the JVM has failed. Its pid may be unknown.
        """

    def local_properties(self, spark: SparkSession) -> Any:
        """The calling thread's local properties, such as its scheduler pool, to be passed to `activate`."""

    def activate(self, spark: SparkSession, properties: Any) -> None:
        """Make a session the active one of the calling thread, with another thread's `local_properties`."""

    def activate_if_none(self, spark: SparkSession) -> None:
        """Make a session the active one of the calling thread, unless that has one.

        Spark looks up Python data sources in it. A thread that did not create a session has none; a query started there
        fails with DATA_SOURCE_NOT_FOUND.
        """

    # -- queries

    def task_properties(self, spark: SparkSession, properties: Mapping[str, str]) -> AbstractContextManager[None]:
        """Give the tasks of a query that the calling thread starts in the block properties: see `task_property`."""

    def add_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        """Add a listener of queries, if its events can be relied on; else reports have to be polled."""

    def remove_listener(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        """Remove it, if it was added."""

    def with_local_files(
        self, spark: SparkSession, root: str, allowed: Callable[[str | None], bool]
    ) -> AbstractContextManager[None]:
        """Let a query that is started in the block use `local_files`, and no other query.

        If Spark is not made as this expects, the query runs as it would without, and a warning says why. The query is
        known by its checkpoint directory, `root`, as Spark resolves it. `allowed` is asked with the class that somebody
        has set for Spark anywhere; None: Spark chooses.
        """

    def checkpoint(self, query: StreamingQuery) -> str:
        """The checkpoint directory of a started query, as Spark resolved it: a URI such as `file:/…`."""

    def recent_progress(self, query: StreamingQuery, after: int) -> list[str]:
        """A query's progress reports of the epochs after the given one, as JSON, oldest first."""

    def own_end(self, query: StreamingQuery) -> OwnEnd | None:
        """What Spark says about the end of a query; None: nothing. Spark has to run still."""

    def ends_by_itself(self, query: StreamingQuery) -> bool:
        """Whether the trigger of a query lets it end once it has read what was there."""

    def query(self, streams: StreamingQueryManager, query_id: str) -> StreamingQuery | None:
        """An active query; also from within `QueryEvents.started`."""

    def set_task_properties(self, spark: SparkSession, query_id: str, properties: Mapping[str, str]) -> bool:
        """Give the tasks of a query that is being started local properties: from within `QueryEvents.started`.

        All tasks of the query inherit its properties; the thread that has started the query keeps its own. False if
        that could not be done: the caller is on another thread, as with PYSPARK_PIN_THREAD=false.
        """

    def has_listener(self, streams: StreamingQueryManager, listener: Any) -> bool:
        """Whether a listener that `listeners.InJvm` has added is still one of a session's."""

    # -- state

    def state_files(self, spark: SparkSession, codec: str) -> StateFiles:
        """The files of state stores; `codec` is `spark.sql.streaming.stateStore.compression.codec`."""

    def repartition_state(self, spark: SparkSession, checkpoint: str, partitions: int) -> None:
        """Let Spark distribute the state of a checkpoint directory over another number of partitions."""

    def settle_state(self, spark: SparkSession, folder: str) -> bool:
        """Wait until the state stores below a folder whose queries have ended are uploaded and closed in the driver.

        False if some are left after half a minute, or Spark does not say; a warning says why.
        """

    def diagnosis(self, spark: SparkSession) -> Diagnosis:
        """Of the session's application."""
