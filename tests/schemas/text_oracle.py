"""What a text is as a value of a type, by Python's own numbers and dates; None: nothing.

Independent of Arrow. Dates are days, timestamps are microseconds since 1970, so that no year is too far.
"""

import re
from datetime import date, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types

KINDS: dict[str, pa.DataType] = {  # Spark's types that a text can be cast to
    "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "decimal(38,0)": pa.decimal128(38, 0), "decimal(38,18)": pa.decimal128(38, 18),
    "decimal(5,2)": pa.decimal128(5, 2), "boolean": pa.bool_(), "string": pa.string(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_edges = st.builds(
    lambda power, shift, sign, factor: sign * ((1 << power) * factor + shift),
    st.sampled_from([0, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 254, 255, 256, 512]), st.integers(-2, 2),
    st.sampled_from([1, -1]), st.sampled_from([1, 1, 3, 5**30]),
)  # fmt: skip
_days = st.tuples(
    st.sampled_from([0, 1, 1582, 1900, 1970, 2023, 2024, 9999]), st.integers(0, 13), st.integers(0, 32)
).map(lambda parts: "{:04}-{:02}-{:02}".format(*parts))
_times = st.builds(
    lambda day, mark, hour, minute, second, zone: f"{day}{mark}{hour:02}:{minute:02}{second}{zone}", _days,
    st.sampled_from("T "), st.integers(0, 24), st.sampled_from([0, 1, 59, 60]),
    st.sampled_from(["", ":00", ":59.9", ":59.999999", ":60", ":61", ":00.0000001"]),
    st.sampled_from(["", "Z", "+02", "+02:00", "-2359", "+24:00", "+99:00", "z"]),
)  # fmt: skip
texts = st.one_of(  # texts, most of which are values of some type, or nearly
    st.text("0123456789+-.eExXabcdfFinNaTZ:_ \t٣\0", max_size=14),
    _edges.map(str),
    _edges.map(lambda number: f"+{number}"),
    _edges.map(hex),
    st.builds(lambda number, power: f"{number}e{power}", _edges, st.integers(-400, 400)),
    st.builds(lambda number, zeros: f"{number}{'0' * zeros}", st.integers(-999, 999), st.integers(0, 400)),
    st.builds(lambda zeros, number: f"0.{'0' * zeros}{number}", st.integers(0, 90), st.integers(0, 999)),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.floats().map(repr),
    st.sampled_from(["true", "FALSE", "True", "tRue", "t", "yes", "0", "1", "01", "nan", "-nan", "-Infinity", "iNF"]),
    _days,
    _times,
)


def value_of(text: str, kind: pa.DataType) -> Any:
    """The value as Arrow has it in Python, or days, or microseconds; None: the text is no value of the type."""
    if types.is_string(kind):
        return text
    if types.is_boolean(kind):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if types.is_integer(kind):
        return _integer(text, 1 << (kind.bit_width - 1))
    if types.is_floating(kind):
        return _float(text, np.float32 if kind.bit_width == 32 else np.float64)
    if types.is_decimal(kind):
        return _decimal(text, kind.precision, kind.scale)
    return _day(text) if types.is_date(kind) else _micros(text, zoned=kind.tz is not None)


def plain(values: pa.Array) -> list[Any]:
    number = pa.int32() if types.is_date(values.type) else pa.int64() if types.is_timestamp(values.type) else None
    return list((values if number is None else values.view(number)).to_pylist())


def same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return (found != found and wanted != wanted) or (found == wanted and np.signbit(found) == np.signbit(wanted))
    return type(found) is type(wanted) and bool(found == wanted)


def _integer(text: str, edge: int) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+|0[xX][0-9a-fA-F]+", text):
        return None
    number = int(text, 16 if "x" in text.lower() else 10)
    return number if -edge <= number < edge else None


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _float(text: str, made: type[np.floating[Any]]) -> float | None:
    if re.fullmatch(r"[+-]?(nan(\(\w*\))?|inf(inity)?)", text, re.IGNORECASE):
        return float(re.sub(r"\(.*", "", text))
    with np.errstate(over="ignore"):  # too large a number is infinity, as in Spark
        return float(made(float(text))) if _NUMBER.fullmatch(text) else None


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        made = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=Context(prec=precision, traps=[Inexact]))
    except (Inexact, InvalidOperation):
        return None
    return made if made.is_finite() and len(made.as_tuple().digits) <= precision else None


def _day(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", text)
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    try:
        # The calendar is the same every 400 years, and Python has no year 0.
        return date(2000 + year % 400, month, day).toordinal() + 146_097 * (year // 400 - 5) - 719_163
    except ValueError:
        return None


_TIME = re.compile(
    r"(?P<day>[^T ]+)(?:[T ](?P<h>\d\d)(?::?(?P<m>\d\d)(?::?(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?)?)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


def _micros(text: str, *, zoned: bool) -> int | None:
    found = _TIME.fullmatch(text)
    day = _day(found["day"]) if found else None
    if found is None or day is None or (found["zone"] and not zoned):
        return None
    hours, minutes, seconds = (int(found[name] or 0) for name in "hms")
    zone = (found["zone"] or "Z").replace("Z", "+00").replace(":", "")
    away = int(zone[1:3]) * 60 + int(zone[3:] or 0)
    if hours > 23 or minutes > 59 or seconds > 59 or int(zone[1:3]) > 23 or int(zone[3:] or 0) > 59:
        return None
    clock = timedelta(days=day, hours=hours, minutes=minutes, seconds=seconds) // timedelta(microseconds=1)
    return clock + int((found["f"] or "").ljust(6, "0")) - (1 if zone[0] == "+" else -1) * away * 60_000_000
