"""Values in a form that compares equal only for equal ones, and that has all of Spark's.

Texts are bytes, times are numbers since 1970, floats are as `repr` writes them, and maps are lists of pairs.
"""

import base64
import struct
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from pyarrow import types as kinds
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T

from spark_ext.worker_internals import to_arrow_schema

DAY: Final = 86_400_000_000
YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999, in microseconds
TEXTS: Final = ["", "\0", 'a\0"b', "null", "\0null\0", "a\r\nb\n", '"', "\\", ",;\t", "\u2028\x85\x1c", "\ufeff"]
LONG: Final = ["é" * 9_000, "x" * 254, "__HIVE_DEFAULT_PARTITION__"]
RAW: Final = [b"\xff", b"M\xf6hre", b"\xed\xa0\x80", b"\xc0\x80", b"ok\xe2\x82"]
"""No text: a byte that UTF-8 never has, Latin-1, a lone surrogate, an overlong NUL, an end that is missing."""

texts = st.one_of(st.sampled_from(TEXTS + LONG), st.text(max_size=8)).map(str.encode) | st.sampled_from(RAW)


def integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([low, high, 0, -1]) | st.integers(low, high)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    numbers = st.sampled_from([most, -most, 0, 1, -1]) | st.integers(-most, most)
    return numbers.map(lambda number: Decimal(f"{number}E-{scale}"))


def floats(width: Any, least: float) -> st.SearchStrategy[str]:
    return (st.sampled_from([-0.0, least]) | st.floats(width=width)).map(repr)


