"""`with_watermark`: an event-time watermark that advances to the end of time when its input ends.

Spark's own `withWatermark` never advances past the last row of bounded input: the last windows, sessions and unmatched
rows are never emitted and their state is kept. Here a marker row, far in the future, is added just before the watermark
operator once all input has ended, and removed just after it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.errors import refused
from spark_ext.model.end_of_input import (
    DELAY,
    EVENT_TIME,
    FORMAT,
    NEVER,
    PRODUCERS_DELAY,
    STAYS,
    TIME,
    UNKNOWN,
    ZERO,
    marker_uid,
    max_policy_error,
)
from spark_ext.options import UID
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_ext.spark.backend.contract import PlanSource

_KEPT: Final = "nothing was started"


def with_watermark(
    df: DataFrame, column: str, delay: str, *, processing_timers: Literal["fire", "drop"] = "drop"
) -> DataFrame:
    """Define an event-time watermark that advances past the last row when all input below it has ended.

    Use it instead of `df.withWatermark(column, delay)`. Until the input ends it does the same. When every source below
    has ended (all channels of a bounded source have finished, or it was drained), and its last rows are committed, the
    watermark advances to the end of time: windows, sessions, deduplications, interval joins and event-time timers emit
    their results and free their state.

    Inside a `Job` only; elsewhere, and if a source has no `uid` or is one of Spark's own, the end is never known and
    the result is that of `withWatermark`. A batch DataFrame has no watermark, and no row of it is late.

    Rows and the order, names, types and nullability of columns are unchanged; rows with a null or far-future event
    time are kept. (A far-future row advances the watermark, as with Spark's own.)

    Define one watermark per source, `with_watermark(a).unionByName(with_watermark(b))`, not one over the union, if one
    of them ends before the other. Both forms are correct; in the first one a source that has ended no longer holds the
    watermark back.

    Over `exchange.read` the watermark of the query that writes the exchange is taken over, if it is about this column:
    the least one of several. A `delay` longer than that query's keeps it back by the difference.

    Args:
        df: a streaming DataFrame, or a batch one.
        column: a top-level column of type timestamp.
        delay: how late rows may be, as in Spark: `"1 hour"`.
        processing_timers: what becomes of timers in processing time that are not due when the input has ended: `fire`
            waits for them, up to the job's `finalization_timeout`; with `drop` they never fire.

    Raises:
        ConfigurationError: `df` has a watermark already or reads one uid twice; the column is missing or not a
            timestamp; the session's watermark policy is `max`.
    """
    who = f"with_watermark on column '{column}'"
    leaves = _check(df, who) if df.isStreaming else ()
    sources = tuple(leaf.uid or UNKNOWN for leaf in leaves)
    field = _event_time(df, column, who)
    if processing_timers not in ("fire", "drop") or (processing_timers == "fire" and UNKNOWN in sources):
        unknown = "the end of a source without a uid is not known"
        raise refused(
            f"processing_timers is '{processing_timers}'{f', and {unknown}' if processing_timers == 'fire' else ''}",
            who,
            "use 'drop', or 'fire' over sources of this library with a uid",
            _KEPT,
        )
    if UNKNOWN in sources or not df.isStreaming:
        # The end of a source without a uid is unknown; a batch query has no watermark, and no row is late.
        return df.withWatermark(column, delay)
    flag = "__end_of_input"  # the column that distinguishes the marker from the user's rows
    while flag.lower() in {name.lower() for name in df.columns}:
        flag += "_"
    taken_over = _taken_over(df, leaves, field, column, delay)
    options = {STAYS: ",".join(map(str, taken_over.stays))} if taken_over else {}
    options |= {"processing_timers": "fire"} if processing_timers == "fire" else {}
    marker = _marker(df.sparkSession, sources, options, df.schema, field, flag)
    name = df.columns[field]
    time = F.col(f"`{name.replace('`', '``')}`")
    if taken_over is None:
        # Spark reports the greatest event time of the whole query alone; each watermark's is put back at a start.
        df = df.observe(marker_uid(sources), F.max(F.unix_micros(time)).alias(EVENT_TIME))
    both = df.withColumn(flag, F.lit(False)).union(marker).withWatermark(column, NEVER if taken_over else delay)
    # The form matters. Spark pushes filters below the watermark operator, where they would remove the marker; a single
    # expression that is not deterministic stays in place. (A conjunction would be split, and a part of it pushed.)
    stays = F.when(F.spark_partition_id() >= 0, ~F.col(flag)).otherwise(F.lit(False))
    kept = both.where(stays).drop(flag)
    if taken_over is None:
        return kept
    # What depends on the delay, such as dropDuplicatesWithinWatermark, reads it from the column. Over Connect,
    # withColumn would drop it.
    columns = [F.col(str(number)).alias(name) for number, name in enumerate(df.columns)]
    columns[field] = F.col(str(field)).alias(name, metadata={DELAY: taken_over.delay})
    return kept.toDF(*map(str, range(len(columns)))).select(*columns)


class _TakenOver(NamedTuple):
    """A watermark that is that of other queries of the job, which write what its sources read."""

    delay: int  # the longest of its own and theirs, ms
    stays: tuple[int, ...]  # by how much it stays behind that of each, ms


def _taken_over(df: DataFrame, leaves: Sequence[PlanSource], field: int, column: str, delay: str) -> _TakenOver | None:
    """What to take over; None if rows move the watermark: the column is not that of each exchange, as it was read."""
    if PRODUCERS_DELAY not in (df.schema[field].metadata or {}):
        return None
    theirs = [json.loads(leaf.options.get("watermarks", "{}")).get(df.columns[field]) for leaf in leaves]
    if None in theirs or backend_of(df).stateful_operators(df):
        return None
    own = int(df.withWatermark(column, delay).schema[field].metadata[DELAY])
    return _TakenOver(max(own, *theirs), tuple(max(0, own - one) for one in theirs))


def _check(df: DataFrame, who: str) -> tuple[PlanSource, ...]:
    """The sources below, without its uid if it cannot be known when one ends."""
    policy = df.sparkSession.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    if str(policy).lower() == "max":
        raise max_policy_error(who)
    leaves = backend_of(df).sources(df)
    if any(leaf.format == FORMAT for leaf in leaves) or backend_of(df).watermarks(df):
        raise refused(
            "there is a watermark below this one already; a source has one watermark",
            f"{who}, above {', '.join(leaf.description for leaf in leaves if leaf.format != FORMAT)}",
            "define it once per source, before joins, unions and aggregations; chained aggregations use "
            "window(window_column, ...) with the same watermark",
            _KEPT,
        )
    known = [leaf if leaf.uid and UID.fullmatch(leaf.uid) else replace(leaf, uid=None) for leaf in leaves]
    for uid, count in Counter(leaf.uid for leaf in known).items():
        if count > 1 and uid is not None:
            raise refused(
                f"source '{uid}' occurs {count} times below the watermark; its state would be ambiguous",
                who,
                "load the source once per use, each time with a uid of its own (a self-join too)",
                _KEPT,
            )
    return tuple(known)


def _event_time(df: DataFrame, column: str, who: str) -> int:
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    fold = str if sensitive else str.lower
    found = [position for position, name in enumerate(df.columns) if fold(name) == fold(column.strip("`"))]
    if len(found) != 1:
        raise refused(
            f"no column '{column}' exists" if not found else f"{len(found)} columns are named '{column}'",
            who,
            f"name one top-level column of: {', '.join(df.columns)}",
            _KEPT,
        )
    kind = df.schema[found[0]].dataType
    if not isinstance(kind, T.TimestampType):
        # Spark accepts a window (a struct) too, but reads its time from the wrong offset: the watermark is garbage.
        value = f"F.window_time('{column}')" if isinstance(kind, T.StructType) else f"F.col('{column}')"
        raise refused(
            f"column '{column}' is of type {kind.simpleString()}; an event time is a timestamp",
            who,
            f"convert it to a timestamp first: df.withColumn('at', {value}.cast('timestamp'))",
            _KEPT,
        )
    return found[0]


def _marker(
    spark: SparkSession,
    watches: Sequence[str],
    options: Mapping[str, str],
    schema: T.StructType,
    event_time: int,
    flag: str,
) -> DataFrame:
    """The marker row with the columns of the user's rows, and the flag."""
    backend_of(spark).activate_if_none(spark)
    uid = marker_uid(watches)
    reader = spark.readStream.format(FORMAT).options(uid=uid, watches=",".join(watches), **options)
    end = backend_of(spark).name_source(reader, spark, uid).load()
    values: list[Column] = []
    for position, field in enumerate(schema):
        never_null = zero(field.dataType) if not field.nullable else None
        value = _unforeseen(F.lit(None).cast(field.dataType) if never_null is None else never_null)
        if position == event_time:
            value = F.col(TIME)
        if never_null is not None:
            # Columns of a source are nullable, and a union is nullable if one side is.
            value = F.coalesce(value, never_null)
        values.append(value.alias(field.name))
    return end.select(*values, (F.col(ZERO) == 0).alias(flag))


def _unforeseen(value: Column) -> Column:
    """The value, in a form that hides it from the optimizer.

    In an epoch in which one side of a join has only its marker, Spark would assume that *all* rows of that side have a
    constant's value, including those in the state, and drop rows of the other side that cannot match it.
    """
    return F.get(F.array(value), F.col(ZERO))


def zero(kind: T.DataType) -> Column | None:
    """A value that is not null, for a column that is never read; None for a type without a known value."""
    if isinstance(kind, T.StructType):
        parts = [F.lit(None).cast(field.dataType) if field.nullable else zero(field.dataType) for field in kind]
        known = [part for part in parts if part is not None]
        named = [part.alias(field.name) for part, field in zip(known, kind, strict=False)]
        return F.struct(*named).cast(kind) if len(known) == len(parts) > 0 else None
    if isinstance(kind, T.ArrayType):
        return F.array().cast(kind)
    if isinstance(kind, T.MapType):
        return F.create_map().cast(kind)
    if isinstance(kind, (T.NumericType, T.BooleanType)):
        return F.lit(0).cast(kind)
    if isinstance(kind, (T.StringType, T.BinaryType)):
        return F.lit("").cast(kind)
    for name, time in (("date", T.DateType), ("timestamp_ltz", T.TimestampType), ("timestamp_ntz", T.TimestampNTZType)):
        if isinstance(kind, time):
            return F.expr(f"{name}'1970-01-01'")
    return None
