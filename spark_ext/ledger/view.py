"""What a source's planner reads from the ledger: through kept handles, seldom, and only what is new.

Spark asks an idle source for its next offset every 10 ms. The ledger is read at most every 100 ms; on a local path that
is one `stat` per table while nothing changes. After a change, only files that can hold newer rows are read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.delta import light_arrow
from spark_ext.delta.tail import Tail
from spark_ext.delta.where import Where
from spark_ext.errors import RESET, StateError
from spark_ext.ledger.columns import R, arrow_schema, from_arrow, from_json_many
from spark_ext.ledger.identity import lineages
from spark_ext.ledger.ledger import FOLDER, contiguous
from spark_ext.ledger.schema import CheckpointRow, ControlEventRow, FinishedRow, JobRow
from spark_ext.ledger.tables import CHECKPOINT_EVERY, REOPEN_AFTER, LedgerTable
from spark_ext.model.barriers import NO_BARRIER, Checkpoints
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.storage import child


class SourceView:
    """The ledger as one source sees it. Tables that do not exist yet are empty. For one thread.

    Flags of other lineages do not count, nor do those that the source has earned in another query; if `query` is "", as
    it is unknown, those of any query count.
    """

    def __init__(
        self,
        uri: str,
        source_uid: str,
        lineage: int,
        min_interval_ms: int = 100,
        *,
        query: str = "",
        first_checkpoint: int = NO_BARRIER + 1,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self._source = source_uid
        self._lineage = lineage
        self._query = query
        self._names: tuple[str, ...] | None = None

        def table(row_type: type[R]) -> LedgerTable[R]:
            return LedgerTable(child(uri, FOLDER, row_type.table), row_type, storage_options)

        self._jobs = table(JobRow)
        self._finished = _Watched(table(FinishedRow), min_interval_ms)
        self._control = _Watched(table(ControlEventRow), min_interval_ms)
        self._cuts = _Watched(table(CheckpointRow), min_interval_ms)
        self._pending: dict[int, frozenset[str]] = {}
        # Offsets may carry barriers of which there are no rows: of another job, whose savepoint was restored here, or
        # of a checkpoint whose rows have expired. All of them have smaller numbers.
        self._newest = first_checkpoint - 1
        self._flags: list[pa.Table] = []
        self._confirmed = 0
        self._events: tuple[Event, ...] = ()
        self._last_event = 0

    def confirmed(self) -> int:
        """The largest s such that this source's flags 1..s are in the ledger."""
        if self._finished.changed():
            self._read_flags()
            self._finished.taken()
        return self._confirmed

    def finished_channels(self, upto: int) -> dict[str, tuple[int, Any]]:
        """The channels that have finished, with the sequence of the finish and the position where they ended."""
        flags = self._flags_upto(upto)
        pairs = zip(flags["sequence"].to_pylist(), _values(flags, "position"), strict=True)
        return dict(zip(flags["channel"].to_pylist(), pairs, strict=True))

    def finished_data(self, upto: int) -> dict[str, Any]:
        """The channels that have finished, with what their source knew of them."""
        flags = self._flags_upto(upto)
        return dict(zip(flags["channel"].to_pylist(), _values(flags, "data"), strict=True))

    def _flags_upto(self, upto: int) -> pa.Table:
        if upto <= 0:
            return arrow_schema(FinishedRow).empty_table()
        if self._confirmed < upto:
            self._finished.look_now()
        if self.confirmed() < upto:
            raise StateError(
                f"the offset relies on {upto} finished channels of this source, but the ledger has {self._confirmed}: "
                "flags were deleted",
                operator=f"source '{self._source}', lineage {self._lineage}, {self._finished.uri}",
                kept="nothing was read; the checkpoint and the output are unchanged",
                do=f"restore the table from a backup, or discard the query's history with {RESET}",
            )
        flags = pa.concat_tables(self._flags)
        return flags.filter(pc.less_equal(flags["sequence"], light_arrow.int64(upto)))

    def look_for_events(self) -> None:
        """Let the next call of `events` look at the table, however short ago the last look was."""
        self._control.look_now()

    def events(self, after: int) -> tuple[Event, ...]:
        """The control events that were accepted after one, in their order; those up to it are not given again."""
        if after > self._last_event:
            self._last_event = after
        added = self._control.added()
        if added is not None:
            self._take([row for row in added if row.sequence > self._last_event and row.status == "accepted"])
        elif self._control.changed():
            self._take(self._control.rows([("sequence", ">", self._last_event), ("status", "=", "accepted")]))
            self._control.taken()
        if self._events and self._events[0].sequence <= after:
            self._events = tuple(event for event in self._events if event.sequence > after)
        return self._events

    def _take(self, rows: Sequence[ControlEventRow]) -> None:
        # The storage may have failed after a commit that was then repeated.
        later = {row.sequence: row for row in rows}
        if later:
            self._events = (*self._events, *(event_of(later[sequence]) for sequence in sorted(later)))
            self._last_event = max(self._last_event, *later)

    def checkpoints(self, incarnation: int) -> tuple[Checkpoints, int]:
        """The aligned checkpoints of an incarnation; the newest pending one that this source begins by itself, or 0."""
        if self._cuts.changed():
            self._read_checkpoints(incarnation)
            self._cuts.taken()
        mine = (number for number, stamps in self._pending.items() if self._source in stamps)
        return Checkpoints(self._newest, frozenset(self._pending)), max(mine, default=NO_BARRIER)

    def _read_checkpoints(self, incarnation: int) -> None:
        """Read from the oldest pending one on: those that are over stay so.

        Those of earlier incarnations are over as well, whether their last row says so or not: a barrier that an offset
        still carries from then is waited for by nobody.
        """
        begin = min(self._pending, default=self._newest + 1)
        later = [("query", "=", ""), ("checkpoint_id", ">=", begin)]
        triggered = sorted(self._cuts.rows([*later, ("status", "=", "TRIGGERED")]), key=lambda row: row.at)
        # Not in one read: the metadata of those that have completed are large.
        steps = self._cuts.read(["checkpoint_id", "status"], later)
        statuses = zip(steps["checkpoint_id"].to_pylist(), steps["status"].to_pylist(), strict=True)
        over = {number for number, status in statuses if status != "TRIGGERED"}
        # When queries finish meanwhile it is triggered again: the last row says who begins it.
        self._pending = {
            row.checkpoint_id: frozenset((row.metadata or {}).get("stamps", ()))
            for row in triggered
            if row.incarnation == incarnation and row.checkpoint_id not in over
        }
        self._newest = max([self._newest, *(row.checkpoint_id for row in triggered)])

    def _read_flags(self) -> None:
        """Read the flags above the confirmed ones; those below are all known."""
        found = self._finished.read(
            ["channel", "sequence", "position", "data"],
            [
                ("source", "=", self._source),
                ("kind", "=", "channel"),
                ("lineage", "=", self._lineage),
                ("sequence", ">", self._confirmed),
                *self._of_query(),
            ],
        )
        before = self._confirmed
        self._confirmed += contiguous(np.array(found["sequence"].to_pylist(), dtype=np.int64) - before)
        # Those beyond a gap are read again together with what closes it.
        self._flags.append(found.filter(pc.less_equal(found["sequence"], light_arrow.int64(self._confirmed))))

    def _of_query(self) -> list[tuple[str, str, object]]:
        """Flags under each name that the query has had; a running query is not renamed, so they are read once."""
        if not self._query:
            return []
        if self._names is None:
            self._names = lineages(self._jobs.rows([("event", "=", "renamed")])).names(self._query, self._lineage)
        return [("query", "in", list(self._names))]


