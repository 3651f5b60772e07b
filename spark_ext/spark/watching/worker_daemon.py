"""Spark's daemon that forks Python workers, which also say where they are, how long they work, and why they fail.

Spark runs it instead of `pyspark.daemon` where `spark.python.daemon.module` names it, as `spark_ext.session` does.
"""

from __future__ import annotations

from typing import Final

from spark_ext import worker_internals
from spark_ext.failures import record
from spark_ext.spark.watching.attendance import attend_task

# Local property of tasks that report how long the user's code ran without its waiting: those of divided epochs.
TIMES: Final = "spark_ext.parts"


def prepare() -> None:
    """Change this process, before it forks workers."""
    record.install()
    worker_internals.before_each_task(attend_task)
    worker_internals.report_without_waiting(_is_timed)


def _is_timed() -> bool:
    return worker_internals.task_property(TIMES) is not None


if __name__ == "__main__":
    prepare()
    worker_internals.run_daemon()
