"""Values as Delta spells them, in the statistics of a file and in the names and values of partitions."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the folder of the rows whose partition value is null."""

STRING_PREFIX = 32
"""Longest string in the statistics, in characters, as in Delta's own writer."""

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
    """Microseconds since 1970 as `2013-01-31T05:15:00.000000Z`; None outside the years 1 to 9999.

    Args:
        micros: microseconds.
        utc: whether it is a moment (with the `Z`) or a time of day without a zone.
    """
    days, _ = divmod(micros, 86_400_000_000)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + ("Z" if utc else "")


def decimal_value(raw: int | bytes, scale: int) -> Decimal:
    """A decimal from Parquet's form: the unscaled integer, or its big-endian bytes."""
    unscaled = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    # The default context would round to 28 digits.
    return Decimal(unscaled).scaleb(-scale, Context(prec=64))


def least_text(text: str) -> str:
    """A text that is not greater than the given one, at most `STRING_PREFIX` characters long."""
    return text[:STRING_PREFIX]


def greatest_text(text: str) -> str:
    """A text that is not less than the given one: cut, with the last character of Unicode appended.

    A cut in the middle of such characters would be less than the text, so they are kept, as Delta does it.
    """
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
    """A float as Java reads it back to the same value."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    value = value + 0.0  # -0.0 and 0.0 are one partition
    if single:
        for digits in range(6, 10):
            short = f"{value:.{digits}g}"
            if struct.pack("f", float(short)) == struct.pack("f", value):
                return repr(float(short))
    return repr(value)


def folder(name: str, value: str | None, escape: str = "%") -> str:
    """The folder of a partition, `day=2013-01-31`, with all but plain characters escaped as Hive does it.

    Readers take the values from the log, so the name only has to be a good one: a very long value is cut.

    Args:
        name: the partition column.
        value: as in the log.
        escape: what stands before the two hexadecimal digits; object stores do not agree on `%`.
    """
    spelled = NULL_FOLDER if value is None else _escaped(value, escape)
    return f"{_escaped(name, escape)}={spelled[:_LONGEST_FOLDER]}"


def _escaped(text: str, escape: str) -> str:
    if _SAFE.issuperset(text):
        return text
    return "".join(
        character if character in _SAFE else "".join(f"{escape}{byte:02X}" for byte in character.encode())
        for character in text
    )
