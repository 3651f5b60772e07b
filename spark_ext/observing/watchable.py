"""What a query has that is watched: one of a job, or one that somebody else has started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ext.queries.history import Figures
    from spark_ext.queries.watched import WatchedQuery


class Watchable(Protocol):
    """A query that the monitor looks at; its attributes are for reading, from any thread."""

    @property
    def uid(self) -> str:
        """Under which it is recorded."""

    @property
    def who(self) -> str:
        """Job and query, for messages."""

    @property
    def live(self) -> bool:
        """Whether Spark runs it, by what is known."""

    @property
    def busy(self) -> str:
        """What is being done with it, such as `stop`; "" if nothing is."""

    @property
    def in_spark(self) -> StreamingQuery | None:
        """The query in Spark; None before its first start."""

    @property
    def sampled_as(self) -> str:
        """Under which its Python processes leave notes; see `spark.attendance`."""

    @property
    def watched(self) -> WatchedQuery:
        """What it does."""

    @property
    def figures(self) -> Figures:
        """What is counted of it."""

    @property
    def committed(self) -> int:
        """The newest committed epoch; -1 before the first one."""
