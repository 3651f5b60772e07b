"""Spark's classic sessions, as opposed to those of Spark Connect, whose client has no JVM.

This module imports nothing of Spark: the module of a class tells, and a client of Connect may lack what pyspark needs.
"""

from __future__ import annotations

from spark_ext.errors import EnvironmentProblem


def is_connect(spark: object) -> bool:
    """Whether a session, a DataFrame or a writer is one of a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def require_classic(spark: object, who: str, *, kept: str, otherwise: str = "") -> None:
    """Raise an error if a session, or something that was made with one, is of Spark Connect.

    Args:
        spark: a session, a DataFrame or a writer; what is none of Spark's passes.
        who: the operator, for the message.
        kept: what was not affected.
        otherwise: a further way to proceed.

    Raises:
        EnvironmentProblem: it belongs to a client, which has no JVM of its own.
    """
    if is_connect(spark):
        name = type(spark).__name__
        what = "session" if name == "SparkSession" else name
        raise EnvironmentProblem(
            f"this is a Spark Connect {what}",
            operator=who,
            kept=kept,
            do="use a classic session, such as that of spark_ext.session(): jobs read Spark's plans and logs in the "
            "driver's own JVM (on Databricks: compute in dedicated access mode, not standard, not serverless)"
            f"{otherwise}",
        )
