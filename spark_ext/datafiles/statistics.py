"""The statistics of the first columns of a data file by which readers of a Delta table skip it, as in Delta's protocol.

Minimum and maximum come from Parquet's own statistics, which the writer computes anyway; long strings are truncated so
that the bounds still hold. Floats are computed here: Parquet leaves NaN out of its statistics, while for Spark it is
greater than any number, so Spark would skip row groups that contain matching rows. Floats therefore get no statistics
inside the file, and no maximum here if there is a NaN. For arrays and maps, nulls of the column itself are counted, not
those of its leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from spark_ext.datafiles import partition_values as values

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_FLOATS = (spark.FloatType, spark.DoubleType)


@dataclass(frozen=True)
class Leaf:
    """A column of the statistics: a primitive one, possibly inside structs, or a whole array or map."""

    path: tuple[str, ...]
    kind: spark.DataType
    positions: tuple[int, ...]  # the path as positions of columns and fields
    parquet: int | None  # position in the file; None: an array or map has several columns there

    @property
    def is_float(self) -> bool:
        """Whether it may contain NaN."""
        return isinstance(self.kind, _FLOATS)


def leaves(schema: spark.StructType, limit: int) -> tuple[Leaf, ...]:
    """The first columns of a file, which has no partition columns, depth first."""
    found: list[Leaf] = []
    position = 0

    def visit(kind: spark.DataType, path: tuple[str, ...], positions: tuple[int, ...]) -> None:
        nonlocal position
        if isinstance(kind, spark.StructType):
            for at, field in enumerate(kind.fields):
                visit(field.dataType, (*path, field.name), (*positions, at))
            return
        nested = isinstance(kind, (spark.ArrayType, spark.MapType))
        found.append(Leaf(path, kind, positions, None if nested else position))
        position += _width(kind)

    visit(schema, (), ())
    return tuple(found if limit < 0 else found[:limit])


def _width(kind: spark.DataType) -> int:
    """The number of columns that a type takes in the file."""
    if isinstance(kind, spark.StructType):
        return sum(_width(field.dataType) for field in kind.fields)
    if isinstance(kind, spark.ArrayType):
        return _width(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _width(kind.keyType) + _width(kind.valueType)
    return 1


def names_with_statistics(schema: spark.StructType) -> list[str]:
    """Parquet's names of the columns that get statistics inside the file: all primitive ones except floats."""
    # A column `a.b` has the name of the field `b` of a column `a`: it has none if that is a float.
    found = leaves(schema, -1)
    floats = {".".join(leaf.path) for leaf in found if leaf.is_float}
    names = [".".join(leaf.path) for leaf in found if leaf.parquet is not None]
    return [name for name in names if name not in floats]


@dataclass
class _Seen:
    """What was seen of a column that Parquet's statistics do not cover."""

    nulls: int = 0
    low: float = math.inf
    high: float = -math.inf
    nan: bool = False

    def floats(self, column: pa.ChunkedArray) -> None:
        """Add the bounds of more rows."""
        if column.null_count == len(column):
            return
        bounds = pc.min_max(column).as_py()  # without NaN, unless there is nothing else
        if not math.isnan(bounds["min"]):
            self.low, self.high = min(self.low, bounds["min"]), max(self.high, bounds["max"])
        self.nan = self.nan or bool(pc.any(pc.is_nan(column)).as_py())

    def bounds(self) -> _Bounds:
        """As Parquet would report them; a NaN is a maximum without a text form."""
        return _Bounds(self.low, math.nan if self.nan else self.high, self.nulls)


class Statistics:
    """Collects the statistics of one file: `see` each table written, then `json` with the writer's metadata."""

    def __init__(self, columns: Sequence[Leaf]) -> None:
        self._columns = columns
        self.rows = 0
        self._seen = {leaf: _Seen() for leaf in columns if leaf.parquet is None or leaf.is_float}

    def see(self, table: pa.Table) -> None:
        """Note what Parquet's statistics do not cover in these rows."""
        self.rows += table.num_rows
        for leaf, seen in self._seen.items():
            column = _column(table, leaf)
            seen.nulls += column.null_count
            if leaf.is_float:
                seen.floats(column)

    def json(self, written: FileMetaData) -> str:
        """The statistics in the form of the table's log."""
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for leaf in self._columns:
            if leaf in self._seen:
                bounds = self._seen[leaf].bounds()
            else:
                assert leaf.parquet is not None
                bounds = _Bounds.of(written, leaf.parquet)
            if bounds.nulls is not None:
                _put(nulls, leaf.path, bounds.nulls)
            for into, raw, text in (
                (least, bounds.low, values.least_text),
                (greatest, bounds.high, values.greatest_text),
            ):
                bound = None if raw is None else _bound(leaf.kind, raw, text)
                if bound is not None:
                    _put(into, leaf.path, bound)
        return values.dump({"numRecords": self.rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _column(table: pa.Table, leaf: Leaf) -> pa.ChunkedArray:
    column = table.column(leaf.positions[0])
    return pc.struct_field(column, list(leaf.positions[1:])) if len(leaf.positions) > 1 else column


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


@dataclass(frozen=True)
class _Bounds:
    """One column over all row groups, in Parquet's raw form; None if Parquet has no statistics."""

    low: Any = None
    high: Any = None
    nulls: int | None = None

    @classmethod
    def of(cls, written: FileMetaData, column: int) -> _Bounds:
        lows, highs = [], []
        known, nulls = True, 0
        for group in range(written.num_row_groups):
            chunk = written.row_group(group).column(column)
            found = chunk.statistics
            if found is None or not found.has_null_count:
                return cls()
            nulls += found.null_count
            if found.has_min_max:
                lows.append(found.min_raw)
                highs.append(found.max_raw)
            elif found.null_count < chunk.num_values:
                known = False  # only a row group of nulls needs no bounds
        if not known or not lows:
            return cls(nulls=nulls)
        if isinstance(lows[0], bytes) and written.schema.column(column).physical_type != "BYTE_ARRAY":
            # Big-endian two's complement: bytes do not compare as the numbers do.
            lows.sort(key=_signed)
            highs.sort(key=_signed)
            return cls(lows[0], highs[-1], nulls)
        return cls(min(lows), max(highs), nulls)


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _bound(kind: spark.DataType, raw: Any, text: Callable[[str], str]) -> Any:
    """The value in the form of Delta's log; None if it has none, or readers use no bounds for the type."""
    if raw is None:
        return None
    if isinstance(kind, spark.StringType):
        try:
            return text(raw.decode())
        except UnicodeDecodeError:  # Spark accepts it in a cast from binary
            return None
    if isinstance(kind, _INTEGERS):
        return raw
    if isinstance(kind, _FLOATS):
        return raw if math.isfinite(raw) else None
    if isinstance(kind, spark.DecimalType):
        return values.decimal_value(raw, kind.scale)
    if isinstance(kind, spark.DateType):
        return values.day_text(raw)
    if isinstance(kind, spark.TimestampType):
        return values.moment_text(raw, utc=True)
    if isinstance(kind, spark.TimestampNTZType):
        return values.moment_text(raw, utc=False)
    return None
