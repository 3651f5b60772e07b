"""Texts as timestamps by a pattern, with days, seconds and zones that exist.

The C library, by which Arrow parses, takes the 30th of February for the 2nd of March, the 366th day of any year as
one, second 60 for the next minute and +99:00 for a zone. It passes over what it does not convert, such as the name of
a time zone, and over all but one of several directives for the same part of a time.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_DIRECTIVE = re.compile(r"%([-_0^#]*[EO]?)(.)", re.DOTALL)
_WHOLE = {  # directives that stand for several; in no locale but that of C
    "F": "%Y-%m-%d",
    "D": "%m/%d/%y",
    "x": "%m/%d/%y",
    "T": "%H:%M:%S",
    "X": "%H:%M:%S",
    "R": "%H:%M",
    "r": "%I:%M:%S %p",
    "c": "%a %b %e %H:%M:%S %Y",
}
_NONE = {  # the C library passes them over or converts them wrongly, or they depend on the machine
    "Z": "names of time zones are not converted. Use %z for +02:00 and its like; if all times are in UTC, write UTC",
    "s": "seconds since 1970 would be taken in the time zone of the machine. Declare bigint, and convert in the query",
    "G": "years of weeks are not converted",
    "g": "years of weeks are not converted",
    **dict.fromkeys("VUW", "numbers of weeks are not converted"),
}
_ONE_OF = ("Yy", "YC", "mbBhj", "dej", "aAwuj", "HkIl", "M", "S", "p", "z")  # a pattern has one of each at most
_TEXTS = {  # what the C library takes as the texts of directives; all others have some characters
    "Y": r"\s*\d{1,4}",
    "j": r"\s*(?:[0-2]\d\d|3[0-6]\d|\d{1,2})",
    "n": r"\s*",
    "t": r"\s*",
    "%": "%",
    "z": r"\s*(?:Z|[+-]\d{2}:?\d{0,2})",
    **dict.fromkeys("Cy", r"\s*\d{1,2}"),
    "M": r"\s*[0-5]?\d",
    "S": r"\s*[0-6]?\d",
    **dict.fromkeys("de", r"\s*[0-3]?\d"),
    **dict.fromkeys("Hk", r"\s*[0-2]?\d"),
    **dict.fromkeys("Ilm", r"\s*[01]?\d"),
    **dict.fromkeys("wu", r"\s*\d"),
    **dict.fromkeys("aAbBhp", "[A-Za-z]+"),
}
_DAY = 86_400_000_000  # us


def refused_directive(pattern: str) -> str | None:
    """Why a pattern is not supported; None: it is."""
    letters = [letter for _, letter in _DIRECTIVE.findall(_whole(pattern))]
    for letter in letters:
        if letter in _NONE:
            return f"%{letter} is not supported: {_NONE[letter]}"
    for group in _ONE_OF:
        found = [f"%{letter}" for letter in letters if letter in group]
        if len(found) > 1:
            return f"only one of {' and '.join(found)} would be used. Remove the others"
    if "j" in letters and not {"Y", "y"} & set(letters):
        return "%j is the day of a year. Add %Y"
    if ("p" in letters) != bool({"I", "l"} & set(letters)):
        return "%I and %l are hours before or after noon, as %p says, and %p is for these. Use both, or %H"
    return None


def has_zone(pattern: str) -> bool:
    """Whether times by this pattern have a zone."""
    return any(letter == "z" for _, letter in _DIRECTIVE.findall(pattern))


def parsed(texts: pa.Array, pattern: str) -> pa.Array:
    """Texts as microseconds; UTC if the pattern has a zone."""
    pattern = _whole(pattern)
    found = pc.strptime(texts, format=pattern, unit="us")
    # A day that the month does not have becomes one of the next month's first three; a zone moves it by a day.
    days = pc.day(found)
    odd = pc.or_(pc.less_equal(days, 4), pc.greater_equal(days, 28))
    few = texts.filter(odd)
    if len(few):
        _check_days(few, found.filter(odd), pattern)
        _check_days_of_years(few, found.filter(odd), pattern)
    _check_part(texts, pattern, "S", "6[01]", "second that no minute has")
    _check_part(texts, pattern, "z", "[+-](?:2[4-9]|[3-9])", "zone a day or more from UTC")
    return found


def _check_part(texts: pa.Array, pattern: str, letter: str, wrong: str, what: str) -> None:
    """Refuse texts whose part for a directive begins with something wrong."""
    form = _form(pattern, letter)
    few = texts.filter(pc.match_substring_regex(texts, wrong)) if form else texts[:0]
    part = pc.struct_field(pc.extract_regex(few, form), "part") if len(few) else few
    bad = few.filter(pc.match_substring_regex(part, rf"^\s*{wrong}").fill_null(True))
    if len(bad):
        raise pa.ArrowInvalid(f"'{bad[0]}' has a {what}")


def _whole(pattern: str) -> str:
    return _DIRECTIVE.sub(lambda one: _WHOLE.get(one[2], one[0]), pattern)


def _check_days(texts: pa.Array, found: pa.Array, pattern: str) -> None:
    # With its day taken for minutes, a time is of the first day of the month.
    without = _DIRECTIVE.sub(lambda one: "%M" if one[2] in "de" else one[0], pattern)
    if without == pattern:
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


def _check_days_of_years(texts: pa.Array, found: pa.Array, pattern: str) -> None:
    """Refuse the 366th day of a year, unless it came out as the 31st of December; a zone may move it by a day."""
    form = _form(pattern, "j")
    if form is None:
        return
    last = pc.equal(pc.utf8_ltrim_whitespace(pc.struct_field(pc.extract_regex(texts, form), "part")), "366")
    possible = [365, 366, 1] if has_zone(pattern) else [366]
    bad = texts.filter(pc.and_(last, pc.invert(pc.is_in(pc.day_of_year(found), pa.array(possible)))))
    if len(bad):
        raise pa.ArrowInvalid(f"'{bad[0]}' is a day that its year does not have")


def _form(pattern: str, letter: str) -> str | None:
    """A regular expression for texts of the pattern, whose group `part` is that of a directive; None: it has none."""
    parts, at, named = [], 0, False
    for one in _DIRECTIVE.finditer(pattern):
        text = _TEXTS.get(one[2], ".+?")
        if one[2] == letter and not named:
            text, named = f"(?P<part>{text})", True
        parts += [_literal(pattern[at : one.start()]), text]
        at = one.end()
    return "^" + "".join([*parts, _literal(pattern[at:])]) + r"\s*$" if named else None


def _literal(text: str) -> str:
    return "".join(r"\s*" if one.isspace() else re.escape(one) for one in text)
