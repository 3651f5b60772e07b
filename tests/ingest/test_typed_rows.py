"""A body becomes the declared columns unchanged, or it is a bad row: alone or among others."""

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError
from spark_ext.ingest import typed_rows
from spark_ext.ingest.forms import typed
from spark_ext.ingest.typed_rows import certain
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns


def rows(schema: str, *bodies: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    why: dict[int, str] = {}
    batch = pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])
    found = typed(batch, columns(schema), why.__setitem__)
    assert found.schema == arrow_schema(columns(schema))
    found.validate(full=True)
    assert found.num_rows + len(why) == len(bodies)
    assert not why or not certain(columns(schema))([body or b"" for body in bodies])
    return found.to_pylist(), why


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-9223372036854775808", -(2**63)),
        ("long", "null", None),
        ("byte", "-128", -128),
        ("double", "1", 1.0),
        ("double", "0.1", 0.1),
        ("double", "12345678901234567890", 12345678901234567890.0),
        ("float", "3.25", 3.25),
        ("boolean", "true", True),
        ("string", '"\\u00e9\\n\\ud83d\\ude00\\u0000"', "é\n😀\0"),
        ("decimal(38,2)", "12345678901234567890.10", Decimal("12345678901234567890.10")),
        ("decimal(38,2)", '"12345678901234567890.10"', Decimal("12345678901234567890.10")),
        ("decimal(5,2)", "1e2", Decimal("100.00")),
        (
            "decimal(38,18)",
            "19999999999999999999.123456789012345678",
            Decimal("19999999999999999999.123456789012345678"),
        ),
        ("date", '"2026-11-29"', date(2026, 11, 29)),
        ("timestamp", '"2026-11-29T21:00:00.123456Z"', datetime(2026, 11, 29, 21, 0, 0, 123456, timezone.utc)),
        ("timestamp", '"2026-11-29T21:00:00+02:00"', datetime(2026, 11, 29, 19, tzinfo=timezone.utc)),
        ("timestamp", '"2026-11-29 21:00:00"', datetime(2026, 11, 29, 21, tzinfo=timezone.utc)),
        ("timestamp", '"2026-11-29"', datetime(2026, 11, 29, tzinfo=timezone.utc)),
        ("timestamp_ntz", '"2026-11-29T21:00:00.123"', datetime(2026, 11, 29, 21, 0, 0, 123000)),
        ("array<struct<x: int>>", '[{"x": 1, "y": 2}, {}, null]', [{"x": 1}, {"x": None}, None]),
        ("struct<x: struct<y: decimal(4,1)>>", '{"x": {"y": 999.9}}', {"x": {"y": Decimal("999.9")}}),
    ],
)
def test_a_value_passes_unchanged(kind: str, text: str, expected: Any) -> None:
    (row,), _ = rows(f"a {kind}", b'{"a": %s}' % text.encode())
    assert row["a"] == expected and type(row["a"]) is type(expected)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            "long",
            ["9223372036854775808", "1" * 5000, "1.0", "1e2", '"1"', "true", "NaN", "[]", "{}", "01", "+1", "0x1"],
        ),
        ("byte", ["128", "-129"]),
        ("double", ["1e400", '"1"', "true", "Inf", "1.", ".5"]),
        ("float", ["1e39", "-1e39", '"1"']),
        ("boolean", ["1", '"true"', "True"]),
        ("string", ["1", "true", "{}", '["a"]', '"\\ud800"', '"a\nb"', '"a', "'a'"]),
        ("decimal(5,2)", ["1000", "0.001", '"x"', "true", "1e77", '""']),
        ("decimal(38,18)", ["4447143252387525393675"]),
        ("date", ['"2026-02-30"', '"29.11.2026"', "20000", '""', '"2026-11-29T21:00:00"']),
        (
            "timestamp",
            [
                '"2026-02-30T00:00:00Z"',
                "1790000000",
                '"now"',
                '""',
                '"2026-11-29T21:00:00.1234567Z"',
                '"2026-11-29T25:00:00"',
            ],
        ),
        ("timestamp_ntz", ['"2026-11-29T21:00:00Z"', '"2026-11-29T21:00:00+01:00"']),
        ("array<int>", ["{}", "1", "[1.5]", '["1"]', "[2147483648]"]),
        ("struct<x: int>", ["[]", "1", '{"x": "1"}', '{"x": 1, "x": 2}']),
    ],
)
def test_a_value_that_does_not_fit_is_a_bad_row(kind: str, texts: list[str]) -> None:
    found, why = rows(f"a {kind}", *(b'{"a": %s}' % text.encode() for text in texts))
    assert found == [] and len(why) == len(texts)


