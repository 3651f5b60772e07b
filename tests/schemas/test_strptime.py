"""Timestamps by a pattern are those of the text, or refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.schemas.strptime import has_zone, parsed, refused_directive

PATTERNS = [
    "%Y-%m-%d %H:%M", "%H:%M %e.%m.%Y", "%d/%b/%Y %H:%M", "%F %H:%M", "%D %H:%M", "%Y%m%d%H%M", "%Y-%m-%d%%d %H:%M",
]  # fmt: skip


def spelled(pattern: str, year: int, month: int, day: int, hour: int, minute: int) -> str:
    """Any day of any month, which strftime does not spell."""
    for name, form in {"F": "%Y-%m-%d", "D": "%m/%d/%y"}.items():
        pattern = pattern.replace(f"%{name}", form)
    text = pattern.replace("%%", "\0").replace("%b", date(2000, month, 1).strftime("%b"))
    numbers = {"Y": f"{year}", "y": f"{year % 100:02}", "m": f"{month:02}", "d": f"{day:02}", "e": f"{day:2}"}
    for name, number in {**numbers, "H": f"{hour:02}", "M": f"{minute:02}"}.items():
        text = text.replace(f"%{name}", number)
    return text.replace("\0", "%")


@given(
    pattern=st.sampled_from(PATTERNS),
    year=st.integers(1970, 2068),
    month=st.sampled_from([1, 2, 2, 3, 4, 5, 11, 12]),
    day=st.sampled_from([1, 2, 3, 4, 15, 28, 29, 30, 31]),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    zone=st.none() | st.integers(-14 * 60, 14 * 60),
)
def test_a_day_is_that_of_the_text_or_refused(
    pattern: str, year: int, month: int, day: int, hour: int, minute: int, zone: int | None
) -> None:
    text = spelled(pattern, year, month, day, hour, minute)
    if zone is not None:
        pattern += " %z"
        text += f" {'-' if zone < 0 else '+'}{abs(zone) // 60:02}{abs(zone) % 60:02}"
    texts = pa.array([None, text, None])
    try:
        wanted = datetime(year, month, day, hour, minute) - timedelta(minutes=zone or 0)
    except ValueError:
        with pytest.raises(pa.ArrowInvalid, match="a day that its month does not have"):
            parsed(texts, pattern)
        return
    found = parsed(texts, pattern).cast(pa.timestamp("us", "UTC"))
    assert found.to_pylist() == [None, wanted.replace(tzinfo=timezone.utc), None]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("2023- 366", "%Y-%j"), (" 2023\t366 ", " %Y %j "), ("2023-366 366", "%Y-%j %j"), ("2023%366", "%C%y%%%j")],
)
def test_spaces_hide_no_day(text: str, pattern: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="a day that its year does not have"):
        parsed(pa.array([text]), pattern)


def test_a_pattern_without_a_day_has_the_first() -> None:
    found = parsed(pa.array(["2366-001 366", "2366-032 366"]), "%Y-%j 366").cast(pa.timestamp("us"))
    assert found.to_pylist() == [datetime(2366, 1, 1), datetime(2366, 2, 1)]
    assert parsed(pa.array(["2024-02"]), "%Y-%m").cast(pa.timestamp("us")).to_pylist() == [datetime(2024, 2, 1)]
    assert parsed(pa.array(["2024-060"]), "%Y-%j").cast(pa.timestamp("us")).to_pylist() == [datetime(2024, 2, 29)]


@pytest.mark.parametrize("pattern", ["%Y %Z", "%s", "%G-W%V-%u", "%EZ"])
def test_what_would_come_out_wrong_is_refused(pattern: str) -> None:
    assert refused_directive(pattern)


def test_percent_signs_are_no_directives() -> None:
    assert refused_directive("%%Z %Y") is None
    assert has_zone("%Y %z")
    assert not has_zone("%Y %%z")
