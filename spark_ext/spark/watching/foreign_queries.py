"""Queries that others have started, as Spark has them. One of the modules beside `jvm` that use py4j.

`tests/spark/test_foreign.py` pins what it relies on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_ext.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

_QUERY_ID: Final = "sql.streaming.queryId"
"""Local property that Spark sets on the thread of each query."""

_ENDING: Final = ("AvailableNowTrigger", "OneTimeTrigger")
"""Triggers with which a query ends by itself."""


@dataclass(frozen=True)
class MadeOf:
    """What a progress report says of the parts of a query."""

    name: str
    sources: tuple[str, ...]
    """As Spark describes them; may hold secrets."""
    sink: str


def query_of(streams: StreamingQueryManager, query_id: str) -> StreamingQuery | None:
    """An active query; also from within `QueryEvents.started`.

    Args:
        streams: of the session.
        query_id: Spark's.
    """
    from pyspark.sql.streaming.query import StreamingQuery

    found = streams._jsqm.get(query_id)
    return None if found is None else StreamingQuery(found)


def lend(spark: SparkSession, query_id: str, properties: Mapping[str, str]) -> bool:
    """Give the tasks of a query that is being started local properties: from within `QueryEvents.started`.

    Spark calls that on the query's thread, and py4j lets Python call back on the same one. All tasks of the query
    inherit its properties; the thread that has started the query keeps its own.

    Args:
        spark: any session of the application.
        query_id: Spark's.
        properties: by name.

    Returns:
        Whether it was done: not if py4j uses another thread, as with PYSPARK_PIN_THREAD=false.
    """
    context = spark._jsparkSession.sparkContext()
    if context.getLocalProperty(_QUERY_ID) != query_id:
        return False
    for name, value in properties.items():
        context.setLocalProperty(name, value)
    return True


def ends_by_itself(query: StreamingQuery) -> bool:
    """Whether the trigger of a query lets it end once it has read what was there."""
    return str(query._jsq.streamingQuery().trigger().toString()).startswith(_ENDING)


def failure_of(query: StreamingQuery) -> BaseException | None:
    """Why a query has failed, as Spark raises it to those who wait for its end; None: it has ended without a failure.

    Args:
        query: that is not active any more.
    """
    # `query.exception()` has the first exception alone.
    try:
        query.awaitTermination(1)
    except Exception as failure:
        return failure
    return None


def is_stopping(spark: SparkSession) -> bool:
    """Whether Spark is being stopped or was, which ends its queries with failures that are none of theirs.

    Args:
        spark: any session of the application.
    """
    context: Any = spark.sparkContext._jsc
    with suppress(Exception):
        return context is None or bool(context.sc().isStopped())
    return False


def is_added(streams: StreamingQueryManager, listener: Any) -> bool:
    """Whether a listener is one of a session's.

    Args:
        streams: of the session.
        listener: the JVM's.
    """
    return any(one.equals(listener) for one in streams._jsqm.listListeners())


def made_of(report: str) -> MadeOf:
    """What a progress report says of the parts of a query."""
    progress = json.loads(report)
    sources = tuple(str(one.get("description", "")) for one in progress["sources"])
    return MadeOf(str(progress.get("name") or ""), sources, str(progress.get("sink", {}).get("description", "")))


def recent(query: StreamingQuery, after: int) -> list[str]:
    """Spark's recent reports on epochs after the given one; none if Spark does not answer."""
    with suppress(Exception):
        return jvm.recent_progress(query, after)
    return []