def times(unit: int, bits: int) -> st.SearchStrategy[int]:
    """Spark's first and last, those around the years 1 and 9999, one before 1582, and any other."""
    low, high = YEARS[0] // unit, YEARS[1] // unit
    return st.sampled_from([low, high, low - 1, high + 1, -141_428 * DAY // unit, 0, -1]) | integers(bits)


SIMPLE: Final[list[tuple[T.DataType, st.SearchStrategy[Any]]]] = [
    (T.StringType(), texts), (T.BinaryType(), st.binary(max_size=9)), (T.BooleanType(), st.booleans()),
    (T.ByteType(), integers(8)), (T.ShortType(), integers(16)), (T.IntegerType(), integers(32)),
    (T.LongType(), integers(64)), (T.FloatType(), floats(32, 2.0**-149)), (T.DoubleType(), floats(64, 5e-324)),
    (T.DecimalType(7, 2), decimals(7, 2)), (T.DecimalType(38, 0), decimals(38, 0)),
    (T.DecimalType(38, 38), decimals(38, 38)), (T.DateType(), times(DAY, 32)), (T.TimestampType(), times(1, 64)),
    (T.TimestampNTZType(), times(1, 64)),
]  # fmt: skip

Column = tuple[T.DataType, T.DataType, list[Any]]


@st.composite
def columns(draw: st.DrawFn, nested: bool = True) -> Column:
    """A simple type, one that is made of it, and some values of that."""
    simple, values = draw(st.sampled_from(SIMPLE))
    kind, values = simple, st.none() | values
    shape = draw(st.sampled_from(["", "array", "struct", "map", "keys"])) if nested else ""
    if shape == "array":
        kind, values = T.ArrayType(kind), st.none() | st.lists(values, max_size=2)
    elif shape == "struct":
        values = st.none() | st.fixed_dictionaries({"a": values, "b": st.lists(values, max_size=2)})
        kind = T.StructType([T.StructField("a", kind), T.StructField("b", T.ArrayType(kind))])
    elif shape:
        key = texts if shape == "keys" else st.sampled_from([b"k", b"l"])
        values = st.none() | st.lists(st.tuples(key, values), max_size=2, unique_by=lambda item: item[0])
        kind = T.MapType(T.StringType(), kind)
    return simple, kind, draw(st.lists(values, min_size=1, max_size=3))


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """As Spark makes it, which does not look into texts."""
    mask = pa.array([value is None for value in values], pa.bool_())
    if kinds.is_string(kind):
        raw = pa.array(values, pa.binary())
        return pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        return pa.array(values, pa.int32() if kinds.is_date(kind) else pa.int64()).cast(kind)
    if kinds.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values], kind)
    if kinds.is_struct(kind):
        inner = [array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if kinds.is_nested(kind):
        flat = [item for value in values for item in value or ()]
        ends = pc.cumulative_sum(pa.array([0, *(len(value or ()) for value in values)], pa.int32()))
        if kinds.is_list(kind):
            return pa.ListArray.from_arrays(ends, array(flat, kind.value_type), type=kind, mask=mask)
        keys, items = array([key for key, _ in flat], kind.key_type), array([item for _, item in flat], kind.item_type)
        return pa.MapArray.from_arrays(ends, keys, items, type=kind, mask=mask)
    return pa.array(values, kind)


def batch_of(kind: T.DataType, values: list[Any]) -> tuple[T.StructType, pa.RecordBatch]:
    """Rows with an `id` and such a `v`; without columns if the type has no form in Arrow."""
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", kind)])
    try:
        wanted = to_arrow_schema(schema)
    except PySparkTypeError:
        return schema, pa.record_batch([], pa.schema([]))
    return schema, pa.RecordBatch.from_arrays(
        [pa.array(range(len(values))), array(values, wanted.field("v").type)], schema=wanted
    )


def plain(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if kinds.is_struct(kind):
        return {field.name: plain(scalar[field.name]) for field in kind}
    if kinds.is_map(kind):
        return [(plain(entry[0]), plain(entry[1])) for entry in scalar.values]
    if kinds.is_nested(kind):
        return [plain(item) for item in scalar.values]
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes()
    if kinds.is_floating(kind):
        return repr(scalar.as_py())
    return scalar.value if kinds.is_temporal(kind) else scalar.as_py()


def from_json(kind: T.DataType, value: Any) -> Any:
    assert value is None or isinstance(value, str) or not isinstance(kind, (T.DecimalType, T.BinaryType))
    if value is None or isinstance(kind, T.BooleanType):
        return value
    if isinstance(kind, T.IntegralType):
        return int(value)  # the key of an object is a text
    if isinstance(kind, T.StructType):
        return {field.name: from_json(field.dataType, value[field.name]) for field in kind}
    if isinstance(kind, T.ArrayType):
        return [from_json(kind.elementType, item) for item in value]
    if isinstance(kind, T.MapType):
        pairs = value.items() if isinstance(value, dict) else [(pair["key"], pair["value"]) for pair in value]
        return [(from_json(kind.keyType, key), from_json(kind.valueType, item)) for key, item in pairs]
    if isinstance(kind, T.DateType):
        return date.fromisoformat(value).toordinal() - 719_163
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        assert value.endswith("Z") == isinstance(kind, T.TimestampType)
        passed = datetime.fromisoformat(value.removesuffix("Z")) - datetime(1970, 1, 1)
        return passed.days * DAY + passed.seconds * 1_000_000 + passed.microseconds
    if isinstance(kind, T.FloatType):
        return repr(struct.unpack("f", struct.pack("f", float(value)))[0])
    if isinstance(kind, T.DoubleType):
        return repr(float(value))
    if isinstance(kind, T.DecimalType):
        return Decimal(value)
    return base64.b64decode(value) if isinstance(kind, T.BinaryType) else value.encode()


def from_text(kind: T.DataType, text: str) -> Any:
    simple = text == "true" if isinstance(kind, T.BooleanType) else text
    return from_json(kind, int(text) if isinstance(kind, T.IntegralType) else simple)


def leaves(simple: T.DataType, value: Any) -> Iterator[tuple[T.DataType, Any]]:
    """The simple values in a value, none of them null; keys are texts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(simple, item)
    elif isinstance(value, tuple):
        yield T.StringType(), value[0]
        yield from leaves(simple, value[1])
    elif value is not None:
        yield simple, value
