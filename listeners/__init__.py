"""Everything that watches a running job."""

from spark_ext.listeners.job_listener import JobListener
from spark_ext.spark.query_events import Hint

__all__ = ["Hint", "JobListener"]
