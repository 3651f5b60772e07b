"""Spark's daemon that forks Python workers, with what they need imported before; for other processes see `forks`."""

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401

import spark_ext.sinks.runtime.writer
import spark_ext.sources.runtime.adapter  # noqa: F401
from spark_ext.spark.watching.worker_daemon import prepare
from spark_ext.worker_internals import run_daemon

if __name__ == "__main__":
    prepare()
    run_daemon()
