"""The part of a job's face with which it is built: queries, exchanges, and those that are removed."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.jobs.exchange import Exchange


class Buildable(ABC):
    """What a job offers before it is started; base of `Job`."""

    name: str
    _parts: Composition
    _coordinator: Coordinator | None

    def add(
        self,
        uid: str,
        query: DataStreamWriter | Callable[[], DataStreamWriter] | Callable[[Mapping[str, Any]], DataStreamWriter],
        *,
        after: str | Collection[str] = (),
        available_now: bool = False,
        renamed_from: str | None = None,
        accept: Collection[str] = (),
    ) -> Self:
        """Add a query.

        Args:
            uid: the query's stable name; its checkpoint is kept under it.
            query: `df.writeStream...`, without trigger, checkpoint location, `start` and `toTable`; or a function that
                returns it. One that needs an argument is given the query's configuration (`set_config`), a read-only
                mapping, and is called at each start. When a key changes that it has read, the query is built anew and
                restarted between two epochs; keys that begin with `spark.sql.` are settings of its session.
            after: uids of queries that have to finish first. A function is then called when they have, as what they
                write may not be there before; until then the query counts in no state.
            available_now: the query ends with what is there when it starts, as `trigger(availableNow=True)` does; for
                Spark's own sources, which have no end. It is then SUSPENDED, and the next run continues.
            renamed_from: the uid that the query had before: it continues exactly where it was. May stay there.
            accept: options that may differ from the last start although they say what an operator reads from or writes
                to: `("orders.path",)` is the option `path` of the operator `orders`, `("daily.state",)` the stateful
                operators of the query `daily`. Remove it after the next start.

        Raises:
            ConfigurationError: a uid is missing or used twice, an option is unknown, the plan cannot be supervised, or
                something on the writer would be ignored; see `queries.writer_checks`.
        """
        self._refuse_started(f"query '{uid}'", "add all queries before start() or run()")
        self._parts.add(uid, query, after, available_now=available_now, renamed_from=renamed_from, accept=accept)
        return self

    def exchange(
        self,
        name: str,
        *,
        partitions: int = 16,
        key: str | Sequence[str] = (),
        kind: str = "arrow",
        max_in_flight: int | None = None,
        keep: str | int = 0,
        schema: StructType | str | None = None,
    ) -> Exchange:
        """Make an exchange: one query writes it (`write`), any number of others read it (`read`).

        Args:
            name: unique in the job; its data is kept under it.
            partitions: fixed by the first start; readers may be fewer or more.
            key: columns that decide to which partition a row goes; none: partitions are filled in turn.
            kind: how it is stored, in the state directory: `arrow`, files of a file system that driver and executors
                share; `delta`, a Delta table, which may be in an object store, and is slower.
            max_in_flight: rows that the slowest consumer has not committed, beyond which the producer waits.
            keep: time for which rows are kept at least, ms or text such as `"1 day"`. Otherwise they are deleted when
                all queries that read the exchange have committed them.
            schema: of its rows, also as DDL text, if it is read before it is written.

        Raises:
            ConfigurationError: a bad or repeated name, or a bad setting.
        """
        self._refuse_started(f"exchange '{name}'", "make all exchanges before start() or run()")
        return self._parts.exchange(
            name,
            partitions=partitions,
            key=(key,) if isinstance(key, str) else tuple(key),
            kind=kind,
            max_in_flight=max_in_flight,
            keep=keep,
            schema=schema,
        )

    def _refuse_started(self, what: str, do: str) -> None:
        if self._coordinator is not None:
            raise ConfigurationError(
                "the job has been started",
                operator=f"job '{self.name}', {what}",
                kept="the running queries are not touched",
                do=do,
            )

    def remove(self, uid: str) -> Self:
        """Abandon a query that has not finished: the job starts without it. What it has written stays where it is.

        Takes effect at the next start, and may stay there. Added again later, the query continues where it was, unless
        a restore in place has left it out meanwhile: then it is refused until it is reset.

        Raises:
            ConfigurationError: the query has been added.
        """
        self._parts.wishes = self._parts.wishes.with_removed(self.name, uid)
        return self
