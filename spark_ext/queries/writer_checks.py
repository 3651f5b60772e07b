"""What a query is refused for when it is added, before anything is started.

That is everything on its writer or in its plan that a job, or a sink, could only ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from spark_ext.bad_rows.rules import COLUMN as RULES
from spark_ext.control.with_control import STAMP
from spark_ext.errors import ConfigurationError
from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT
from spark_ext.queries import operators
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.staged import StagedSource
from spark_ext.spark.backend.kinds import backend_of, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.bad_rows.rules import Rule
    from spark_ext.sources.contract import ChannelSource
    from spark_ext.spark.backend.contract import PlanSource, Watermark, WriterTarget

NOTHING_STARTED = "nothing was started; the job's state is as it was"
_AT_ONCE = ("ProcessingTimeTrigger(0)", "AvailableNowTrigger")  # the default, and that for `available_now=True`

_PROGRESS_KEPT = "spark.sql.streaming.numRecentProgressUpdates"
_COUNTS_STATE = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
_PARTITION_BY = "partition_by"  # the option by which a sink of ours takes its partition columns


def check_writer(given: Any, operator: str) -> DataStreamWriter:
    """Refuse what is not a stream's writer."""
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    wanted = 'pass the writer itself: job.add(uid, df.writeStream.format("delta_2pc").option(...))'
    name, kind = type(given).__name__, type(given)
    # The classes of Spark Connect are others, of the same names.
    if isinstance(given, DataStreamWriter) or (is_connect(given) and name == DataStreamWriter.__name__):
        backend = backend_of(given)
        if backend.is_stopped(backend.frame(given).sparkSession):
            _refuse(
                "the Spark session of the query has been stopped",
                operator,
                "make a new session, and define the query's DataFrame with it",
            )
        return cast("DataStreamWriter", given)
    if isinstance(given, StreamingQuery) or (is_connect(given) and name == StreamingQuery.__name__):
        _refuse(
            "a query that runs already was given: start() and toTable() start it outside the job",
            operator,
            "stop it with its stop(), and leave start() or toTable() out; delta_2pc takes the name of a table as the "
            f"option 'table'; {wanted}",
        )
    if isinstance(given, DataFrame):
        _refuse("a DataFrame was given, which does not say where its rows go", operator, wanted)
    if kind.__module__.startswith("pyspark.sql") and "Writer" in name:
        _refuse(
            "the writer of a batch was given",
            operator,
            "read the input with spark.readStream and write it with df.writeStream, not df.write",
        )
    shown = "None" if given is None else f"an object of type {name}"
    _refuse(f"{shown} was given as the query's writer", operator, wanted)


def check_session(spark: SparkSession, operator: str) -> None:
    """Refuse settings of the session under which no query of Spark's runs."""
    kept = str(spark.conf.get(_PROGRESS_KEPT, "100"))
    if kept.lstrip("-").isdigit() and int(kept) < 1:
        _refuse(
            f"{_PROGRESS_KEPT} is {kept}: Spark ends a query with 'empty collection' when it keeps no progress report",
            operator,
            "set it to 1 or more; its default is 100",
        )


def counts_state(spark: SparkSession) -> bool:
    """Whether Spark counts the rows of states. Where it does not, it reports 0 whatever there is."""
    return str(spark.conf.get(_COUNTS_STATE, "true")).strip().lower() == "true"


def check_target(target: WriterTarget, operator: str) -> None:
    """Refuse what a job sets itself, and what the sink cannot do."""
    if "checkpointlocation" in target.options:
        _refuse(
            "the option 'checkpointLocation' is set; a job manages the checkpoints of its queries",
            operator,
            "remove the option; the checkpoint is kept in the job's state directory",
        )
    if "OneTimeTrigger" in target.trigger:
        _refuse(
            "Trigger.Once runs one epoch and stops before the end of input can be processed",
            operator,
            "remove the trigger: the job ends by itself when its bounded sources do",
        )
    if target.trigger not in _AT_ONCE:
        _refuse(
            f"the trigger {target.trigger} is set; a job starts the epochs of its queries itself",
            operator,
            "remove trigger(...); Job(..., interval='10 s') sets the minimum time between epochs",
        )
    if not operators.is_sink(target.format):
        return
    if target.output_mode != "Append":
        _refuse(
            f"the output mode is {target.output_mode.lower()}; the sink '{target.format}' appends: it would add the "
            "whole result, or each change of a row, as further rows",
            operator,
            "remove outputMode(...) and define an event-time watermark with spark_ext.with_watermark, so that each "
            "result is emitted once, when it is complete",
        )
    if target.clustering:
        _refuse(
            f"clusterBy({', '.join(target.clustering)}) is set; the sink '{target.format}' does not cluster",
            operator,
            "remove clusterBy(...)",
        )


def partition_option(target: WriterTarget, operator: str) -> str | None:
    """The value of the option `partition_by` that stands for the writer's `partitionBy`; None if that was not called.

    Spark hands the columns only to its own sinks.
    """
    if not target.partitioning or not operators.is_sink(target.format):
        return None
    shown = f"partitionBy({', '.join(target.partitioning)})"
    if not operators.has_option(target.format, _PARTITION_BY):
        _refuse(f"{shown} is set; the sink '{target.format}' has no partitions", operator, "remove partitionBy(...)")
    unusual = [name for name in target.partitioning if "," in name or name != name.strip()]
    if unusual:
        _refuse(
            f"{shown}: the sink '{target.format}' takes no column '{unusual[0]}', whose name has a comma or begins or "
            "ends with a blank",
            operator,
            "rename the column",
        )
    value = ",".join(target.partitioning)
    given = target.options.get(_PARTITION_BY)
    if given is not None and [name.strip() for name in given.split(",")] != list(target.partitioning):
        _refuse(f"{shown} is set, and the option '{_PARTITION_BY}' is '{given}'", operator, "use one of them")
    return value


