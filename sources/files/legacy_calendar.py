"""Dates and timestamps of Parquet files that count in the calendar of Java's old classes.

That calendar is Julian before 1582-10-15, as that of Spark 2 and of Hive is; that of Parquet, Spark 3 and Arrow is
Gregorian throughout. A date of the year 1000 is five days off in it. Spark says in the footer which one a file is in;
the rule here is that of Spark's own reader, but a time zone that a file does not name is not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_ROWS = b"org.apache.spark.sql.parquet.row.metadata"
_UTC = frozenset({"UTC", "Z", "GMT", "Etc/UTC", "Etc/GMT", "Zulu", "Etc/Zulu", "UCT", "Etc/UCT", "Universal"})

FIRST_DAY = -141_427  # 1582-10-15, the first day on which both calendars agree, in days since 1970
LAST_SWITCH = -2_208_988_800  # 1900-01-01 in s: since then Java's old and new classes agree in every time zone
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400


class UnknownZoneError(Exception):
    """A timestamp whose instant depends on a time zone: that of the writer, which is not UTC or not known."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which values of a file are in the old calendar."""

    dates: bool = False
    instants: bool = False  # timestamps in UTC, but for those of type INT96
    int96: bool = False
    zone: str | None = None  # of the writer

    @classmethod
    def of(cls, footer: Mapping[bytes, bytes] | None) -> Calendar:
        """The calendar that a file's footer names; Gregorian if it does not name one."""
        # Spark 3.0 and later write their version, and a key if the values are in the old calendar. Earlier versions of
        # Spark always used it (INT96: those before 3.1). Hive says it of dates; its timestamps are of an unknown zone.
        footer = footer or {}
        if footer.get(b"writer.date.proleptic") == b"false":
            return cls(True, True, True)
        if _VERSION not in footer and _ROWS not in footer:
            return cls()
        version = footer.get(_VERSION, b"2").decode("ascii", "replace")
        legacy = version < "3.0.0" or b"org.apache.spark.legacyDateTime" in footer
        zone = footer.get(_ZONE)
        return cls(
            legacy,
            legacy,
            version < "3.1.0" or b"org.apache.spark.legacyINT96" in footer,
            zone.decode("ascii", "replace") if zone else None,
        )

    def __bool__(self) -> bool:
        return self.dates or self.instants or self.int96

    def rebased(self, batch: pa.RecordBatch, int96: Mapping[str, Sequence[bool]]) -> pa.RecordBatch:
        """A batch with the same dates and times of day in the Gregorian calendar; `int96` as in `Columns`."""
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            try:
                columns.append(self._array(column, iter(int96.get(field.name, ()))))
            except UnknownZoneError as problem:
                raise UnknownZoneError(f"column '{field.name}' {problem}") from None
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _array(self, array: pa.Array, int96: Iterator[bool]) -> pa.Array:
        kind = array.type
        if types.is_struct(kind):
            children = [self._array(array.field(index), int96) for index in range(kind.num_fields)]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null()) if children else array
        if types.is_map(kind):
            keys, items = self._array(array.keys, int96), self._array(array.items, int96)
            entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
            return _with_values(array, entries)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _with_values(array, self._array(array.values, int96))
        old = next(int96, False)
        if types.is_date32(kind):
            return _moved(array, 1) if self.dates else array
        # A timestamp without a zone is never in the old calendar: Spark has them since 3.4.
        if types.is_timestamp(kind) and (old or kind.tz is not None) and (self.int96 if old else self.instants):
            return self._instants(array)
        return array

    def _instants(self, array: pa.Array) -> pa.Array:
        second = _PER_SECOND[array.type.unit]
        least = pc.min(array.cast(pa.int64())).as_py()
        if self.zone in _UTC or least is None or least >= LAST_SWITCH * second:
            return _moved(array, _DAY * second)
        raise UnknownZoneError(
            "has a timestamp before 1900 in the calendar of Java's old classes, of "
            + (f"the time zone {self.zone}" if self.zone else "a time zone that the file does not name")
        )


def _with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    own = array.buffers()[: 1 if types.is_fixed_size_list(array.type) else 2]
    return pa.Array.from_buffers(array.type, len(array), own, array.null_count, array.offset, [values])


def _moved(array: pa.Array, day: int) -> pa.Array:
    """Days, or times with `day` units in a day, from the old calendar into the Gregorian one."""
    storage = pa.int32() if types.is_date32(array.type) else pa.int64()
    plain = array.cast(storage)
    least = pc.min(plain).as_py()
    if least is None or least >= FIRST_DAY * day:
        return array
    values = plain.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    days, rest = np.divmod(values, day)
    moved = np.where(days < FIRST_DAY, gregorian(days), days) * day + rest
    return (
        pa.array(moved, pa.int64(), mask=array.is_null().to_numpy(zero_copy_only=False)).cast(storage).cast(array.type)
    )


def gregorian(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Days since 1970 with the same year, month and day in the Gregorian calendar as in the Julian one."""
    # The 29th of February of a year that is no leap year in the Gregorian calendar becomes the first of March, as in
    # Spark.
    since = days + 2_440_588 + 32_082
    four = (4 * since + 3) // 1461
    rest = since - 1461 * four // 4
    month = (5 * rest + 2) // 153  # from March
    day = rest - (153 * month + 2) // 5
    year = four - 4800  # from March
    centuries = year // 100 - year // 400
    found: NDArray[np.int64] = 365 * year + year // 4 - centuries + (153 * month + 2) // 5 + day - 719_468
    return found