def _values(flags: pa.Table, column: str) -> list[Any]:
    return from_json_many(flags[column].to_pylist(), FinishedRow, column)


class _Watched(Generic[R]):
    """A table that is refreshed no more often than asked for, and read when it has changed."""

    def __init__(self, table: LedgerTable[R], min_interval_ms: int) -> None:
        self._table = table
        self._interval = min_interval_ms / 1000
        self._looked_at: float | None = None
        self._read: int | None = None
        self._taken: int | None = None
        self._taken_at = 0.0
        self._tail = None if table.log is None else Tail(table.log, arrow_schema(table.row_type))

    @property
    def uri(self) -> str:
        """Of the table."""
        return self._table.uri

    def look_now(self) -> None:
        """Let the next call of `changed` refresh the table."""
        self._looked_at = None

    def changed(self) -> bool:
        """Whether there is something new that was not read yet; stays True until `taken`."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= self._interval:
            self._looked_at = now
            self._table.refresh()
        return self._table.version != self._taken

    def added(self) -> list[R] | None:
        """The rows that were added since the table was taken, by the log's newest entries alone; they are taken then.

        None: ask `changed`, which looks at the whole table.
        """
        now = time.monotonic()
        if self._tail is None or self._taken is None or self._looked_at is None:
            return None
        if now - self._taken_at > REOPEN_AFTER:
            # Entries that are old are deleted: a process that has slept would wait for one of these.
            self.look_now()
            if self.changed():
                return None
            self._taken_at = now
        if now - self._looked_at < self._interval:
            return []
        self._looked_at = now
        found = self._tail.after(self._taken, CHECKPOINT_EVERY)
        if found is None:
            self.look_now()
            return None
        self._taken = found[0]
        return from_arrow(self._table.row_type, found[1])

    def read(self, columns: Sequence[str] | None = None, where: Where = ()) -> pa.Table:
        """Rows of the newest version, which may be newer than that of the read before."""
        found = self._table.read(columns, where)
        self._read = self._table.version if self._read is None else self._read
        return found

    def rows(self, where: Where) -> list[R]:
        """Like `read`, as row objects."""
        return from_arrow(self._table.row_type, self.read(where=where))

    def taken(self) -> None:
        """Note that the table is known up to the version of the first of the reads; a later one may have been newer."""
        self._taken, self._read = self._read, None
        self._taken_at = time.monotonic()


def event_of(row: ControlEventRow) -> Event:
    """An accepted event, from its row."""
    return Event(
        row.sequence,
        row.event_id,
        row.kind,
        Target.parse(row.target),
        row.value,
        Delivery(row.delivery),
        row.lineage,
        row.incarnation,
        int(row.at.timestamp() * 1000),
        None if row.expires_at is None else int(row.expires_at.timestamp() * 1000),
        (row.origin or "").startswith("rest"),
    )
