"""The text form of values in Delta's log: in statistics of files, and in names and values of partitions."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"  # as in Hive and Spark
STRING_PREFIX = 32  # characters of a string in the statistics, as in Delta's own writer
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - 719_163, date.max.toordinal() - 719_163
_EPOCH = datetime(1970, 1, 1)
_LAST_CHARACTER = "\U0010ffff"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_LONGEST_FOLDER = 180


def day_text(days: int) -> str | None:
    """Days since 1970 as `2013-01-31`; None outside the years 1 to 9999."""
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    return date.fromordinal(days + 719_163).isoformat()


def moment_text(micros: int, *, utc: bool) -> str | None:
    """Microseconds since 1970 as `2013-01-31T05:15:00.000000Z`, or without a zone; None outside the years 1 to 9999."""
    days, _ = divmod(micros, 86_400_000_000)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + ("Z" if utc else "")


def decimal_value(raw: int | bytes, scale: int) -> Decimal:
    """A decimal from its form in Parquet: the unscaled integer, or its big-endian bytes."""
    unscaled = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    # The default context would round to 28 digits.
    return Decimal(unscaled).scaleb(-scale, Context(prec=64))


def least_text(text: str) -> str:
    """A text that is not greater than the given one, at most `STRING_PREFIX` characters long."""
    return text[:STRING_PREFIX]


def greatest_text(text: str) -> str:
    """A text that is not less than the given one: truncated, with the last character of Unicode appended."""
    # Truncating within a run of that character would give a lesser text, so such a run is kept, as in Delta's own
    # writer.
    if len(text) <= STRING_PREFIX:
        return text
    end = STRING_PREFIX
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if end == len(text) else text[:end] + _LAST_CHARACTER


def dump(value: Any) -> str:
    """JSON with decimals as exact numbers, which the standard library cannot write."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, allow_nan=False)


def float_text(value: float, *, single: bool) -> str:
    """A float in a form from which Java reads the same value."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if single:
        for digits in range(6, 10):
            short = f"{value:.{digits}g}"
            if struct.pack("f", float(short)) == struct.pack("f", value):
                return repr(float(short))
    return repr(value)


def folder(name: str, value: str | None, escape: str = "%", *, shortened: bool = True) -> str:
    """The folder of a partition, `day=2013-01-31`, with special characters escaped as Hive does it."""
    # Readers take the values from the log, so the name only has to be readable: a very long value is truncated.
    spelled = NULL_FOLDER if value is None else _escaped(value, escape)
    return f"{_escaped(name, escape)}={spelled[:_LONGEST_FOLDER] if shortened else spelled}"


def _escaped(text: str, escape: str) -> str:
    if _SAFE.issuperset(text):
        return text
    return "".join(
        character if character in _SAFE else "".join(f"{escape}{byte:02X}" for byte in character.encode())
        for character in text
    )
