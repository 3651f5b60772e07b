"""Casts keep values at any depth or refuse them; what is no text or null is found; Spark's types in Arrow."""

import math
from datetime import datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.model.offsets import Range
from spark_ext.schemas.arrow import arrow_schema, arrow_type
from spark_ext.schemas.casts import cast
from spark_ext.schemas.columns import constant
from spark_ext.schemas.values import null_in, undecodable
from spark_ext.sources.postgres.read import _conform
from spark_ext.sources.runtime.conform import conform
from spark_ext.testing.every_type import EVERY_TYPE
from spark_ext.worker_internals import to_arrow_schema

LARGE = 4447143252387525393675  # Arrow makes 23472482415325368651.13... of it as a decimal(38,18)
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


def test_a_number_of_a_folder_or_source_is_not_read_as_another() -> None:
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
    kind = (pa.time32 if unit in ("s", "ms") else pa.time64)(unit)
    numbers = pa.int32() if unit in ("s", "ms") else pa.int64()
    wanted = pa.time64("us" if unit == "ns" else "ns")
    assert cast(pa.array([0, day - 1, None], numbers).view(kind), pa.time64("ns")).null_count == 1
    for wrong in (-1000, day):
        with pytest.raises(pa.ArrowInvalid, match="does not fit"):
            cast(pa.array([0, wrong], numbers).view(kind), wanted)


NESTED_TYPE = T.StructType(
    [
        T.StructField("a", T.ArrayType(T.StructType([T.StructField("x", T.LongType(), False)]), False), False),
        T.StructField("m", T.MapType(T.StringType(), T.ArrayType(T.TimestampType()), False)),
        T.StructField("i", T.DayTimeIntervalType()),
    ]
)


@pytest.mark.parametrize("schema", [EVERY_TYPE, NESTED_TYPE], ids=["every type", "nested"])
def test_it_is_sparks_own(schema: T.StructType) -> None:
    assert arrow_schema(schema) == to_arrow_schema(schema)


def test_columns_may_all_be_nullable_while_fields_stay_the_same() -> None:
    found = arrow_schema(NESTED_TYPE, nullable=True)
    assert all(field.nullable for field in found)
    assert found.types == arrow_schema(NESTED_TYPE).types
    assert not arrow_schema(NESTED_TYPE).field("a").nullable


def test_texts_of_a_length_are_texts_at_any_depth() -> None:
    kind = T.MapType(T.CharType(3), T.ArrayType(T.VarcharType(5)))
    assert arrow_type(kind) == pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


@pytest.mark.parametrize("kind", [T.CalendarIntervalType(), T.YearMonthIntervalType()])
def test_a_type_without_an_arrow_form_is_refused(kind: T.DataType) -> None:
    with pytest.raises(PySparkTypeError):
        arrow_type(kind)


RAW = pa.array([b"ok", b"M\xf6hre", b"x", None], pa.binary())
TEXTS = pa.Array.from_buffers(pa.string(), 4, RAW.buffers(), RAW.null_count)
LARGE_TEXTS = pa.Array.from_buffers(pa.large_string(), 3, RAW.slice(0, 3).cast(pa.large_binary()).buffers())
ENDS = pa.array([0, 1, 2, 3, 4], pa.int32())
NUMBERS = pa.array(range(4))
STRUCTS = pa.StructArray.from_arrays([NUMBERS, TEXTS], ["n", "t"])


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (TEXTS, "c"),
        (LARGE_TEXTS, "c"),
        (pa.DictionaryArray.from_arrays(pa.array(range(4)), TEXTS), "c"),
        (STRUCTS, "c.t"),
        (pa.ListArray.from_arrays(ENDS, TEXTS), "c.element"),
        (pa.FixedSizeListArray.from_arrays(TEXTS, 1), "c.element"),
        (pa.MapArray.from_arrays(ENDS, NUMBERS, STRUCTS), "c.value.t"),
        (pa.MapArray.from_arrays(ENDS[:4], TEXTS[:3], NUMBERS[:3]), "c.key"),
        (pa.ListArray.from_arrays(ENDS, pa.ListArray.from_arrays(ENDS, STRUCTS)), "c.element.element.t"),
    ],
)
def test_the_column_is_named_and_other_rows_do_not_count(column: pa.Array, name: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    assert undecodable(batch) == name
    found = [undecodable(batch.slice(row, 1)) for row in range(len(column))]
    assert found == [name if row == 1 else None for row in range(len(column))]
    assert undecodable(batch.slice(2)) is None and undecodable(batch.slice(1, 0)) is None


def test_bytes_are_no_text() -> None:
    structs = pa.nulls(4, pa.struct([("t", pa.string())]))
    assert undecodable(pa.record_batch({"b": RAW, "n": NUMBERS, "s": structs})) is None


INT, INTS = pa.field("i", pa.int32(), nullable=False), pa.list_(pa.field("element", pa.int32(), nullable=False))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "path"),
    [
        (pa.int32(), [1], None, "v"),
        (pa.struct([INT]), [{"i": 1}], {"i": None}, "v.i"),
        (INTS, [[1], []], [1, None], "v.element"),
        (pa.list_(pa.struct([INT])), [[{"i": 1}, None], None], [{"i": None}], "v.element.i"),
        (pa.map_(pa.string(), INTS), [[("a", [1]), ("b", None)], []], [("a", [None])], "v.value.element"),
        (pa.map_(pa.string(), pa.int32()), [[("a", None)]], None, "v"),
    ],
)
def test_a_null_where_none_is_declared_is_found(kind: pa.DataType, good: list[Any], bad: Any, path: str) -> None:
    """Also in a slice, and not in what a null hides. Spark takes it for a zero."""
    strict = pa.schema([pa.field("v", kind, nullable=False)])
    for declared in (strict, pa.schema([pa.field("v", kind)])):
        null = [] if declared is strict else [None]
        batch = pa.RecordBatch.from_arrays(
            [pa.array([*null, *(one for one in good if one is not None), *null], kind)], schema=declared
        )
        assert null_in(batch) is None
    batch = pa.RecordBatch.from_arrays([pa.array([bad, good[0], bad, good[0]], kind)], schema=strict)
    assert [null_in(batch.slice(at, 1)) for at in range(4)] == [path, None, path, None]
