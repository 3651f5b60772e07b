"""Any text as any of Spark's types is the value that Python makes of it, or refused."""

import contextlib
from datetime import date, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ext.schemas.casts import cast
from spark_ext.schemas.columns import constant, folder_values
from spark_ext.schemas.strptime import has_zone, parsed, refused_directive
from tests.schemas.text_oracle import KINDS, plain, same, texts, value_of

ONE = {  # a text that is not refused, for each type
    "tinyint": "-128", "smallint": "0x7FFF", "int": "007", "bigint": "9223372036854775807", "float": "1.5e-3",
    "double": "-0.0", "decimal(38,0)": "9" * 38, "decimal(38,18)": "-12345678901234567890.123456789012345678",
    "decimal(5,2)": "1e2", "boolean": "true", "string": "5", "date": "0000-02-29",
    "timestamp": "2024-02-29 23:59:59.999999-23:59", "timestamp_ntz": "9999-12-31T23:59:59.999999",
}  # fmt: skip


@given(texts, st.sampled_from(list(KINDS)))
@example(str(2**256), "decimal(38,0)")
@example("1" + "0" * 300, "decimal(38,18)")
@example("1" * 77, "decimal(38,0)")
@example("0xFFFFFFFF", "int")
@example("0xFF", "tinyint")
def test_a_text_is_its_value_or_refused(text: str, name: str) -> None:
    kind = KINDS[name]
    wanted = value_of(text, kind)
    assert same(plain(constant(ONE[name], kind, 1))[0], value_of(ONE[name], kind))
    with contextlib.suppress(pa.ArrowInvalid):
        assert same(plain(constant(text, kind, 1))[0], wanted), (text, wanted)
    if not pa.types.is_timestamp(kind):
        with contextlib.suppress(pa.ArrowInvalid):
            nested = cast(pa.array([[None, ONE[name], text]]), pa.list_(kind))
            assert same(plain(nested.flatten())[2], wanted), (text, wanted)


def test_what_has_no_place_in_a_type_is_refused() -> None:
    for values, kind in [
        (pa.array([0, 2]), pa.bool_()),
        (pa.array([0.5]), pa.bool_()),
        (pa.array([86_400_000, 86_400_001], pa.timestamp("ms")), pa.date32()),
        (pa.array([1e39]).dictionary_encode(), pa.float32()),
        (pa.array(["0xFFFFFFFF"]).dictionary_encode(), pa.int32()),
        (pa.array(["0xFFFFFFFF"], pa.string_view()), pa.int32()),
    ]:
        with pytest.raises(pa.ArrowInvalid, match="does not fit the type"):
            cast(values, kind)
    assert cast(pa.array([0, 1, None]), pa.bool_()).to_pylist() == [False, True, None]


def test_the_name_of_a_folder_is_a_value_or_refused() -> None:
    values = folder_values("a=M%C3%B6hre/b=M%F6hre/x.csv")
    assert constant(values["a"], pa.string(), 1).to_pylist() == ["Möhre"]
    with pytest.raises(pa.ArrowInvalid, match="is not valid UTF-8"):
        constant(values["b"], pa.string(), 1)


NUMBERS = {
    "Y": st.sampled_from(["1899", "1900", "2023", "2024"]),
    "y": st.sampled_from(["00", "24", "68", "69", "99"]),
    "m": st.integers(0, 13).map("{:02}".format),
    "d": st.sampled_from([0, 1, 3, 28, 29, 30, 31, 32]).map("{:02}".format),
    "H": st.sampled_from([0, 9, 23, 24]).map("{:02}".format),
    "I": st.integers(0, 13).map("{:02}".format),
    "M": st.sampled_from([0, 59, 60]).map("{:02}".format),
    "S": st.sampled_from([0, 1, 59, 60, 61, 62]).map("{:02}".format),
    "p": st.sampled_from(["AM", "PM"]),
    "j": st.sampled_from([0, 1, 59, 60, 365, 366, 367]).map("{:03}".format),
    "b": st.sampled_from(["Jan", "Feb", "Dec"]),
    "a": st.sampled_from(["Mon", "Sun"]),
    "z": st.sampled_from(["Z", "+0000", "+02:30", "-2359", "+2400", "-9900", "+0060"]),
}


