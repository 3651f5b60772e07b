"""Spark's daemon that forks Python workers, which also say where they are, how long they work, and why they fail.

Spark runs it instead of `pyspark.daemon` where `spark.python.daemon.module` names it, as `spark_ext.session` does.
"""

from __future__ import annotations

from spark_ext.failures.in_worker import install
from spark_ext.spark.watching import worker_times
from spark_ext.spark.watching.attendance import attend_all

if __name__ == "__main__":
    from pyspark.daemon import manager

    install()
    attend_all()
    worker_times.install()
    manager()