def check_source(leaf: PlanSource, operator: str, *, available_now: bool) -> None:
    """Refuse a channel source that could not run, or not end."""
    source = operators.source(leaf.format, leaf.options)
    if available_now and isinstance(source, AlignedSource):
        _refuse(
            f"the query has available_now, and source '{source.options.uid}' ({leaf.format}) ends when the query that "
            "feeds it has finished, not with what is there now",
            operator,
            "remove available_now",
        )
    if available_now and leaf.format != STAMP and not _bounded(source):
        _refuse(
            f"the query has available_now, which is for Spark's own sources, and source '{source.options.uid}' "
            f"({leaf.format}) has no end",
            operator,
            "remove available_now: job.run(until='now') reads what is there, and ends; without `until` the query runs "
            f"on; or give the source an end: {_BOUNDED.get(leaf.format, 'its page says how')}",
        )


def check_ends_now(sources: Iterable[tuple[str, Mapping[str, str]]], operator: str) -> None:
    """Refuse a run that ends with what is there over a source that always has more."""
    for form, options in sources:
        source = operators.source(form, options)
        if not source.ends_now:
            _refuse(
                f"the run is to end with what is there now, and source '{source.options.uid}' ({form}) has no end and "
                "does not say how much it holds: there would always be more to read",
                operator,
                "run the job without until='now', or limit the source: its page says how",
            )


_BOUNDED = {
    "files": "remove 'watch'",
    "kafka_range": "set 'ending' to something other than 'none'",
    "postgres": "remove 'incremental'",
    "datagen": "set 'rows' or 'rows_of'",
    "hybrid": "that of its last stage",
}


def check_watermarks(found: tuple[Watermark, ...], operator: str) -> None:
    """Refuse Spark's own watermark over sources that end.

    Nothing advances it past the last row: the last windows would stay in the state, and the query would be finished.
    """
    for watermark in found:
        formats = [leaf.format for leaf in watermark.sources]
        if END_OF_INPUT in formats:
            continue
        ours = [leaf for leaf in watermark.sources if leaf.uid is not None and operators.is_source(leaf.format)]
        # Over one of Spark's own sources both are the same: nobody knows its end.
        if len(ours) < len(watermark.sources):
            continue
        over = ", ".join(f"'{leaf.uid}'" for leaf in ours)
        below = f"source{'s' if len(ours) > 1 else ''} {over}" if ours else "another watermark"
        _refuse(
            f"withWatermark on column '{watermark.column}' over {below} does not pass the last row: when the input "
            "ends, the last windows would stay in the state and never be emitted",
            operator,
            f"use spark_ext.with_watermark(df, '{watermark.column}', delay) in place of df.withWatermark, once for "
            "each source",
        )


def check_rules(rules: Sequence[Rule], writer: DataStreamWriter, form: str, operator: str) -> None:
    """Refuse rules that other operations follow, and rules that the sink cannot carry out."""
    frame = backend_of(writer).frame(writer)
    made = backend_of(frame).makes(frame, RULES)
    if made is not None and not (rules and made):
        _refuse(
            "other operations follow the rules of spark_ext.expect, which judge the rows that are written",
            operator,
            "call spark_ext.expect last, just before writeStream; to judge the rows before an aggregation or a join, "
            "let a query of its own write them, with rules, into an exchange or a table, and read that",
        )
    for rule in rules:
        if not operators.is_sink(form):
            _refuse(
                f"{rule.said} is for sinks of this library, and '{form}' is one of Spark's own",
                operator,
                "write to such a sink, or filter the rows in the query",
            )
        sink = operators.sink(form, backend_of(writer).target(writer).options)
        if rule.on_fail == "quarantine" and sink.options.on_bad_row != "quarantine":
            named = f"the sink '{sink.options.uid}' ({form})"
            _refuse(
                f"{rule.said} puts rows aside, and {named} "
                + ("has on_bad_row=fail" if sink.quarantines else "cannot put rows aside"),
                operator,
                ("set the sink's option on_bad_row=quarantine, or " if sink.quarantines else "")
                + "give the rule another on_fail",
            )


def check_finalization(found: Mapping[str, str], natives: Sequence[str], operator: str) -> None:
    """Refuse an operator that has to be finalized beside one of Spark's own sources."""
    for uid, form in found.items() if natives else ():
        if operators.requires_finalization(form):
            _refuse(
                f"'{uid}' ({form}) has to be finalized at the end of input (requires_finalization), which "
                f"may take further epochs without rows, and {natives[0]} would read more input in each of them",
                operator,
                "read the input with a source of this library, or write it with a sink that need not be finalized",
            )


def _bounded(source: ChannelSource) -> bool:
    return source.ends if isinstance(source, StagedSource) else source.bounded


def _refuse(what: str, operator: str, do: str) -> NoReturn:
    raise ConfigurationError(what, operator=operator, kept=NOTHING_STARTED, do=do)
