"""`with_control`: control events for a query that has none of this package's sources.

What is in force in an epoch is part of its offsets, and the offsets of Spark's own sources have no place for it. An
empty source beside them has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.errors import refused
from spark_ext.options import UID
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session import formats
from spark_ext.watermark import zero

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAMP: Final = "control_stamp"  # format of the empty source
_KEPT: Final = "nothing was started"


def with_control(df: DataFrame, uid: str) -> DataFrame:
    """Add an empty source to a stream of Spark's own sources, so that its query obeys control events in its epochs.

    Without it, events for the epochs of such a query (`set_config`, `broadcast`, `trigger_interval` ...) are rejected.
    Rows and the order, names, types and nullability of columns are unchanged. It cannot slow down or pause Spark's own
    sources: these do not know it. A batch DataFrame has no epochs, and is returned as it is.

    The sources of a query are a part of its checkpoint: it can be added to a new query, or to one that is reset.

        frame = sx.with_control(spark.readStream.format("rate").load(), uid="rate-control")

    Args:
        df: a streaming DataFrame, or a batch one; best right after `load()`.
        uid: of the added source; unique in the job.

    Raises:
        ConfigurationError: `df` has a source of this package, which has such offsets already.
    """
    operator = f"with_control(uid={uid!r})"
    if not isinstance(uid, str) or not UID.fullmatch(uid):
        raise refused(
            f"{uid!r} cannot be a source's uid",
            operator,
            "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
            _KEPT,
        )
    if not df.isStreaming:
        return df
    for leaf in backend_of(df).sources(df):
        if formats.is_channel_source(leaf.format):
            raise refused(
                f"the stream has a source of spark-ext: {leaf.description}, whose query obeys control events already",
                operator,
                "leave with_control out",
                _KEPT,
            )
    spark, backend = df.sparkSession, backend_of(df)
    backend.activate_if_none(spark)
    reader = backend.name_source(spark.readStream.format(STAMP).option("uid", uid), spark, uid)
    # Names of its own: a stream may have two columns of one name.
    declared = T.StructType([T.StructField(f"c{at}", field.dataType) for at, field in enumerate(df.schema)])
    empty = reader.schema(declared).load()
    columns: list[Column] = []
    for at, field in enumerate(df.schema):
        found = F.col(f"c{at}")
        never_null = zero(field.dataType) if not field.nullable else None
        # Columns of a source are nullable, and a union is nullable if one side is.
        columns.append((found if never_null is None else F.coalesce(found, never_null)).alias(field.name))
    return df.union(empty.select(*columns))
