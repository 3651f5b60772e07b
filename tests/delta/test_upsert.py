"""Which row of a key counts in an epoch. Pure."""

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.delta.upsert import Upsert, quoted
from spark_ext.errors import DataError

SCHEMA = pa.schema([
    ("a", pa.string()), ("b", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32()),
    ("gone", pa.bool_()), ("x", pa.float64()), ("nested", pa.struct([("l", pa.list_(pa.int64()))])),
])  # fmt: skip
RULE = Upsert(("a", "b"), ("at", "n"), "gone")

DAY = datetime.datetime(2020, 1, 1)
ROW = st.fixed_dictionaries({
    "a": st.sampled_from(["", "x", "ä"]),
    "b": st.sampled_from([Decimal("1.00"), Decimal("-2.50")]),
    "at": st.datetimes(DAY, DAY.replace(microsecond=2), timezones=st.just(datetime.timezone.utc)),
    "n": st.integers(0, 2),
    "gone": st.booleans(),
    "x": st.sampled_from([0.0, math.nan, None]),
    "nested": st.sampled_from([None, {"l": [1, None]}, {"l": []}]),
})  # fmt: skip


def rows(values: list[dict[str, Any]]) -> pa.Table:
    whole = pa.Table.from_pylist(values, SCHEMA)
    # In several chunks, as the files of several tasks are.
    return pa.concat_tables([whole.slice(0, len(values) // 2), whole.slice(len(values) // 2)])


def spelled(values: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(list(one.items())) for one in values)


@given(st.lists(ROW, max_size=12), st.randoms())
def test_the_newest_row_of_each_key_counts_in_whatever_order(values: list[dict[str, Any]], chance: Any) -> None:
    expected: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in rows(values).to_pylist():
        key = one["a"], one["b"]
        other = expected.get(key)
        if other is None or _rank(one) > _rank(other):
            expected[key] = one
    found = RULE.winners(rows(values), "me").to_pylist()
    assert spelled(found) == spelled(list(expected.values()))
    assert spelled(RULE.winners(rows(chance.sample(values, len(values))), "me").to_pylist()) == spelled(found)
    assert spelled(RULE.winners(rows(found), "me").to_pylist()) == spelled(found), "a second time nothing changes"


def _rank(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["at"], one["n"], one["gone"], repr(list(one.items()))


@given(st.lists(ROW, max_size=12))
def test_without_newest_by_rows_of_a_key_are_equal_or_refused(values: list[dict[str, Any]]) -> None:
    rule = Upsert(("a", "b"))
    distinct = {repr(list(one.items())) for one in rows(values).to_pylist()}
    if len(distinct) > len({(one["a"], one["b"]) for one in values}):
        with pytest.raises(DataError, match="rows of the key"):
            rule.winners(rows(values), "me")
    else:
        assert spelled(rule.winners(rows(values), "me").to_pylist()) == sorted(distinct)


def test_conditions_as_sql() -> None:
    assert RULE.matches("t", "s") == 't."a" = s."a" AND t."b" = s."b"'
    assert RULE.replaces("t", "s") == (
        '(t."at" IS NULL OR (s."at" > t."at" OR (s."at" = t."at" AND (t."n" IS NULL OR s."n" >= t."n"))))'
    )
    assert Upsert(("a",)).replaces("t", "s") is None
    assert quoted('a"b') == '"a""b"'
