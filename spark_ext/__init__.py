"""Flink-grade job lifecycle for Spark Structured Streaming. Import it as `sx`.

    spark = sx.session("flights")
    job = sx.Job(spark, "flights", state="state/flights")
    job.add("daily", frame.writeStream.format("delta_2pc").option("uid", "daily").option("path", "out/daily"))
    result = job.run()

Names are loaded on first use: Python workers import this package in every task's process, and need neither a
session nor a job.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_ext import errors as errors
    from spark_ext.sessions import register as register
    from spark_ext.sessions import session as session

_PLACES = {
    "errors": "spark_ext.errors",
    "register": "spark_ext.sessions:register",
    "session": "spark_ext.sessions:session",
}

__all__ = ["errors", "register", "session"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'spark_ext' has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    value = import_module(module)
    found = getattr(value, attribute) if attribute else value
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
