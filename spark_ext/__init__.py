"""Flink-grade job lifecycle for Spark Structured Streaming. Import it as `sx`.

    spark = sx.session("flights")
    job = sx.Job(spark, "flights", state="state/flights")
    job.add("daily", frame.writeStream.format("delta_2pc").option("uid", "daily").option("path", "out/daily"))
    result = job.run()

Names are loaded on first use: Python workers import this package in every task's process, and need neither a
session nor a job. Without pyspark, which is an extra, the names that need it raise an `EnvironmentProblem`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from spark_ext import control as control
    from spark_ext import errors as errors
    from spark_ext import failures as failures
    from spark_ext import listeners as listeners
    from spark_ext.asynchronous import async_map as async_map
    from spark_ext.control.with_control import with_control as with_control
    from spark_ext.jobs.job import Job as Job
    from spark_ext.jobs.result import JobResult as JobResult
    from spark_ext.rules import expect as expect
    from spark_ext.spark.backend.failures import classify as classify
    from spark_ext.spark.session.catalogue import table_path as table_path
    from spark_ext.spark.session.sessions import read as read
    from spark_ext.spark.session.sessions import register as register
    from spark_ext.spark.session.sessions import session as session
    from spark_ext.steering.control import Control as Control
    from spark_ext.watermark import with_watermark as with_watermark

# No public object has the name of a module of this package: importing that module would hide the object.
_PLACES = {
    "Control": "spark_ext.steering.control:Control",
    "Job": "spark_ext.jobs.job:Job",
    "JobResult": "spark_ext.jobs.result:JobResult",
    "async_map": "spark_ext.asynchronous:async_map",
    "classify": "spark_ext.spark.backend.failures:classify",
    "control": "spark_ext.control",
    "errors": "spark_ext.errors",
    "expect": "spark_ext.rules:expect",
    "failures": "spark_ext.failures",
    "listeners": "spark_ext.listeners",
    "read": "spark_ext.spark.session.sessions:read",
    "register": "spark_ext.spark.session.sessions:register",
    "session": "spark_ext.spark.session.sessions:session",
    "table_path": "spark_ext.spark.session.catalogue:table_path",
    "with_control": "spark_ext.control.with_control:with_control",
    "with_watermark": "spark_ext.watermark:with_watermark",
}

__all__ = [
    "Control",
    "Job",
    "JobResult",
    "async_map",
    "classify",
    "control",
    "errors",
    "expect",
    "failures",
    "listeners",
    "read",
    "register",
    "session",
    "table_path",
    "with_control",
    "with_watermark",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("spark-ext")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'spark_ext' has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    try:
        value = import_module(module)
    except ImportError as problem:
        from spark_ext.spark.session.environment import explained

        raise explained(problem) from problem
    found = getattr(value, attribute) if attribute else value
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
