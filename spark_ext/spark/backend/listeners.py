"""Listeners of streaming queries whose events come from the JVM as they are: two calls into it for each epoch.

pyspark's own listener makes about a hundred, which cost an epoch 10 ms or more.
"""

from __future__ import annotations

import contextlib
import sys
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

from spark_ext.spark.backend.missing import by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.spark.backend.contract import QueryEvents


class InJvm(StreamingQueryListener):
    """For `spark.streams.addListener` and `removeListener`, which raise what the methods raise."""

    def __init__(self) -> None:
        super().__init__()
        self.in_jvm: Any = None  # the listener as Spark has it; None: it was never added

    @abstractmethod
    def when_added(self, streams: StreamingQueryManager | None) -> Any:
        """The listener for the JVM, by `wrapped`; `streams` is of the session, None if pyspark does not tell."""

    def when_removed(self) -> None:
        """The user removes it, whether or not it was added."""

    def when_client(self, session: SparkSession) -> None:
        """A client of Spark Connect adds it."""

    def _unused(self, event: Any) -> None: ...

    # A classic session does not call them.
    onQueryStarted = onQueryProgress = onQueryIdle = onQueryTerminated = _unused

    def _set_spark_session(self, session: Any) -> None:
        # The first thing that a client does with a listener, which it would then call in this process.
        self.when_client(session)
        super()._set_spark_session(session)

    @property
    def _jlistener(self) -> Any:
        # What pyspark registers with Spark, and takes back from it: the only call of either kind that reaches this.
        caller = sys._getframe(1)
        if caller.f_code.co_name == "removeListener":
            self.when_removed()
            return self.in_jvm  # None, which Spark ignores, if it was never added
        manager = caller.f_locals.get("self")
        self.in_jvm = self.when_added(manager if isinstance(manager, StreamingQueryManager) else None)
        return self.in_jvm


class _Events:
    def __init__(self, events: QueryEvents) -> None:
        self._events = events

    def onQueryStarted(self, event: Any) -> None:
        self._events.started(event.id().toString(), event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:
        self._events.progressed(str(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._events.terminated(event.id().toString(), event.runId().toString())

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


@by_name
def wrapped(events: QueryEvents) -> Any:
    """A listener as an object of the JVM."""
    from pyspark import SparkContext

    streaming = SparkContext._jvm.org.apache.spark.sql.streaming  # type: ignore[union-attr]
    return streaming.PythonStreamingQueryListenerWrapper(_Events(events))


@by_name
def _added(spark: SparkSession, events: QueryEvents) -> tuple[Any, Any]:
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    streams, listener = spark._jsparkSession.streams(), wrapped(events)
    streams.addListener(listener)
    return streams, listener


@contextlib.contextmanager
def listening(spark: SparkSession, events: QueryEvents) -> Iterator[None]:
    """Pass the events of a session's queries on for the duration of a block."""
    streams, listener = _added(spark, events)
    try:
        yield
    finally:
        # Where that fails the JVM has died, which what the block raises says better.
        with contextlib.suppress(Exception):
            streams.removeListener(listener)
