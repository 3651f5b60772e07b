"""Everything that watches a running job, or any streaming query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_ext.listeners.job_listener import JobListener
from spark_ext.spark.watching.query_events import Hint

if TYPE_CHECKING:
    from spark_ext.listeners.observer import Observer as Observer

__all__ = ["Hint", "JobListener", "Observer"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a job's listener needs nothing of it.
    if name != "Observer":
        raise AttributeError(f"module 'spark_ext.listeners' has no attribute {name!r}")
    from spark_ext.listeners.observer import Observer

    return Observer
