"""Texts as timestamps by a pattern, with days that their month has.

The C library, by which Arrow parses, takes the 30th of February for the 2nd of March and the 366th day of any year as
one, and passes over what it does not convert, such as the name of a time zone.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_DIRECTIVE = re.compile(r"%([-_0^#]*[EO]?)(.)", re.DOTALL)
_WHOLE = {"F": "%Y-%m-%d", "D": "%m/%d/%y"}
"""Directives that stand for several."""

_NONE = {
    "Z": "names of time zones are not converted. Use %z for +02:00 and its like; if all times are in UTC, write UTC",
    "s": "seconds since 1970 would be taken in the time zone of the machine. Declare bigint, and convert in the query",
    "G": "years of weeks are not converted",
    "g": "years of weeks are not converted",
    "V": "numbers of weeks are not converted",
}
"""Why directives are refused that the C library passes over, or that depend on the machine."""

_TEXTS = {
    "Y": r"\s*\d{1,4}",
    "j": r"\s*\d{1,3}",
    "n": r"\s*",
    "t": r"\s*",
    "%": "%",
    **dict.fromkeys("CydeHIklmMSUWwu", r"\s*\d{1,2}"),
}
"""What the texts of directives look like; all others have some characters."""

_DAY = 86_400_000_000
"""Microseconds."""


def refused_directive(pattern: str) -> str | None:
    """Why a pattern is not supported; None: it is."""
    letters = (letter for _, letter in _DIRECTIVE.findall(pattern))
    return next((f"%{letter} is not supported: {_NONE[letter]}" for letter in letters if letter in _NONE), None)


def has_zone(pattern: str) -> bool:
    """Whether times by this pattern have a zone."""
    return any(letter == "z" for _, letter in _DIRECTIVE.findall(pattern))


def parsed(texts: pa.Array, pattern: str) -> pa.Array:
    """Texts as microseconds; UTC if the pattern has a zone.

    Raises:
        pa.ArrowInvalid: a text does not fit the pattern, or its month does not have its day.
    """
    found = pc.strptime(texts, format=pattern, unit="us")
    # A day that the month does not have becomes one of the next month's first three; a zone moves it by a day.
    days = pc.day(found)
    odd = pc.or_(pc.less_equal(days, 4), pc.greater_equal(days, 28))
    few = texts.filter(odd)
    if len(few):
        _check_days(few, found.filter(odd), pattern)
        _check_days_of_years(few, found.filter(odd), pattern)
    return found


def _check_days(texts: pa.Array, found: pa.Array, pattern: str) -> None:
    without = _without_day(pattern)
    if without is None:
        return
    firsts = pc.strptime(texts, format=without, unit="us")
    # The minute may be another one, which is less than half a day. A zone is a day at most, and the same in both.
    since = pc.subtract(found, firsts).cast(pa.int64())
    days = pc.multiply(pc.divide(pc.add(since, _DAY // 2), _DAY), _DAY)
    month = pc.floor_temporal(pc.add(firsts, pa.scalar(10 * _DAY, pa.duration("us"))), unit="month")
    good = pc.equal(pc.floor_temporal(pc.add(month, days.cast(pa.duration("us"))), unit="month"), month)
    bad = texts.filter(pc.invert(good))
    if len(bad):
        raise pa.ArrowInvalid(f"'{bad[0]}' is a day that its month does not have")


def _without_day(pattern: str) -> str | None:
    """The pattern with the day of the month taken for minutes, which makes it the first; None: it has no such day."""
    whole = _DIRECTIVE.sub(lambda one: _WHOLE.get(one[2], one[0]), pattern)
    out = _DIRECTIVE.sub(lambda one: "%M" if one[2] in "de" else one[0], whole)
    return None if out == whole else out


def _check_days_of_years(texts: pa.Array, found: pa.Array, pattern: str) -> None:
    """Refuse the 366th day of a year, unless it came out as the 31st of December; a zone may move it by a day."""
    form = _day_of_year(pattern)
    if form is None:
        return
    last = pc.equal(pc.utf8_ltrim_whitespace(pc.struct_field(pc.extract_regex(texts, form), "day")), "366")
    possible = [365, 366, 1] if has_zone(pattern) else [366]
    bad = texts.filter(pc.and_(last, pc.invert(pc.is_in(pc.day_of_year(found), pa.array(possible)))))
    if len(bad):
        raise pa.ArrowInvalid(f"'{bad[0]}' is a day that its year does not have")


def _day_of_year(pattern: str) -> str | None:
    """A regular expression for texts of the pattern, whose group `day` is the day of the year; None: it has none."""
    parts, at, named = [], 0, False
    for one in _DIRECTIVE.finditer(pattern):
        text = _TEXTS.get(one[2], ".+?")
        if one[2] == "j" and not named:
            text, named = f"(?P<day>{text})", True
        parts += [_literal(pattern[at : one.start()]), text]
        at = one.end()
    return "^" + "".join([*parts, _literal(pattern[at:])]) + r"\s*$" if named else None


def _literal(text: str) -> str:
    return "".join(r"\s*" if one.isspace() else re.escape(one) for one in text)