def test_a_reason_has_the_type_by_sparks_name() -> None:
    _, why = rows("a long, b array<struct<c: float>>", b'{"a": "x"}', b'{"b": 1}')
    assert why == {
        0: "column 'a' is declared as bigint and has the value \"x\"",
        1: "column 'b' is declared as array<struct<c:float>> and has the value 1",
    }


def test_fields_may_be_missing_or_more_but_not_twice() -> None:
    found, why = rows(
        "a long not null, b struct<c: long not null>",
        b'{"z": {"a": [1e3]}, "a": 1, "z": 2}',
        b'{"a": 2, "b": {}}',
        b'{"a": 3, "a": 3}',
        b'{"A": 4}',
        b'{"a": null}',
        b'{"a": 5, "b": null}',
        b'{"a": 6, "b": {"c": 1}}',
    )
    assert found == [{"a": 1, "b": None}, {"a": 5, "b": None}, {"a": 6, "b": {"c": 1}}]
    assert why.keys() == {1, 2, 3, 4} and "twice" in why[2]
    assert {why[1], why[3], why[4]} == {
        "column 'b.c' is declared as not nullable and has no value",
        "column 'a' is declared as not nullable and has no value",
    }


def test_elements_are_null_only_where_they_may_be() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b'{"a": [1, null]}', b'{"a": [1]}', b'{"a": null}']})
    why: dict[int, str] = {}
    found = typed(batch, T.StructType().add("a", T.ArrayType(T.IntegerType(), False)), why.__setitem__)
    assert found.to_pylist() == [{"a": [1]}, {"a": None}]
    assert why == {0: "column 'a.element' is declared as not nullable and has a null"}


def test_a_body_is_one_object() -> None:
    deep = b'{"b": ' + b"[" * 99_999 + b"]" * 99_999 + b"}"
    bodies = [
        *(b'\r\n {\n\t"a":\r\n 1}\n', b"", None, b"null", b"[]", b"1", b"{}", b'{"a": 1} {"a": 2}', b'{"a": 1},'),
        *(
            b'{"a": 1',
            b'{"a": {"b": 1}',
            b"{'a': 1}",
            b"\xef\xbb\xbf{}",
            b'{"b": "\xff"}',
            deep,
            b'{"a": 1}//}',
            b"{}{}",
        ),
    ]
    found, why = rows("a long", *bodies)
    assert found == [{"a": 1}, {"a": None}, {"a": None}]
    assert why.keys() == set(range(17)) - {0, 6, 14}
    # Two objects in one line do not make up for a line with none.
    assert rows("a long", b'{"a": 1} {"a": 2}', b"")[0] == rows("a long", *[b"x"] * 3)[0] == rows("a long")[0] == []


PARTS = (
    '1, -0, 1.5, 1e400, 1e39, 12345678901234567890, 99999999999999999999, true, null, NaN, -NaN, Infinity, "", "x"'
    ', "2026-11-29", "2026-11-29T21:00:00Z", "2026-11-29 21:00:00.5", "0000-00-00", "1999-12-31", " 2026-11-29"'
    ', "12026-11-29", "-2026-11-29", "1.10", "\\ud800", [], [1], ["1"], [null], {}, {"x": 1}, {"x": 1 "x": 1}, , {'
    ', "\x01"'
)
KINDS = ("a long", "b float", "c double", "d decimal(5,2)", "e timestamp", "f timestamp_ntz", "g date", "h string",
         "i boolean", "j array<int>", "k struct<x: int not null>")  # fmt: skip
LINE = st.dictionaries(st.sampled_from("abcdefghijkz"), st.sampled_from(PARTS.split(", ")), max_size=3).map(
    lambda members: ("{" + ", ".join(f'"{name}": {text}' for name, text in members.items()) + "}").encode()
)


@settings(max_examples=max(20, settings().max_examples // 10))
@given(st.lists(LINE, max_size=20), st.integers(1, 4))
def test_whether_a_row_is_bad_does_not_depend_on_its_neighbours(lines: list[bytes], piece: int) -> None:
    schema = ", ".join(KINDS)
    alone = [rows(schema, line) for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typed_rows, "SIFTED", piece)
        found, why = rows(schema, *lines)
    assert repr(found) == repr([row for good, _ in alone for row in good])  # NaN is not equal to itself
    assert why == {at: reasons[0] for at, (_, reasons) in enumerate(alone) if reasons}


@given(LINE)
def test_what_is_found_without_arrow_is_refused_by_arrow(line: bytes) -> None:
    wanted = arrow_schema(columns(", ".join(KINDS)))
    if typed_rows._misfit(line, typed_rows._judge(pa.struct(wanted), "")) is not None:
        with pytest.raises(pa.ArrowException):
            typed_rows._converted(typed_rows._parsed([line], wanted), wanted)


SIMPLE = ("a long", "c double not null", "e timestamp", "g date", "h string", "i boolean", "j array<int>",
          "k struct<x: int not null, y: struct<z: float>>")  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters=":"))
