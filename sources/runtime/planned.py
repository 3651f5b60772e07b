"""The sources of a query in its newest planned offsets, by Spark's log."""

from __future__ import annotations

from spark_ext.model.offsets import SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog


def planned_sources(checkpoint: str) -> dict[str, SourceOffset]:
    """The newest planned offsets of a query's channel sources, by uid; empty before the first epoch.

    Args:
        checkpoint: path or URI of the query's checkpoint directory.
    """
    log = SparkLog(checkpoint)
    newest = log.newest_offsets()
    logged = None if newest is None else log.offsets(newest)
    return {} if logged is None else source_offsets(logged)
