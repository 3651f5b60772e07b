"""Decimals and floats of any size are cast to their value, or refused; Arrow alone gives other values."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import DataError
from spark_ext.model.offsets import Range
from spark_ext.schemas.casts import cast
from spark_ext.schemas.columns import constant
from spark_ext.sources.postgres.read import _conform
from spark_ext.sources.runtime.conform import conform

LARGE = 4447143252387525393675
"""Arrow makes 23472482415325368651.13... of it as a decimal(38,18)."""

KIND = pa.decimal128(38, 18)


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38), st.booleans())
def test_a_decimal_keeps_its_value_or_is_refused(number: int, scale: int, as_text: bool) -> None:
    kind = pa.decimal128(38, scale)
    found = pa.array([str(number)]) if as_text else pa.array([Decimal(number)], pa.decimal128(38, 0))
    if abs(number) * 10**scale >= 10**38:
        with pytest.raises(pa.ArrowInvalid):
            cast(found, kind)
    else:
        assert cast(found, kind)[0].as_py() == Decimal(number).scaleb(0, Context(prec=40))


@pytest.mark.parametrize("shape", ["list", "struct"])
def test_a_decimal_is_checked_at_any_depth(shape: str) -> None:
    value, given = nested_in(shape, Decimal(LARGE), pa.decimal128(38, 0))
    values = pa.array([value[-1:] if shape == "list" else value], given)
    with pytest.raises(pa.ArrowInvalid, match="precision 38"):
        cast(values, nested_in(shape, Decimal(LARGE), KIND)[1])


def nested_in(shape: str, number: Any, inner: pa.DataType) -> tuple[Any, pa.DataType]:
    return {
        "plain": (number, inner),
        "list": ([1.0, number], pa.list_(inner)),
        "struct": ({"a": number}, pa.struct([("a", inner)])),
        "map": ([("k", number)], pa.map_(pa.string(), inner)),
        "deep": ([{"a": [("k", number)]}], pa.list_(pa.struct([("a", pa.map_(pa.string(), inner))]))),
    }[shape]


def test_values_of_a_dictionary_are_checked_at_any_depth() -> None:
    texts, numbers = pa.array(["0xFFFFFFFF"]).dictionary_encode(), pa.array([1e300]).dictionary_encode()
    for values, kind in ((texts, pa.int32()), (numbers, pa.float32())):
        for nested, wanted in (
            (pa.StructArray.from_arrays([values], ["a"]), pa.struct([("a", kind)])),
            (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values), pa.list_(kind)),
        ):
            with pytest.raises(pa.ArrowInvalid, match="does not fit"):
                cast(nested, wanted)


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_a_view_of_lists_is_refused(view: Any) -> None:
    views, lists = view(pa.float64()), pa.list_(pa.float32())
    for values, kind in (
        (pa.array([[1.5]], views), lists),
        (pa.array([{"a": [1.5]}], pa.struct([("a", views)])), pa.struct([("a", lists)])),
    ):
        with pytest.raises(pa.ArrowNotImplementedError, match="lists"):
            cast(values, kind)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("shape", ["plain", "list", "struct", "map", "deep"])
def test_a_double_is_not_made_infinite(shape: str, chunked: bool) -> None:
    def values(numbers: list[float | None]) -> pa.Array | pa.ChunkedArray:
        kind = nested_in(shape, 0.0, pa.float64())[1]
        found = pa.array([None if one is None else nested_in(shape, one, pa.float64())[0] for one in numbers], kind)
        return pa.chunked_array([found[:1], found[1:]], kind) if chunked else found

    kind = nested_in(shape, 0.0, pa.float32())[1]
    assert cast(values([0.5, None, math.inf, -math.inf]), kind).to_pylist() == [
        None if one is None else nested_in(shape, one, pa.float32())[0] for one in (0.5, None, math.inf, -math.inf)
    ]
    with pytest.raises(pa.ArrowInvalid, match=r"-1e\+39 does not fit the type float"):
        cast(values([0.5, None, -1e39]), kind)
    if shape == "list":
        for kinds in (pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)):
            with pytest.raises(pa.ArrowInvalid, match=r"-1e\+39 does not fit the type float"):
                cast(values([0.5, None, -1e39]).cast(kinds), kind)
    if not chunked:  # what is outside of a slice does not count
        assert len(cast(values([1e39, None, 0.5, 1e39])[1:3], kind)) == 2


@pytest.mark.parametrize("full", [[], [0.5, None]])
def test_chunks_may_be_empty(full: list[float | None]) -> None:
    empty = pa.array([], pa.float64())
    assert cast(pa.chunked_array([empty, pa.array(full, pa.float64()), empty]), pa.float32()).to_pylist() == full
    assert cast(pa.chunked_array([], pa.float64()), pa.float32()).to_pylist() == []


def test_fields_of_structs_are_those_of_the_same_name() -> None:
    wanted = pa.struct([("a", pa.float32()), ("new", pa.string()), ("b", pa.float32())])
    given = pa.array([{"b": 2.0, "a": 1.0}], pa.struct([("b", pa.float64()), ("a", pa.float32())]))
    assert cast(given, wanted).to_pylist() == [{"a": 1.0, "new": None, "b": 2.0}]
    with pytest.raises(pa.ArrowInvalid, match=r"1e\+39 does not fit the type float"):
        cast(pa.array([{"b": 1e39, "a": 1.0}], given.type), wanted)


def test_a_number_of_postgres_is_not_read_as_another_one() -> None:
    wanted = pa.schema([("x", KIND)])
    assert _conform(pa.record_batch({"x": ["12.5"]}), wanted, "s").to_pylist() == [{"x": Decimal("12.5")}]
    with pytest.raises(DataError, match="'x' has a value that is not a decimal128"):
        _conform(pa.record_batch({"x": [str(LARGE)]}), wanted, "s")
    instants = pa.timestamp("us", "UTC")
    late = pa.record_batch({"x": pa.array([-(2**63)], instants)})
    with pytest.raises(DataError, match="'x' contains infinity or a time after the year 294246"):
        _conform(late, pa.schema([("x", instants)]), "s")


def test_a_number_of_a_folder_or_of_a_source_is_not_read_as_another_one() -> None:
    assert constant("12.5", KIND, 1).to_pylist() == [Decimal("12.5")]
    with pytest.raises(pa.ArrowInvalid):
        constant(str(LARGE), KIND, 1)
    batch = pa.record_batch({"x": pa.array([Decimal(LARGE)], pa.decimal128(38, 0))})
    with pytest.raises(DataError, match="declared schema"):
        conform(batch, pa.schema([("x", KIND)]), Range("c", None, 0, 1), "s")


def test_a_time_of_day_is_not_made_of_a_moment() -> None:
    with pytest.raises(pa.ArrowInvalid, match="2024-01-31 12:00:00"):
        cast(pa.array([None, datetime(2024, 1, 31, 12)]), pa.time64("us"))


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        ({"A": 1}, pa.struct([("a", pa.int32())]), "a"),
        ({"s": {"a": 1}}, pa.struct([("s", pa.struct([("b", pa.int64())]))]), "s.b"),
        ([{"a": 1}], pa.list_(pa.struct([("b", pa.int64())])), "element.b"),
    ],
)
def test_a_field_that_a_connector_does_not_return_is_no_null(value: Any, kind: pa.DataType, path: str) -> None:
    for declared in (kind, pa.map_(pa.string(), kind)):
        given = pa.array([value])
        if declared is not kind:
            given, path = pa.MapArray.from_arrays([0, 1], pa.array(["k"]), given), f"value.{path}"
        with pytest.raises(DataError, match=f"column 'v' has no field '{path}'"):
            conform(pa.record_batch({"v": given}), pa.schema([("v", declared)]), Range("c", None, 0, 1), "s")


@pytest.mark.parametrize(
    ("unit", "day"), [("s", 86_400), ("ms", 86_400_000), ("us", 86_400_000_000), ("ns", 86_400 * 10**9)]
)
def test_a_time_of_day_is_within_a_day(unit: str, day: int) -> None:
    """Avro and Parquet have numbers; 24:00 would be midnight of the same day."""
    kind = (pa.time32 if unit in ("s", "ms") else pa.time64)(unit)
    numbers = pa.int32() if unit in ("s", "ms") else pa.int64()
    wanted = pa.time64("us" if unit == "ns" else "ns")
    assert cast(pa.array([0, day - 1, None], numbers).view(kind), pa.time64("ns")).null_count == 1
    for wrong in (-1000, day):
        with pytest.raises(pa.ArrowInvalid, match="does not fit"):
            cast(pa.array([0, wrong], numbers).view(kind), wanted)
