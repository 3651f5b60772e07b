"""`with_watermark`: an event-time watermark that reaches the end of time when its input ends.

Spark's own `withWatermark` never passes the last row of bounded input by more than the delay: the last windows,
sessions and unmatched rows never come out and their state stays. Here a marker row, far in the future, is mixed in just
before the watermark operator once all input has ended, and taken out just after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError
from spark_ext.model.end_of_input import FORMAT, TIME, UNKNOWN, ZERO, marker_uid, max_policy_error
from spark_ext.options import UID
from spark_ext.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FLAG: Final = "__end_of_input"
"""The column that tells the marker from the user's rows; it exists around the watermark operator only."""

_KEPT: Final = "nothing was started"


def with_watermark(df: DataFrame, column: str, delay: str) -> DataFrame:
    """Define an event-time watermark that passes the last row when all input below it has ended.

    Use it in the place of `df.withWatermark(column, delay)`. While input lasts it does the same. When every source
    below has ended (all channels of a bounded source have finished, or it was drained), and its last rows are
    committed, the watermark jumps to the end of time: windows, sessions, deduplications, joins within an interval
    and event-time timers emit what they hold and free it.

    Inside a `Job` only; elsewhere, and when a source has no `uid` or is one of Spark's own, the end is never known
    and the result is that of `withWatermark`. Rows, their order of columns, names, types and nullability are
    unchanged; rows with a null or far-future event time pass. (A far-future row moves the watermark, as it does with
    Spark's own.)

    One watermark per source: `with_watermark(a).unionByName(with_watermark(b))`, not one over the union, if one of
    them ends before the other. Both forms are correct; the first lets the one that ended no longer hold time back.

    Args:
        df: a streaming DataFrame.
        column: a top-level column of type timestamp.
        delay: how late rows may be, in Spark's words: `"1 hour"`.

    Raises:
        ConfigurationError: `df` is not streaming, has a watermark already or reads one uid twice; the column is
            missing or no timestamp; the session's watermark policy is `max`.
    """
    who = f"with_watermark on column '{column}'"
    sources = _check(df, who)
    field = _event_time(df, column, who)
    if UNKNOWN in sources:
        # Nobody can tell when a source without a uid ends, so there is no end to be told of.
        return df.withWatermark(column, delay)
    flag = FLAG
    while flag.lower() in {name.lower() for name in df.columns}:
        flag += "_"
    marker = _marker(df.sparkSession, sources, df.schema, field, flag)
    both = df.withColumn(flag, F.lit(False)).union(marker).withWatermark(column, delay)
    # The form matters. Spark moves filters below the watermark operator, where they would eat the marker; one
    # expression that is not deterministic as a whole stays where it is. (A conjunct would be split off and moved.)
    stays = F.when(F.spark_partition_id() >= 0, ~F.col(flag)).otherwise(F.lit(False))
    return both.where(stays).drop(flag)


def _check(df: DataFrame, who: str) -> tuple[str, ...]:
    """The uids below, `?` for a source without one."""
    if not df.isStreaming:
        raise ConfigurationError(
            "the DataFrame is not streaming: a batch query has no watermark",
            operator=who,
            kept=_KEPT,
            do="leave with_watermark out in batch, or read the input with spark.readStream",
        )
    policy = df.sparkSession.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    if str(policy).lower() == "max":
        raise max_policy_error(who)
    leaves = jvm.plan_sources(df)
    if any(leaf.format == FORMAT for leaf in leaves) or jvm.has_watermark(df):
        raise ConfigurationError(
            "there is a watermark below this one already; a source has one watermark",
            operator=f"{who}, above {', '.join(leaf.description for leaf in leaves if leaf.format != FORMAT)}",
            kept=_KEPT,
            do="define it once per source, before joins, unions and aggregations; chained aggregations go on with "
            "window(window_column, ...) under the one watermark",
        )
    uids = tuple(leaf.uid if leaf.uid and UID.fullmatch(leaf.uid) else UNKNOWN for leaf in leaves)
    for uid, count in Counter(uids).items():
        if count > 1 and uid != UNKNOWN:
            raise ConfigurationError(
                f"source '{uid}' occurs {count} times below the watermark; its state could go to either",
                operator=who,
                kept=_KEPT,
                do="load the source once per use, each time with a uid of its own (a self-join too)",
            )
    return uids


def _event_time(df: DataFrame, column: str, who: str) -> int:
    """The position of the event-time column."""
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    fold = str if sensitive else str.lower
    found = [position for position, name in enumerate(df.columns) if fold(name) == fold(column.strip("`"))]
    if len(found) != 1:
        raise ConfigurationError(
            f"there is no column '{column}'" if not found else f"{len(found)} columns are named '{column}'",
            operator=who,
            kept=_KEPT,
            do=f"name one top-level column of: {', '.join(df.columns)}",
        )
    kind = df.schema[found[0]].dataType
    if not isinstance(kind, T.TimestampType):
        # Spark would take a window (a struct) too, but reads its time from the wrong place: the watermark is garbage.
        value = f"F.window_time('{column}')" if isinstance(kind, T.StructType) else f"F.col('{column}')"
        raise ConfigurationError(
            f"column '{column}' is of type {kind.simpleString()}; an event time is a timestamp",
            operator=who,
            kept=_KEPT,
            do=f"make a timestamp of it first: df.withColumn('at', {value}.cast('timestamp'))",
        )
    return found[0]


def _marker(spark: SparkSession, watches: Sequence[str], schema: T.StructType, event_time: int, flag: str) -> DataFrame:
    """The marker's row in the shape of the user's rows, and the flag."""
    end = spark.readStream.format(FORMAT).option("uid", marker_uid(watches)).option("watches", ",".join(watches)).load()
    values: list[Column] = []
    for position, field in enumerate(schema):
        zero = _zero(field.dataType) if not field.nullable else None
        value = _unforeseen(F.lit(None).cast(field.dataType) if zero is None else zero)
        if position == event_time:
            value = F.col(TIME)
        if zero is not None:
            # What comes from a source counts as nullable, and a union is nullable as soon as one side is.
            value = F.coalesce(value, zero)
        values.append(value.alias(field.name))
    return end.select(*values, (F.col(ZERO) == 0).alias(flag))


def _unforeseen(value: Column) -> Column:
    """The value, in a form that the optimizer cannot see through.

    In an epoch in which a joined side has nothing but its marker, Spark would take a constant for what *all* rows of
    that side have, those in the state included, and drop the other side's rows that cannot match it.
    """
    return F.get(F.array(value), F.col(ZERO))


def _zero(kind: T.DataType) -> Column | None:
    """A value that is not null, for a column that nobody will read; None for a type without one that we know of."""
    if isinstance(kind, T.StructType):
        parts = [F.lit(None).cast(field.dataType) if field.nullable else _zero(field.dataType) for field in kind]
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
