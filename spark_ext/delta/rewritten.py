"""What delta-rs notes wrongly in the log for files that it makes in a merge or a compaction, and how that is prevented.

It takes the bounds of a file from Parquet's statistics. A decimal becomes a double on the way, or an integer of 64 bits
that stops at its greatest value; a NaN is left out, where Spark takes it as greater than any number. Readers, and the
next merge, then pass over files with rows that they look for.

It writes out the values of partitions anew. `-1.25` becomes `-1.-25`, with which delta-rs itself cannot open the table
any more; a time loses its zone, and Spark takes it as one in the zone of its session. Where a merge meets such values,
the sink writes its files itself, see `merge_apart`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltalake import ColumnProperties
from pyspark.sql import types as spark

from spark_ext.errors import refused

_EXACT_DIGITS: Final = 15
"""Digits of a decimal that come back from a double as they were."""

_NONE: Final = ColumnProperties(statistics_enabled="NONE")
_AS_EVER: Final = ColumnProperties(statistics_enabled="PAGE")


def bounds_hold(kind: spark.DataType) -> bool:
    """Whether delta-rs notes bounds that hold for all values of a type, or none; for a struct, of all its fields."""
    if isinstance(kind, spark.StructType):
        return all(bounds_hold(field.dataType) for field in kind.fields)
    if isinstance(kind, spark.DecimalType):
        return kind.precision <= _EXACT_DIGITS
    return not isinstance(kind, (spark.FloatType, spark.DoubleType))


def statistics(schema: spark.StructType) -> Mapping[str, Any]:
    """Arguments of `WriterProperties` for files of a table; none when the bounds of all columns hold.

    Columns in a struct cannot be named to delta-rs. So if those of one do not hold, only columns outside of structs are
    given any.
    """
    bad = [field for field in schema.fields if not bounds_hold(field.dataType)]
    if not bad:
        return {}
    if not any(isinstance(field.dataType, spark.StructType) for field in bad):
        return {"column_properties": {field.name: _NONE for field in bad}}
    good = [field for field in schema.fields if field not in bad and not isinstance(field.dataType, spark.StructType)]
    return {"default_column_properties": _NONE, "column_properties": {field.name: _AS_EVER for field in good}}


def check_partitions(schema: spark.StructType, partition_by: Sequence[str], who: str) -> None:
    """Refuse partition columns whose values a compaction would change."""
    for field in schema.fields:
        if field.name not in partition_by:
            continue
        kind = field.dataType
        if isinstance(kind, spark.TimestampType):
            why, do = "loses the zone of such a value", "a date, a text or timestamp_ntz"
        elif isinstance(kind, spark.DecimalType) and kind.scale:
            why, do = "makes -1.25 into -1.-25, which nobody reads", "a text or an integer"
        else:
            continue
        raise refused(
            f"partition column '{field.name}' has the type {kind.simpleString()}, and with 'optimize_interval' files "
            f"are rewritten by the library delta-rs, which {why}",
            who,
            f"partition by another column, for example '{field.name}' as {do}; or write without 'optimize_interval'",
        )
