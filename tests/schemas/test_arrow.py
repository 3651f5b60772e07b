"""The Arrow form of a schema is Spark's own, and defined for the types that Spark's conversion leaves out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from spark_ext.schemas.arrow import arrow_schema, arrow_type
from spark_ext.testing.every_type import EVERY_TYPE

NESTED = T.StructType(
    [
        T.StructField("a", T.ArrayType(T.StructType([T.StructField("x", T.LongType(), False)]), False), False),
        T.StructField("m", T.MapType(T.StringType(), T.ArrayType(T.TimestampType()), False)),
        T.StructField("i", T.DayTimeIntervalType()),
    ]
)


@pytest.mark.parametrize("schema", [EVERY_TYPE, NESTED], ids=["every type", "nested"])
def test_it_is_sparks_own(schema: T.StructType) -> None:
    assert arrow_schema(schema) == to_arrow_schema(schema, timezone="UTC")


def test_columns_may_all_be_nullable_while_fields_stay_as_they_are() -> None:
    found = arrow_schema(NESTED, nullable=True)
    assert all(field.nullable for field in found)
    assert found.types == arrow_schema(NESTED).types
    assert not arrow_schema(NESTED).field("a").nullable


def test_texts_of_a_length_are_texts_at_any_depth() -> None:
    kind = T.MapType(T.CharType(3), T.ArrayType(T.VarcharType(5)))
    assert arrow_type(kind) == pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def test_a_type_without_an_arrow_form_is_refused() -> None:
    with pytest.raises(PySparkTypeError):
        arrow_type(T.CalendarIntervalType())
