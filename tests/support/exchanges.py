"""Exchanges made by hand."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from spark_ext.exchange.descriptor import Descriptor, nullable


def descriptor(name: str = "x", **given: Any) -> Descriptor:
    """An exchange of a column `n`, in two partitions."""
    fields = {
        "name": name,
        "id": "id-1",
        "job_id": "job-id",
        "kind": "arrow",
        "partitions": 2,
        "key": (),
        "columns": nullable(StructType([StructField("n", LongType())])).jsonValue(),
    }
    return Descriptor(**{**fields, **given})
