"""The history of a job's control events, as its ledger has it: pages of them, single ones, and what has changed."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, Generic
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_ext.control.event_state import FINAL, STATUSES, EventState, state_of
from spark_ext.control.requests import ControlRefused, Refusal
from spark_ext.delta.failures import guarded
from spark_ext.ledger.columns import R, arrow_schema, from_arrow
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow
from spark_ext.storage import Location

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.tables import LedgerTable

LIMIT = 100  # events of a page, unless given
MOST = 1_000  # maximum number of events in a page


@dataclass(frozen=True)
class Filter:
    """Which events; conditions are combined with AND, several values of one with OR."""

    kind: Sequence[str] = ()
    status: Sequence[str] = ()
    target: Sequence[str] = ()
    requested_by: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """Some events in their order."""

    events: tuple[EventState, ...]
    cursor: str | None
    """Where the next page begins; None for the last page. Events in ascending order always have one, as further events
    may follow."""


class History:
    """Reads the events of a job. Safe for several threads; between calls it keeps the tables in memory.

    The ledger has handles of its own, so that nobody waits for a commit.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._uri = ledger.uri
        self._events = KeptTable(ledger.table(ControlEventRow))
        self._transitions = KeptTable(ledger.table(ControlTransitionRow))
        self._lock = threading.Lock()
        self._generation = 0
        self._accepted: pa.Table = self._events.rows
        self._steps: pa.Table = self._transitions.rows
        self._finals: pa.Array | None = None
        self._applied: pa.Array | None = None

    def poll(self) -> int:
        """See the newest versions; returns a number that changes whenever something may have changed.

        On a local path that costs two `stat` when nothing has changed.
        """
        with self._lock:
            self._poll()
            return self._generation

    def page(
        self, wanted: Filter | None = None, *, cursor: str | None = None, after: int | None = None, limit: int = LIMIT
    ) -> Page:
        """Events, newest first; or in ascending order, after the sequence `after`, which a cursor overrides."""
        wanted = wanted or Filter()
        self._check(wanted, limit)
        ascending, bound = (after is not None, after) if cursor is None else self._parsed(cursor)
        with self._lock:
            self._poll()
            rows = self._filtered(wanted)
            if bound is not None:
                beyond = pc.greater if ascending else pc.less
                rows = rows.filter(beyond(rows["sequence"], pa.scalar(_int64(bound), pa.int64())))
            order = np.argsort(rows["sequence"].to_numpy(), kind="stable")
            chosen = (order if ascending else order[::-1])[: limit + 1]
            more = len(chosen) > limit
            states = self._states(rows.take(pa.array(chosen[:limit], pa.int64())))
        if ascending:
            last = states[-1].sequence if states else bound or 0
            return Page(states, _cursor(True, last))
        return Page(states, _cursor(False, states[-1].sequence) if more else None)

    def event(self, event_id: str) -> EventState | None:
        """One event; None if it does not exist."""
        return next(iter(self.events([event_id])), None)

    def events(self, event_ids: Sequence[str]) -> tuple[EventState, ...]:
        """The events with these ids, in their order; ids without an event are left out."""
        with self._lock:
            self._poll()
            rows = self._accepted.filter(_among(self._accepted["event_id"], event_ids))
            return self._states(rows.sort_by("sequence"))

    def changed(self, after: int, since: float) -> tuple[EventState, ...]:
        """Events after a sequence, and those with a transition at or after a time (s since 1970), in their order."""
        with self._lock:
            self._poll()
            begin = pa.scalar(int(since * 1e6), pa.timestamp("us", tz="UTC"))
            moved = self._steps.filter(pc.greater_equal(self._steps["at"], begin))["event_id"]
            rows = self._accepted
            new = pc.greater(rows["sequence"], pa.scalar(_int64(after), pa.int64()))
            rows = rows.filter(pc.or_(new, pc.is_in(rows["event_id"], value_set=pc.unique(moved))))
            return self._states(rows.sort_by("sequence"))

    def newest(self) -> int:
        """The highest sequence of an event; 0 without events."""
        with self._lock:
            self._poll()
            return int(pc.max(self._accepted["sequence"]).as_py() or 0)

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        changed = self._events.poll()
        changed = self._transitions.poll() or changed
        if not changed:
            return
        rows = self._events.rows
        self._accepted = _once(rows.filter(pc.equal(rows["status"], "accepted")))
        self._steps = self._transitions.rows
        self._finals = self._applied = None
        self._generation += 1

    def _filtered(self, wanted: Filter) -> pa.Table:
        rows = self._accepted
        masks = []
        for name, values in (("kind", wanted.kind), ("requested_by", wanted.requested_by), ("target", wanted.target)):
            if values:
                masks.append(_among(rows[name], values))
        if wanted.status:
            masks.append(self._with_status(rows, wanted.status))
        return rows.filter(reduce(pc.and_, masks)) if masks else rows

    def _with_status(self, rows: pa.Table, statuses: Sequence[str]) -> pa.ChunkedArray:
        """Which rows have one of the statuses."""
        if self._finals is None or self._applied is None:
            ends = pc.and_(pc.equal(self._steps["query"], ""), pc.is_in(self._steps["status"], pa.array(sorted(FINAL))))
            self._finals = self._steps.filter(ends).select(["event_id", "status", "at"])
            applied = self._steps.filter(pc.equal(self._steps["status"], "applied"))
            self._applied = pc.unique(applied["event_id"])
        # The first final status of an event counts, see `state_of`.
        ordered = self._finals.sort_by("at")
        first = np.unique(ordered["event_id"].to_numpy(zero_copy_only=False), return_index=True)[1]
        finals = ordered.take(pa.array(np.sort(first), pa.int64()))
        ids = rows["event_id"]
        over = pc.is_in(ids, value_set=pc.unique(finals["event_id"]))
        obeyed = pc.is_in(ids, value_set=self._applied)
        found = []
        for status in statuses:
            if status == "accepted":
                found.append(pc.and_(pc.invert(over), pc.invert(obeyed)))
            elif status == "applied":
                found.append(pc.and_(pc.invert(over), obeyed))
            else:
                these = finals.filter(pc.equal(finals["status"], status))["event_id"]
                found.append(pc.is_in(ids, value_set=pc.unique(these)))
        return reduce(pc.or_, found)

    def _states(self, rows: pa.Table) -> tuple[EventState, ...]:
        steps: dict[str, list[ControlTransitionRow]] = {}
        mine = self._steps.filter(pc.is_in(self._steps["event_id"], value_set=pc.unique(rows["event_id"])))
        for row in from_arrow(ControlTransitionRow, mine):
            steps.setdefault(row.event_id, []).append(row)
        return tuple(state_of(row, steps.get(row.event_id, ())) for row in from_arrow(ControlEventRow, rows))

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _check(self, wanted: Filter, limit: int) -> None:
        if not 1 <= limit <= MOST:
            raise self._refused(f"{limit} is not a number of events", f"give a limit from 1 to {MOST}")
        for status in wanted.status:
            if status not in STATUSES:
                raise self._refused(f"{status[:100]!r} is not a status", f"use one of: {', '.join(STATUSES)}")

    def _parsed(self, cursor: str) -> tuple[bool, int]:
        try:
            raw = json.loads(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
            ascending, sequence = raw
            if not isinstance(ascending, bool) or type(sequence) is not int or len(raw) != 2:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise self._refused("invalid cursor for this list", "use the cursor of the previous page") from None
        return ascending, sequence

    def _refused(self, what: str, do: str) -> ControlRefused:
        return ControlRefused.because(Refusal.MALFORMED, what, f"control events of {self._uri}", do)


def _cursor(ascending: bool, sequence: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([ascending, sequence], separators=(",", ":")).encode()).decode()


def _once(rows: pa.Table) -> pa.Table:
    """Each event once: a storage may have failed after a commit that was then repeated."""
    sequences = rows["sequence"].to_numpy()
    distinct, first = np.unique(sequences, return_index=True)
    return rows if len(distinct) == len(sequences) else rows.take(pa.array(np.sort(first), pa.int64()))


def _among(column: pa.ChunkedArray, values: Sequence[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array([value for value in values if _is_text(value)], pa.string()))


def _is_text(value: str) -> bool:
    """Whether it may be in a table: half of a surrogate pair is in none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _int64(number: int) -> int:
    return max(-(2**63), min(2**63 - 1, number))


MARGIN: Final = 60.0  # s by which a transition may be written late; an event that is not over is looked at anyway

_MARK: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,15})")


class Changes:
    """What has changed since the last look. For one thread at a time.

    It begins with all events after the sequence `after`, or else with what changes from now on.
    """

    def __init__(self, history: History, after: int | None = None, mark: str | None = None) -> None:
        self._history = history
        self._open: dict[str, int] = {}  # events that are not over, with the number of steps that were given
        self._over: dict[str, float] = {}  # events that are over, with the time of their last step
        if mark:
            found = _MARK.fullmatch(mark)
            if found is None:
                raise ControlRefused.because(
                    Refusal.MALFORMED, "the mark is not of this stream", "control events", "leave it out"
                )
            self._sequence, self._since = int(found[1]), int(found[2]) / 1000
            return
        self._sequence = history.newest() if after is None else after
        self._since = time.time()
        # What is known at the beginning is not given, but what becomes of it is.
        for state in history.changed(self._sequence, self._since - MARGIN):
            if state.sequence <= self._sequence:
                self._note(state)

    def take(self) -> list[tuple[str, EventState]]:
        """What is new, in the order of the events, each with the mark behind it."""
        begin = self._since - MARGIN
        found = {one.event_id: one for one in self._history.changed(self._sequence, begin)}
        missing = [event_id for event_id in self._open if event_id not in found]
        if missing:
            found.update((one.event_id, one) for one in self._history.events(missing))
        self._over = {event_id: at for event_id, at in self._over.items() if at >= begin}
        new = sorted((one for one in found.values() if self._is_new(one)), key=lambda one: one.sequence)
        return [(self._given(one), one) for one in new]

    def _is_new(self, state: EventState) -> bool:
        return state.event_id not in self._over and self._open.get(state.event_id) != len(state.steps)

    def _given(self, state: EventState) -> str:
        self._note(state)
        self._sequence = max(self._sequence, state.sequence)
        self._since = max([self._since, *(step.at.timestamp() for step in state.steps)])
        return f"{self._sequence}-{int(self._since * 1000)}"

    def _note(self, state: EventState) -> None:
        if state.final:
            self._open.pop(state.event_id, None)
            self._over[state.event_id] = max(step.at.timestamp() for step in state.steps)
        else:
            self._open[state.event_id] = len(state.steps)


MANY = 256  # pieces beyond which they are put together: Arrow's functions cost something per piece


class KeptTable(Generic[R]):
    """All rows of a table, as Arrow. For one thread at a time."""

    def __init__(self, table: LedgerTable[R]) -> None:
        self._table = table
        self._empty = arrow_schema(table.row_type).empty_table()
        self._files: dict[str, pa.Table] = {}
        self._version: int | None = None
        self.rows: pa.Table = self._empty  # as last seen, in no order; a row may be there twice

    def poll(self) -> bool:
        """See the newest version, by one `stat` on a local path; returns whether rows may have come or gone."""
        self._table.refresh()
        if self._table.version == self._version:
            return False
        with self._table.opened() as handle:
            version = None if handle is None else handle.version()
            there = [] if handle is None else pa.table(handle.get_add_actions().select(["path"]))["path"].to_pylist()
        with guarded(self._table.errors, "reading the table"):
            self._take(there)
        self._version = version
        return True

    def _take(self, there: list[str]) -> None:
        new = [path for path in there if path not in self._files]
        if not new and len(there) == len(self._files):
            return
        location, schema = Location.of(self._table.uri, self._table.storage_options or {}), self._empty.schema
        fresh = {path: _read(location, path).select(schema.names).cast(schema) for path in new}
        if len(there) == len(self._files) + len(new):
            rows = pa.concat_tables([self.rows, *fresh.values()])
        else:
            kept = (self._files[path] if path in self._files else fresh[path] for path in there)
            rows = pa.concat_tables([self._empty, *kept])
        self._files = {path: self._files[path] if path in self._files else fresh[path] for path in there}
        self.rows = rows.combine_chunks() if rows.column(0).num_chunks > MANY else rows


def _read(table: Location, path: str) -> pa.Table:
    """A data file of a Delta table, by the path in its log."""
    with table.folder.open_input(unquote(path)) as file, pq.ParquetFile(file) as parquet:
        return parquet.read()
