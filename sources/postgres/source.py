"""`postgres`: a table or a query of PostgreSQL, in key ranges; then, optionally, the rows added to it.

    spark.readStream.format("postgres").option("uid", "orders").option("dsn", ...).option("table", "orders").load()

Bounded by default: the rows that existed when the run began. With `incremental` it continues with the rows whose
transactions have ended since (`xmin`), or above a value of an increasing column that is at rest (`column`). See
`docs/postgres.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from spark_ext.clients.library import load
from spark_ext.clients.postgres.connection import Name, Server
from spark_ext.clients.postgres.problems import translated
from spark_ext.errors import NEW_QUERY, SparkExtError, TransientError, refused
from spark_ext.model.offsets import Json, Position
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit
from spark_ext.sources.postgres.identity import (
    Identity,
    changed,
    compare,
    identify,
    leaves,
    refuse_passed,
    refuse_restart,
)
from spark_ext.sources.postgres.increments import ByColumn, ByTransaction, Increments, shared
from spark_ext.sources.postgres.options import PostgresOptions
from spark_ext.sources.postgres.ranges import MOST, KeyRange, advance, cut, parse, refuse_nulls, seek
from spark_ext.sources.postgres.relation import Relation, check_declared, check_increasing, look_up
from spark_ext.sources.postgres.slice import Slice, of_increment, of_range
from spark_ext.sources.postgres.snapshot import View, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

INCREMENT = "increment"
"""The channel of added rows. It exists from the first epoch on, and its data contain the ranges of the table."""

PARTITIONS = "partitions"  # in a position of the increment: the numbers of the table's partitions when it was planned


class Postgres(ChannelSource):
    """Key ranges as channels, and one more for added rows.

    A position of a range is the key up to which it was read, with the number and hash of an epoch's rows; a position of
    the increment is a transaction or a column's value, also with number and hash.
    """

    options_type = PostgresOptions
    options: PostgresOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._resumed = False
        self._known: tuple[Channel, ...] = ()
        self._plan: list[Channel] | None = None  # the channels of a table that is read with increments
        self._finished: frozenset[str] = frozenset()
        self._begun: Identity | None = None  # of the table that is read with increments
        self._stored = ""  # the storage of that table when it was last looked at
        self._unfinished: set[str] = set()  # ranges that are not planned to their end
        self._unsafe: set[str] = set()  # ranges whose last epoch is not known to be committed
        self._joined: set[int] = set()
        """Partitions that were attached since the increment's position, and have no rows that it has passed."""

    @classmethod
    def name(cls) -> str:
        """`postgres`."""
        return "postgres"

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors without connections, and without what comes from the driver's environment."""
        left = ("_view", "_server", "_relation", "_increments", "_who")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    @cached_property
    def _server(self) -> Server:
        return Server.of(self.options, f"source '{self.options.uid}' (postgres)")

    @cached_property
    def _who(self) -> str:
        what = f"table {self.options.table}" if self.options.table is not None else "query"
        return f"source '{self.options.uid}' (postgres {self._server.name}, {what})"

    @cached_property
    def _view(self) -> View:
        load("adbc_driver_postgresql", "postgres", self._who)
        return View(self._server, self._who, self.options.lock_timeout, self.options.statement_timeout)

    @property
    def _from(self) -> str:
        """SQL after FROM."""
        if self.options.table is None:
            return f"({str(self.options.query).rstrip().rstrip(';')}\n)"
        return Name.parse(self.options.table).identifier.as_string(None)

    @cached_property
    def _relation(self) -> Relation:
        options = self.options
        is_table, connection = options.table is not None, self._view.connection
        found = look_up(connection, self._from, is_table, options.key, self._who, options.columns, options.where)
        if self.declared is not None:
            check_declared(self.declared, found, self._who)
        if options.incremental == "xmin" and not found.has_xid:
            what = f"{self._from} is a view or foreign table: the transactions that wrote its rows are unknown"
            raise refused(what, self._who, "read the table behind it, or use incremental=column")
        column = options.incremental_column
        if column is not None:
            check_increasing(self._view.connection, found, column, self._who)
        return found

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert errors of the server; the next request uses a new connection."""
        try:
            with translated(self._who, "nothing of this epoch was read"):
                yield
        except SparkExtError:
            self._view.lost()
            raise

    def schema(self) -> StructType:
        """The columns of the table or query."""
        with self._asking():
            found = self._relation.spark_schema
            self._view.release()
            return found

    @property
    def bounded(self) -> bool:
        """Whether it ends with the existing rows."""
        return self.options.incremental == "none"

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Remember which ranges were ever started."""
        self._resumed = True
        self._known, self._finished, self._plan = tuple(known), finished, None

    def open(self) -> None:
        """Check server, table and key before the query starts."""
        with self._asking():
            _ = self._relation
            self._view.release()

    def discover(self) -> Iterable[Channel]:
        """Ranges of the keys that no started channel covers, and the increment."""
        with self._asking():
            if self.bounded:
                return self._ranges_left()
            if not self._resumed:
                # An AvailableNow run calls this before it knows what was started: all channels that a plan may have.
                return [Channel(INCREMENT), *(Channel(f"range-{number}") for number in range(MOST))]
            if self._plan is None:
                # Once: what comes later is in the increment, and ranges that have finished since stay finished.
                self._plan = self._ranges_of_plan()
            return self._plan

    def _ranges_left(self) -> list[Channel]:
        started = [parse(name) for name in {channel.id for channel in self._known} | self._finished]
        relation = self._relation
        self._refuse_other_key(key for key, *_ in started)
        self._view.take()
        now = self._identity()
        compare(self._view.connection, relation, [one for _, _, one in started], now, self._who)
        refuse_nulls(self._view, relation)
        ranges = cut(self._view.connection, relation, self.options.rows_per_channel, [done for _, done, _ in started])
        if self._identity() != now:
            raise changed(f"{relation.source} was changed while it was divided into ranges", self._who)
        channels = [Channel(found.id(relation.key, now.token), {}, self._data(found)) for found in ranges]
        self._unsafe = {channel.id for channel in (*channels, *self._known)} - self._finished
        if not self._unsafe:
            self._view.release()
        return channels

    def _refuse_other_key(self, known: Iterable[Json]) -> None:
        """Refuse another key than the one by which the table was divided."""
        key = self._relation.key
        other = next((one for one in known if one != key.stored(key.columns)), None)
        if other is not None:
            name = other if isinstance(other, str) else ", ".join(other)
            do = f"set the option key={name.replace(', ', ',')}, or read the table {NEW_QUERY}"
            raise refused(f"the table was divided by '{name}' so far, but the key is now '{key.name}'", self._who, do)

    def _ranges_of_plan(self) -> list[Channel]:
        kept = next((channel.data for channel in self._known if channel.id == INCREMENT), None)
        if kept is not None:
            self._refuse_other_key([kept["key"]])
        begin, ranges, there = (kept["begin"], kept["ranges"], {}) if kept is not None else self._planned()
        now = self._identity()
        token = now.token if kept is None else kept["identity"]
        data = {"begin": begin, "ranges": ranges, "identity": token, **shared(self._relation)}
        channels = [
            Channel(f"range-{number}", {}, self._data(KeyRange.of(found), begin)) for number, found in enumerate(ranges)
        ]
        self._unfinished = {channel.id for channel in channels} - self._finished
        self._begun = Identity.parse(token)
        compare(self._view.connection, self._relation, [self._begun], now, self._who, whole=bool(self._unfinished))
        self._stored = self._begun.storage
        return [Channel(INCREMENT, {**begin, **there}, data), *channels]

    def _planned(self) -> tuple[dict[str, Any], list[list[Any]], dict[str, list[int]]]:
        """The beginning of the increment, the ranges before it, and the partitions whose rows are all in them."""
        begin = self._increments.begin()
        there = self._partitions()
        refuse_nulls(self._view, self._relation)
        ranges = cut(self._view.connection, self._relation, self.options.rows_per_channel)
        return begin, [found.to_json() for found in ranges], there

    def _data(self, found: KeyRange, begin: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"range": found.to_json(), **({"begin": begin} if begin else {}), **shared(self._relation)}

    def _identity(self) -> Identity:
        view, options = self._view, self.options
        connection, following = view.connection, view.held.next
        return identify(connection, self._relation, options.table is not None, options.incremental_column, following)

    def _partitions(self) -> dict[str, list[int]]:
        """What a position has of the table's partitions; nothing if it has none."""
        relation = self._relation
        return {PARTITIONS: leaves(self._view.connection, relation)} if relation.partitioned else {}

    def _check_increment(self, start: Mapping[str, Any]) -> dict[str, list[int]]:
        """Refuse another table, or rows that the increment has passed; what a position has of the partitions."""
        now, begun = self._identity(), self._begun
        assert begun is not None
        connection, column = self._view.connection, self.options.incremental_column
        compare(connection, self._relation, [begun], now, self._who, whole=False)
        if "xid" in start and start["xid"] > now.next:
            raise changed("the server's transactions are counted from a smaller number than before", self._who)
        if column is not None and now.storage != self._stored and start["value"] is not None:
            following = start.get("next", begun.next)
            refuse_restart(connection, self._relation, column, start["value"], following, self._who)
        self._stored = now.storage
        there, passed = self._partitions(), self._increments.passed(start)
        if there and passed is not None:
            every = set(there[PARTITIONS])
            self._joined &= every
            fresh = every - {*start[PARTITIONS], *self._joined}
            refuse_passed(connection, self._relation, sorted(fresh), *passed, self._who)
            self._joined |= fresh
        return there

    @cached_property
    def _increments(self) -> Increments:
        options = self.options
        column, every = options.incremental_column, options.poll_interval
        if column is None:
            return ByTransaction(self._view, self._relation, every)
        unique = options.incremental_unique
        return ByColumn(self._view, self._relation, column, every, options.settle_timeout, unique=unique)

    def latest(self, channel: Channel) -> Position:
        """Of the increment: the position up to which it could be read now."""
        if channel.id != INCREMENT:
            return None
        with self._asking():
            # Never equal to a position: the planner would skip a channel that is at its target already.
            return {**self._increments.latest(), "target": True}

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Count and hash the rows of the step on the server."""
        with self._asking():
            if channel.id != INCREMENT:
                step = advance(self._view, self._relation, self._slice(channel, start), limit)
                (self._unfinished.discard if step.finished else self._unfinished.add)(channel.id)
                return step
            if self._unfinished:
                return Advance(start, rows=0)
            if "open" not in start:
                # An epoch of its own: the ranges before it are read in the snapshot that the next look releases.
                return Advance({**start, "open": True}, rows=0)
            check = partial(self._check_increment, start)
            return self._increments.advance(start, limit, check)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """A key of the range, or a value or transaction of the increment."""
        who = f"{self._who}, channel '{channel.id}'"
        try:
            with translated(who, "the channel continues where it is"):
                if channel.id != INCREMENT:
                    return seek(self._view, self._relation, KeyRange.of(channel.data["range"]), position, who)
                if self._unfinished or "open" not in at:
                    raise refused(
                        "the rows that the table had at the start are still being read, before those that were added",
                        who,
                        "wait until the channels of the ranges have finished",
                        "the channel continues where it is",
                    )
                to = self._increments.seek(at, position)
                # What these partitions have is where the operator wants it: before the position, or behind it.
                to |= self._partitions()
                self._view.release()
                return to
        except TransientError:
            self._view.lost()
            raise

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Release the run's snapshot once the rows of all ranges are safe; other sources of the query may continue."""
        if self.bounded and self._unsafe:
            self._unsafe.difference_update(epoch.finished)
            if not self._unsafe:
                self._view.release()

    def _slice(self, channel: Channel, start: Position, end: Position = None) -> Slice:
        rows = of_increment if channel.id == INCREMENT else of_range
        return rows(self._from, channel.data, self.options.incremental_column, start, end, self.options.where)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range in the key's order."""
        from spark_ext.sources.postgres.read import read

        if not end.get("rows"):
            return
        declared = self.declared if self.declared is not None else self.schema()
        statement = self._slice(channel, start, end).statement(declared)
        who = f"{self._who}, channel '{channel.id}'"
        bad = self.bad_row if self.collects_bad_rows else None
        settings = settings_of(self.options.lock_timeout, self.options.statement_timeout)
        yield from read(self._server, settings, statement, arrow_schema(declared), end, who, bad)
