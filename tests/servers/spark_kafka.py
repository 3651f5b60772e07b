"""Spark's own Kafka source and sink: their jars, fetched by Spark's resolver."""

import sys
from pathlib import Path
from typing import Final

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.session.jars import session_jars

PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
# A dependency for delegation tokens, which are not used here; not every mirror has its version 4.2.0.
TOKENS: Final = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
OTHER_TOKENS: Final = f"{TOKENS}:4.0.0"


def spark_kafka_jars() -> tuple[Path, ...]:
    try:
        return session_jars(PACKAGE, {})
    except EnvironmentProblem as problem:
        print(f"{problem.what}\ntrying {OTHER_TOKENS} for its part", file=sys.stderr)
        without = session_jars(PACKAGE, {"spark.jars.excludes": TOKENS})
        # Without its own dependencies, which are older than those of the package.
        return *without, *(jar for jar in session_jars(OTHER_TOKENS, {}) if "token-provider" in jar.name)
