"""How a query with the trigger `availableNow` has ended. Spark reports a stop in the middle and its own end alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class OwnEnd:
    """What Spark says about it."""

    found_nothing: bool
    """When it last looked at its sources there was nothing to plan."""
    one_epoch: bool
    """It was to run one epoch only, because one of its sources cannot say what is available now."""


def own_end(query: StreamingQuery) -> OwnEnd:
    """What Spark says about the end of a query; Spark has to run still.

    Raises:
        Exception: whatever Spark raises.
    """
    execution = query._jsq.streamingQuery()
    executor = str(execution.triggerExecutor().getClass().getSimpleName())
    return OwnEnd(bool(execution.noNewData()), executor == "SingleBatchExecutor")
