"""Kinds of Spark sessions: classic ones, and those of Spark Connect, whose client has no JVM.

This module imports nothing of Spark: the module of a class tells, and a client of Connect may lack what pyspark needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_ext.errors import EnvironmentProblem

if TYPE_CHECKING:
    from spark_ext.spark.backend.contract import Backend

# What makes pyspark create a session of Connect: variables and settings, each with the value that does not ask for it.
_REQUESTS: Final = {
    "SPARK_REMOTE": "",
    "SPARK_CONNECT_MODE_ENABLED": "",
    "SPARK_CONNECT_MODE": "0",
    "SPARK_API_MODE": "classic",
    "spark.remote": "",
    "spark.api.mode": "classic",
}


def refuse_connect_requests(conf: Mapping[str, str]) -> None:
    """Raise an error if pyspark would make a session of Spark Connect from these settings."""
    for name, classic in _REQUESTS.items():
        found = conf.get(name) if name.startswith("spark.") else os.environ.get(name)
        if found and found.lower() != classic:
            raise EnvironmentProblem(
                f"{name} asks for Spark Connect",
                operator="the Spark session",
                kept="nothing was started",
                do="pass the server's address, session(remote='sc://...'), or leave it out, in a process of its own if "
                "this one has a session of Spark Connect",
            )


def backend_of(given: object) -> Backend:
    """The backend of a session, DataFrame, writer or query."""
    if is_connect(given):
        from spark_ext.spark.backend.connect import CONNECT

        return CONNECT
    from spark_ext.spark.backend.classic import CLASSIC

    return CLASSIC


def is_connect(spark: object) -> bool:
    """Whether a session, a DataFrame or a writer is one of a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def require_classic(spark: object, who: str, *, kept: str) -> None:
    """Raise an error if a session, or something that was made with one, is of Spark Connect."""
    if is_connect(spark):
        name = type(spark).__name__
        what = "session" if name == "SparkSession" else name
        raise EnvironmentProblem(
            f"this is a Spark Connect {what}",
            operator=who,
            kept=kept,
            do="use a classic session, such as that of spark_ext.session(): this reads Spark's plans and events in the "
            "driver's own JVM (on Databricks: compute in dedicated access mode, not standard, not serverless)",
        )
