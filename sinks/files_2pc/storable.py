"""Which rows a file format can hold: what would fail while a file is written is found before, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as spark

if TYPE_CHECKING:
    import pyarrow as pa

UNSTORABLE: Final = (ValueError, OverflowError)
"""What `Storable.check` raises; Arrow's own errors are among them."""

_TEXTS: Final = (spark.StringType, spark.CharType, spark.VarcharType)
_TIMES: Final = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)


class Storable:
    """The check of a task's batches.

    Args:
        schema: of the rows.
        form: `parquet`, `csv` or `json`.
        partition_by: columns that are in no file.
    """

    def __init__(self, schema: spark.StructType, form: str, partition_by: Sequence[str]) -> None:
        kept = [(number, field) for number, field in enumerate(schema.fields) if field.name not in partition_by]
        text = form != "parquet"
        self._times = [number for number, field in kept if text and isinstance(field.dataType, _TIMES)]
        # Their values become Python's.
        self._nested = [
            number
            for number, field in kept
            if form == "json" and not isinstance(field.dataType, spark.AtomicType) and _has_times(field.dataType)
        ]
        self._form = form
        self._texts = [number for number, field in kept if text and isinstance(field.dataType, _TEXTS)]

    def check(self, batch: pa.RecordBatch) -> None:
        """Find out whether all rows can be written; cheap but for nested columns that have times.

        Raises:
            ValueError, OverflowError: one of them cannot.
        """
        from spark_ext.sinks.files_2pc.text import refuse_far_times, refuse_lost_texts

        refuse_far_times([(batch.schema.names[number], batch.column(number)) for number in self._times])
        refuse_lost_texts([(batch.schema.names[number], batch.column(number)) for number in self._texts], self._form)
        for number in self._nested:
            try:
                batch.column(number).to_pylist()
            except UNSTORABLE:
                raise ValueError(
                    f"column '{batch.schema.names[number]}' has a time outside the years 1 to 9999"
                ) from None


def _has_times(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StructType):
        return any(_has_times(field.dataType) for field in kind.fields)
    if isinstance(kind, spark.ArrayType):
        return _has_times(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _has_times(kind.keyType) or _has_times(kind.valueType)
    return isinstance(kind, _TIMES)