FITTING = {
    "a": st.integers(-(2**63), 2**63 - 1),
    "c": st.floats(-1e299, 1e299) | st.integers(-(2**80), 2**80),
    "e": st.sampled_from(["2026-11-29", "2026-11-29T21:00:00Z", "2026-11-29 21:00:00.5+01:00", "2026-11-29T21:00:00"]),
    "g": st.dates().map(str),
    "h": TEXTS,
    "i": st.booleans(),
    "j": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)),
    "k": st.fixed_dictionaries(
        {"x": st.integers(0, 9)}, optional={"y": st.just({"z": 1e37}), "w": st.just([{"v": 1}])}
    ),
}
EVENT = st.fixed_dictionaries({"c": FITTING["c"]}, optional={
    **{name: st.none() | values for name, values in FITTING.items() if name != "c"},
    "z": st.recursive(st.none() | st.booleans() | TEXTS | st.integers(), st.lists),
})  # fmt: skip


@settings(max_examples=settings().max_examples // 2)  # each has five further lists
@given(
    st.lists(EVENT, min_size=1, max_size=5), st.sampled_from([(", ", ": "), (",", ":"), (" ,", " :")]), st.booleans()
)
def test_what_fits_for_certain_has_no_bad_row(events: list[Any], separators: tuple[str, str], ascii: bool) -> None:
    bodies = [json.dumps(event, separators=separators, ensure_ascii=ascii).encode() for event in events]
    assert rows(", ".join(SIMPLE), *bodies)[1] == {}
    fits = certain(columns(", ".join(SIMPLE)))
    # Only of colons in texts and blanks before others it is not known what they are.
    times = any((event.get("e") or "")[10:] for event in events)
    assert fits(bodies) != (times and separators[1] == " :")
    # A name that is there twice, a further object, one value that is missing, or of another kind: none is certain.
    for bad in (b'{"c": 1, "c": 2}', b'{"c": 1}{}', b"{}", b'{"c": 1, "a": 1.0}', b'{"c": 1, "k": {"x": 1, "x": 1}}'):
        assert not fits([*bodies, bad])


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkz"), st.sampled_from(PARTS.split(", "))), max_size=3))
def test_nothing_is_certain_that_arrow_refuses(members: list[tuple[str, str]]) -> None:
    rows(", ".join(KINDS), ("{" + ", ".join(f'"{name}": {text}' for name, text in members) + "}").encode())


@pytest.mark.parametrize("kind", ["array<date>", "array<struct<d: date>>", "struct<d: array<date>>"])
def test_an_element_that_does_not_fit_is_of_its_own_row_alone(kind: str) -> None:
    """Also where the rows before it and behind it have elements."""

    def body(day: str) -> bytes:
        form = {"array<date>": '["%s"]', "array<struct<d: date>>": '[{"d": "%s"}]'}.get(kind, '{"d": ["%s"]}')
        return b'{"v": %s}' % (form % day).encode()

    found, why = rows(f"v {kind}", body("2026-11-30"), b"{}", body("10000-01-01"), body("2026-12-01"))
    assert [row["v"] is None for row in found] == [False, True, False]
    assert why.keys() == {2}


def test_one_bad_row_among_thousands_is_found() -> None:
    bodies = [json.dumps({"at": "2026-11-29T21:00:00Z", "id": number}).encode() for number in range(3000)]
    for bad in (b'{"id": 1, "id": 1}', b'{"at": "2026-02-30T00:00:00Z"}', b'{"id": "x"}', b'{"z": 1e400}'):
        found, why = rows("id long, at timestamp", *bodies[:1777], bad, *bodies[1778:])
        assert [row["id"] for row in found] == [*range(1777), *range(1778, 3000)] and why.keys() == {1777}


def test_declared_columns_without_a_form_in_json_are_refused() -> None:
    typed_rows.check_columns(columns("a long, b array<struct<c: decimal(5,2)>>, d timestamp_ntz"), "inbox 'orders'")
    for kind in ("map<string, int>", "binary", "array<struct<x: map<string, int>>>"):
        with pytest.raises(ConfigurationError, match="column 'b' has the type"):
            typed_rows.check_columns(columns(f"a long, b {kind}"), "inbox 'orders'")
    with pytest.raises(ConfigurationError, match="column 'b' has the type"):
        typed_rows.check_columns(T.StructType().add("b", T.DayTimeIntervalType()), "inbox 'orders'")
