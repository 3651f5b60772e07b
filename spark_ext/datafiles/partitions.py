"""Rows split by the values of their partition columns, with the values in the text form of Delta's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from spark_ext.datafiles import partition_values as values
from spark_ext.errors import NOTHING_VISIBLE, DataError
from spark_ext.schemas.values import refuse_far_times

if TYPE_CHECKING:
    from numpy.typing import NDArray


def split(
    batch: pa.RecordBatch, keys: Sequence[spark.StructField], who: str
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each combination of partition values, in their order."""
    spelled: list[list[str | None]] = []
    code: NDArray[np.int64] | None = None
    for key in keys:
        distinct, rows = _spelled(batch, key, who)
        texts, numbers = _merged(distinct)
        mine = numbers[rows]
        spelled.append(texts)
        code = mine if code is None else code * len(texts) + mine
    assert code is not None
    if batch.num_rows == 1 or (code == code[0]).all():
        yield _decode(int(code[0]), spelled), batch
        return
    order = np.argsort(code, kind="stable")
    sorted_rows = batch.take(pa.array(order))
    codes, starts = np.unique(code[order], return_index=True)
    ends = [*starts[1:].tolist(), batch.num_rows]
    for one, start, end in zip(codes.tolist(), starts.tolist(), ends, strict=True):
        yield _decode(one, spelled), sorted_rows.slice(start, end - start)


def check_values(batch: pa.RecordBatch, keys: Sequence[spark.StructField], who: str) -> None:
    """Refuse rows with a value that has no text form, as `split` does."""
    for key in keys:
        _spelled(batch, key, who)


def check_rewritten(batch: pa.RecordBatch, keys: Sequence[spark.StructField], longest: int | None, who: str) -> None:
    """Refuse rows that delta-rs cannot compact, or after which readers fail."""
    # It shortens no folder's name (of at most `longest` bytes), as `split` does, and notes bounds of dates and times
    # that have no text form.
    try:
        refuse_far_times(batch)
    except ValueError as problem:
        do = "filter such rows out, or write without optimize_interval"
        raise _refused(f"{problem}, where files are rewritten", who, do) from None
    for key in keys:
        for text in _spelled(batch, key, who)[0]:
            if text is not None and isinstance(key.dataType, (spark.FloatType, spark.DoubleType)):
                text = format(Decimal(text), "f")  # delta-rs writes no exponents
            size = len(values.folder(key.name, text, shortened=False))
            if longest is not None and size > longest:
                raise _refused(
                    f"a value of the partition column '{key.name}' makes the name of a folder {size} bytes long where "
                    f"files are rewritten; file systems allow {longest}: {str(text)[:60]!r}...",
                    who,
                    "shorten the value in the query, or partition by another column",
                )


def _spelled(batch: pa.RecordBatch, key: spark.StructField, who: str) -> tuple[list[str | None], NDArray[np.int64]]:
    """The texts of the distinct values, null included, and for each row the number of its value."""
    column = batch.column(batch.schema.get_field_index(key.name)).dictionary_encode(null_encoding="encode")
    return [_text(key, value, who) for value in _raw(column.dictionary)], column.indices.to_numpy(zero_copy_only=False)


def _merged(texts: list[str | None]) -> tuple[list[str | None], NDArray[np.int64]]:
    """The distinct texts, and for each given text its number: NaNs of different bits have the same text."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(distinct), np.array([distinct[text] for text in texts], dtype=np.int64)


def _decode(code: int, spelled: Sequence[list[str | None]]) -> tuple[str | None, ...]:
    out = []
    for texts in reversed(spelled):
        code, number = divmod(code, len(texts))
        out.append(texts[number])
    return tuple(reversed(out))


def _raw(column: pa.Array) -> list[Any]:
    """Python values; times as plain numbers, because Python's own types end at the year 9999."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return list(column.to_pylist())


def _text(key: spark.StructField, value: Any, who: str) -> str | None:
    kind = key.dataType
    if value is None:
        return None
    if value in ("", values.NULL_FOLDER):
        shown = f"the text '{value}'" if value else "the empty text"
        raise _refused(
            f"a value of the partition column '{key.name}' is {shown}, which readers take for null",
            who,
            "make it another text or null in the query, or partition by other columns",
        )
    text: str | None
    if isinstance(kind, spark.BooleanType):
        text = "true" if value else "false"
    elif isinstance(kind, (spark.FloatType, spark.DoubleType)):
        text = values.float_text(value, single=isinstance(kind, spark.FloatType))
    elif isinstance(kind, spark.DecimalType):
        text = format(value, "f")
    elif isinstance(kind, spark.DateType):
        text = values.day_text(value)
    elif isinstance(kind, spark.TimestampType):
        text = values.moment_text(value, utc=True)
    elif isinstance(kind, spark.TimestampNTZType):
        # Delta uses the `T` form only for times in UTC.
        text = (values.moment_text(value, utc=False) or "").replace("T", " ") or None
    else:
        text = str(value)
    if text is None:
        raise _refused(
            f"partition column '{key.name}' has a {kind.simpleString()} outside the years 1 to 9999",
            who,
            "filter such rows out, or partition by another column",
        )
    return text


def _refused(what: str, who: str, do: str) -> DataError:
    return DataError(what, operator=who, kept=NOTHING_VISIBLE, do=do)
