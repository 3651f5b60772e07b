"""Spark's daemon that forks Python workers, with what the workers of the tests' session need imported beforehand.

Importing takes longer than their work. For Spark's other Python processes see `tests.support.forks`.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_ext.sinks.runtime.adapter
import spark_ext.sources.runtime.adapter
import spark_ext.sources.runtime.reader  # noqa: F401
from spark_ext.failures.in_worker import install
from spark_ext.spark.watching import worker_times
from spark_ext.spark.watching.attendance import attend_all

if __name__ == "__main__":
    install()
    attend_all()
    worker_times.install()
    manager()
