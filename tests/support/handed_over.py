"""A job in a session that a platform hands over: `python -m tests.support.handed_over FOLDER [OTHER]`.

The session is made without spark-ext: no jar of Delta, Spark's own settings, and of these it lets nobody change more
than serverless compute of Databricks does. `dbutils` is there, and a variable that names the platform. OTHER is a
Python for the workers.
"""

import builtins
import json
import os
import sys
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig

import spark_ext as sx
from tests.support.connect_client import job_of

SETTABLE: Final = (
    "spark.databricks.execution.timeout", "spark.sql.ansi.enabled", "spark.sql.files.maxPartitionBytes",
    "spark.sql.legacy.timeParserPolicy", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
)  # fmt: skip
"""What a session of Databricks serverless compute lets its user change."""


class ReadOnly(RuntimeConfig):
    """Settings of a session that a platform has taken from its users, but for a few."""

    def set(self, key: str, value: Any) -> None:
        self._require(key)
        super().set(key, value)

    def unset(self, key: str) -> None:
        self._require(key)
        super().unset(key)

    def _require(self, key: str) -> None:
        if key not in SETTABLE:
            raise PermissionError(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available")


class Utilities:
    """Stands under the name `dbutils`; nothing of it may be used unasked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"dbutils.{name} was used")


def main(folder: str, python: str = "") -> None:
    os.environ["DATABRICKS_RUNTIME_VERSION"] = "18.0"
    builtins.dbutils = Utilities()  # type: ignore[attr-defined]
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    given = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    settings = ReadOnly(spark._jsparkSession.conf())
    SparkSession.conf = property(lambda _: settings)  # type: ignore[assignment]
    sx.register(spark, require_delta=False)
    result = job_of(spark, folder, "end").run(progress=False)
    print(json.dumps({"state": result.state.value, "rows": {query.uid: query.rows for query in result.queries}}))


if __name__ == "__main__":
    main(*sys.argv[1:])
