"""Spark's types in Arrow, as Spark sends batches to Python; timestamps are UTC microseconds in any session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as spark

from spark_ext import worker_internals

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_schema(schema: spark.StructType, *, nullable: bool = False) -> pa.Schema:
    """The Arrow schema of columns; `nullable` allows nulls everywhere, as in the tables that sinks create."""
    import pyarrow as pa

    return pa.schema([pa.field(f.name, arrow_type(f.dataType), nullable or f.nullable) for f in schema.fields])


def arrow_type(kind: spark.DataType) -> pa.DataType:
    """The Arrow type of a Spark type."""
    import pyarrow as pa

    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, spark.MapType):
        return pa.map_(arrow_type(kind.keyType), pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull))
    if isinstance(kind, (spark.CharType, spark.VarcharType)):
        return pa.string()
    return worker_internals.to_arrow_type(kind)