@given(st.data(), st.permutations(list(NUMBERS)), st.integers(1, 8), st.sampled_from(["", "-", " "]))
def test_a_pattern_reads_a_time_as_python_does(data: st.DataObject, letters: list[str], count: int, sep: str) -> None:
    used = data.draw(
        st.sampled_from([tuple(letters[:count]), ("Y", "m", "d", "H", "M", "S"), ("H", "M", "S", "j", "Y")])
    )
    pattern = sep.join(f"%{letter}" for letter in used)
    if refused_directive(pattern) is not None:
        return
    parts = [data.draw(NUMBERS[letter]) for letter in used]
    text = sep.join(parts)
    try:
        # Apart, as Python takes the digits that follow an offset for its seconds.
        wanted = datetime.strptime(" ".join(parts), " ".join(f"%{letter}" for letter in used))
        if "j" in used and f"{wanted:%j}" not in parts:
            raise ValueError("Python takes day 366 of a common year for the next day")
        wanted = (wanted if "z" in used else wanted.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except ValueError:
        with pytest.raises(pa.ArrowInvalid):
            parsed(pa.array([text]), pattern)
        return
    assert parsed(pa.array([text]), pattern).cast(pa.timestamp("us", "UTC")).to_pylist() == [wanted]


@pytest.mark.parametrize(
    "pattern",
    [
        "%H:%M %p", "%I:%M", "%Y %y", "%F %j", "%a %j %Y", "%Y %U %w", "%D %d", "%T %S", "%j", "%Y %Z", "%s",
        "%G-W%V-%u", "%EZ",
    ],
)  # fmt: skip
def test_contradictory_or_misleading_directives_are_refused(pattern: str) -> None:
    assert refused_directive(pattern)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("02/30/24", "%x"), ("Fri Feb 30 10:00:00 2024", "%c"), ("Fri Mar  1 10:00:60 2024", "%c"),
        ("2024-01-01 00:00:61", "%F %T"), ("2024-01-01 00:00:60", "%F %X"), ("2024-01-01 95960", "%F %H%M%OS"),
    ],
)  # fmt: skip
def test_parts_of_directives_for_several_are_checked(text: str, pattern: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"a day that its month does not have|a second that no minute has"):
        parsed(pa.array([text, None]), pattern)


PATTERNS = [
    "%Y-%m-%d %H:%M", "%H:%M %e.%m.%Y", "%d/%b/%Y %H:%M", "%F %H:%M", "%D %H:%M", "%Y%m%d%H%M", "%Y-%m-%d%%d %H:%M",
]  # fmt: skip


def spelled(pattern: str, year: int, month: int, day: int, hour: int, minute: int) -> str:
    for name, form in {"F": "%Y-%m-%d", "D": "%m/%d/%y"}.items():
        pattern = pattern.replace(f"%{name}", form)
    text = pattern.replace("%%", "\0").replace("%b", date(2000, month, 1).strftime("%b"))
    numbers = {"Y": f"{year}", "y": f"{year % 100:02}", "m": f"{month:02}", "d": f"{day:02}", "e": f"{day:2}"}
    for name, number in {**numbers, "H": f"{hour:02}", "M": f"{minute:02}"}.items():
        text = text.replace(f"%{name}", number)
    return text.replace("\0", "%")


@given(
    pattern=st.sampled_from(PATTERNS), year=st.integers(1970, 2068), month=st.sampled_from([1, 2, 2, 3, 4, 5, 11, 12]),
    day=st.sampled_from([1, 2, 3, 4, 15, 28, 29, 30, 31]), hour=st.integers(0, 23), minute=st.integers(0, 59),
    zone=st.none() | st.integers(-14 * 60, 14 * 60),
)  # fmt: skip
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


def test_percent_signs_are_no_directives() -> None:
    assert refused_directive("%%Z %Y") is None
    assert has_zone("%Y %z")
    assert not has_zone("%Y %%z")
