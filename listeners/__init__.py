"""Everything that watches a running job."""

from spark_ext.listeners.job_listener import Hint, JobListener

__all__ = ["Hint", "JobListener"]
