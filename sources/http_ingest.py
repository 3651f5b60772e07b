"""The source `http_ingest`: events that senders have pushed to the gateways of an inbox.

    orders = job.inbox("orders", schema="id long, amount double", scheme="stripe", secrets=("env:STRIPE_SECRET",))
    job.add("orders", orders.read("orders-in").writeStream.format("delta_2pc")...)

A channel is the log of a gateway, and its position is `[entry, row]`: an entry of the log, and how many of its rows
have been read. Which events are repeats is decided when an entry is planned for the first time, over all gateways, and
never again: whatever is restored or replayed, an entry has the same rows. A drain asks the gateways to seal their logs,
and the source ends once it has read all seals. See `docs/http_ingest.md`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from spark_ext.errors import RESET, OffsetError, StateError, refused
from spark_ext.ingest.log import Entry, InboxLog, LogState, advance, channels, pieces
from spark_ext.ingest.place import InboxPlace
from spark_ext.ingest.records import events_schema
from spark_ext.options import Milliseconds
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.columns import spark_schema
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.sources.registered import Formats, RegisteredOptions, Version, decoded
from spark_ext.spark.session import registry
from spark_ext.storage import local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_ext.ingest.decisions import Decisions, NewEntry
    from spark_ext.ingest.description import InboxDescription
    from spark_ext.model.offsets import Position

RAW: Final = (
    *("body", "content_type", "headers", "path", "query", "received_at", "event_id", "gateway", "sequence"),
)  # columns of rows as they were sent
METADATA: Final = "_metadata"
FIELDS: Final = ("gateway", "sequence", "received_at", "event_id", "content_type")  # of `_metadata`
MOST_KNOWN: Final = 1_000  # entries of a log that are kept
MOST_BYTES: Final = 64 << 20  # of segments that are in memory while it is decided which of their rows are repeats
TOLD_APART: Final = ("identity", "body_hash", "producer", "producer_sequence", "received_at", "old")
RAW_COLUMNS: Final = "raw"  # the option `columns` for rows as they were sent
OTHER_BODY: Final = "its identity is that of an earlier event with another body"
TOO_LATE: Final = "its producer's number is below too many gaps: it is not known any more whether it was read"
TIDY_S: Final = 60.0  # between two looks at what needs no decision any more, s
STORE_S: Final = 0.5  # between two looks at a log in an object store, s
LOOK_S: Final = 0.2  # between two looks whether a drain is complete, s


class HttpIngestOptions(SourceOptions, RegisteredOptions):
    """Options of `http_ingest`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"schema_registry_options"})
    identity_fields: ClassVar[frozenset[str]] = frozenset({"path", "schema_registry_url"})
    decoded: ClassVar[tuple[str, ...]] = ("body",)

    path: str = Field(min_length=1)
    """The inbox's folder: `inboxes/<name>` in the job's state directory."""
    columns: str = ""
    """Columns of typed rows, as Spark's JSON; `raw`: none. Default: those of the inbox. `Inbox.read` sets it."""
    metadata: bool = False
    """Whether typed rows have a column `_metadata`: gateway, sequence, received_at, event_id and content_type."""
    starting: Literal["first", "kept"] = "first"
    """Where a source that has read nothing begins: with the first event, and refused if some were released; or with the
    first that is still kept."""
    discovery_interval: Milliseconds = 1_000
    """How often new gateways are looked for, ms."""
    body_format: Literal["avro", "protobuf"] | None = None
    """How bodies are encoded, as in a schema registry, which then gives the columns; None: as the inbox declares."""
    body_subject: str | None = Field(default=None, min_length=1)
    """The subject of the schema by which bodies are read."""
    body_version: Version = "latest"
    """Its version; `latest`: the one that is the latest when the query is defined."""
    body_message: str | None = Field(default=None, min_length=1)
    """With `protobuf`: full name of the message; default: the first one of the schema."""

    @model_validator(mode="after")
    def _one_schema(self) -> HttpIngestOptions:
        if self.body_format is not None and self.columns not in ("", RAW_COLUMNS):
            raise ValueError("body_format gives the columns of the rows, and the inbox declares others with schema")
        return self

    def identity(self) -> dict[str, str]:
        """The inbox's name, as its folder moves with the job's state directory; and the schema of bodies."""
        place = {"path": self.path.rstrip("/").rpartition("/")[2]}
        return {**super().identity(), **self.schemas(f"source '{self.uid}' (http_ingest)"), **place}


@lru_cache(maxsize=8)
def opened(path: str, id: str, window: int, operator: str) -> Decisions:
    """The decisions of an inbox with an id: the tasks of a process read them once."""
    from spark_ext.ingest.decisions import Decisions

    return Decisions(InboxPlace(path, operator).decisions, window, operator)


def inbox_schema(columns: StructType | None, *, metadata: bool, operator: str) -> StructType:
    """The rows of an inbox whose events have these columns; None: as they were sent."""
    if columns is None:
        if metadata:
            raise refused("rows as they were sent have their metadata as columns", operator, "remove metadata=True")
        return _events(RAW)
    if not metadata:
        return columns
    from pyspark.sql.types import StructField, StructType

    if METADATA in columns.names:
        raise refused(f"metadata=True adds a column '{METADATA}', and the schema has one", operator, "rename it")
    return StructType([*columns.fields, StructField(METADATA, _events(FIELDS))])


def _events(names: Sequence[str]) -> StructType:
    """Columns of events, and of the gateway that has them, as Spark's."""
    import pyarrow as pa

    known = [*events_schema(), pa.field("gateway", pa.string())]
    by = {one.name: one.with_nullable(True) for one in known}
    return spark_schema(pa.schema([by[name] for name in names]))


class HttpIngestSource(ChannelSource):
    """Events of an inbox. Delivery: exactly once together with a sink that commits an epoch once; order per gateway.

    Not guaranteed: exactly once for events without an identity, which a sender may have sent again; an order between
    gateways. Without a job nothing is released.
    """

    options_type = HttpIngestOptions
    options: HttpIngestOptions
    only_in_jobs = "planning decides which events are repeats, and the decision is kept"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._formats = Formats(self.options, self._who)
        self._forget()

    def _forget(self) -> None:
        self._logs: dict[str, InboxLog] = {}
        self._entries: dict[str, dict[int, Entry]] = {}
        self._states: dict[str, LogState] = {}
        self._looked_at: dict[str, float] = {}
        self._covered: dict[str, int] = {}  # by gateway, the first entry whose repeats are not decided
        self._ids: dict[str, str] = {}  # by gateway that was discovered or has begun
        self._ended: frozenset[str] = frozenset()  # finished when this planner started
        self._fresh: bool | None = None  # whether no channel has ever been started; None: not known yet
        self._drain_at = self._tidied_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # A process that reads looks at the inbox itself.
        kept = ("given", "options", "declared", "_formats")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @classmethod
    def name(cls) -> str:
        """`http_ingest`."""
        return "http_ingest"

    @property
    def bounded(self) -> bool:
        """False: gateways may come at any time."""
        return False

    @property
    def _who(self) -> str:
        return f"source '{self.options.uid}' (http_ingest {self.options.path})"

    @cached_property
    def _place(self) -> InboxPlace:
        return InboxPlace(self.options.path, self._who)

    @cached_property
    def _local(self) -> bool:
        return local_path(self.options.path) is not None

    @cached_property
    def _about(self) -> InboxDescription:
        known = registry.lookup(self.options.uid)
        return self._place.description() if known is None else self._place.refuse_other(known.job_id)

    @cached_property
    def _columns(self) -> StructType | None:
        """The columns of an event's body; None: it is not parsed."""
        from pyspark.sql.types import StructType

        if (decoder := self._formats.decoder("body")) is not None:
            if not isinstance(decoder.kind, StructType):
                what = f"the schema of the subject '{self.options.body_subject}' is no record: it has no columns"
                raise refused(what, self._who, "name the subject of a record")
            return decoder.kind
        given = self.options.columns
        columns = self._about.columns if not given else None if given == RAW_COLUMNS else json.loads(given)
        return None if columns is None else StructType.fromJson(dict(columns))

    def schema(self) -> StructType:
        """The declared columns, or those of events as they were sent."""
        return inbox_schema(self._columns, metadata=self.options.metadata, operator=self._who)

    # -- planning -----------------------------------------------------------------------------------------------------

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Refuse an inbox of another job, and logs that are not those which were read."""
        assert self._about
        self._fresh, self._ended = not (known or finished), finished
        if self._fresh:
            self._formats.check_versions()
        there = channels(self._place.folder)
        for channel in known:
            if channel.id not in finished and there.get(channel.id) != channel.data:
                raise OffsetError(
                    f"the log of gateway '{channel.id}' is not the one that was read: "
                    + ("it was deleted" if channel.id not in there else "it was deleted, and made again"),
                    operator=self._who,
                    kept="nothing was read; what was committed is unchanged",
                    do="restore the inbox's folder from a backup, or restore the job in its own state directory; or "
                    f"discard the history with {RESET}",
                )
            self._ids[channel.id] = str(channel.data)

    def discover(self) -> Iterable[Channel]:
        """All gateways that have begun."""
        found = []
        for gateway, id in sorted(channels(self._place.folder).items()):
            if gateway in self._ended:
                continue
            first = [0, 0]
            # An AvailableNow run asks before it is known what has been read.
            if gateway not in self._ids and self._fresh is not None:
                self._ids[gateway] = id
                first = [self._log(gateway).kept(), 0]
                if first[0] and (not self._fresh or self.options.starting == "first"):
                    raise self._released_before(gateway, first[0])
            found.append(Channel(gateway, first, id))
        return found

    def _released_before(self, gateway: str, released: int) -> StateError:
        return StateError(
            f"the entries of gateway '{gateway}' below {released} have been released: all sources that were known to "
            "read the inbox had committed them, and this one has read nothing of the gateway",
            operator=self._who,
            kept="the inbox is unchanged; nothing was read",
            do="load it with starting=kept, to begin with what is still kept; what was released is in the tables that "
            "were written from it",
        )

    def _log(self, gateway: str) -> InboxLog:
        if gateway not in self._logs:
            self._logs[gateway] = self._place.log(gateway)
        return self._logs[gateway]

    def _look(self, gateway: str) -> LogState:
        """The log as it is now; in an object store, where each look is a request, as of half a second ago."""
        log, now = self._log(gateway), time.monotonic()
        if self._local or now >= self._looked_at.get(gateway, -STORE_S) + STORE_S:
            self._states[gateway], self._looked_at[gateway] = log.look(), now
            if self._about.persist == "checkpoint" and (answered := log.answered()) >= log.requested():
                # What waits in its memory belongs to the next epoch. An earlier driver's clock may have been ahead.
                log.request(max(time.time_ns() // 1_000_000, answered + 1))
        return self._states[gateway]

    def _entry(self, gateway: str, number: int) -> Entry | None:
        known = self._entries.setdefault(gateway, {})
        if number not in known:
            found = self._log(gateway).entry(number)
            if found is None:
                return None
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[number] = found
        return known[number]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Whole entries as long as they fit. What is planned has its repeats decided, durably."""
        gateway, state = channel.id, self._look(channel.id)
        if gateway not in self._covered:
            self._refuse_other_past(gateway, start)
            self._covered[gateway] = start[0]
        if limit.upto is not None:
            state = replace(state, last=min(state.last, limit.upto[0] - 1))
        step = advance(state, lambda number: self._entry(gateway, number), start, limit.rows, limit.bytes)
        if step.position[0] + bool(step.position[1]) > self._covered[gateway]:
            self._cover(gateway, step.position)
        return Advance(step.position, finished=step.sealed, rows=step.rows, bytes=step.bytes)

    def _refuse_other_past(self, gateway: str, start: Position) -> None:
        """Refuse a position that is older than what is kept, or newer than the inbox's folder."""
        kept = self._log(gateway).kept()
        last = start[0] - (not start[1])  # the newest entry with rows that were read
        if start[0] < kept:
            what = (
                f"entries {start[0]} to {kept - 1} of gateway '{gateway}' have been released, and this source has not "
                "read them: its checkpoint is an older one"
            )
        elif last >= kept and not self._was_read(gateway, last):
            what = (
                f"this source has read gateway '{gateway}' up to entry {last}, and the inbox's folder does not know "
                "that entry, or not that it was read: the folder is an older one"
            )
        else:
            return
        raise OffsetError(
            what,
            operator=self._who,
            kept="the inbox is unchanged; nothing was read",
            do="put back the newest checkpoint and folder, which belong together, or restore a savepoint",
        )

    def _was_read(self, gateway: str, number: int) -> bool:
        entry = self._entry(gateway, number)
        with suppress(KeyError):
            return entry is not None and (not entry.rows or bool(self._decisions.skips(gateway, number)))
        return False

    def lag(self, channel: Channel, at: Position) -> int | None:
        """Rows of the gateway's log behind a position."""
        state, entry = self._look(channel.id), self._entry(channel.id, at[0])
        if entry is None:
            return 0 if at[0] > state.last else None
        return state.total - entry.first - int(at[1])

    def latest(self, channel: Channel) -> Position:
        """The end of what the gateway's log has now."""
        return [self._look(channel.id).last + 1, 0]

    def drained(self, unread: Collection[str]) -> bool:
        """Once every gateway has sealed its log, and all have been read to the seal."""
        first, now = not self._drain_at, time.monotonic()
        if now < self._drain_at + LOOK_S:
            return False
        self._drain_at = now
        if first:
            known = registry.lookup(self.options.uid)
            self._place.drain(0 if known is None else known.incarnation)
            return False  # a gateway that had begun before it could notice is discovered from now on
        there = channels(self._place.folder).keys() - self._ended
        return not unread and there <= self._ids.keys()

    # -- repeats ------------------------------------------------------------------------------------------------------

    @property
    def _decisions(self) -> Decisions:
        about = self._about
        return opened(self._place.path, about.id, about.dedup_window, self._place.operator)

    def _cover(self, gateway: str, end: Position) -> None:
        """Decide which rows are repeats, up to a position of one gateway.

        A decision is a file, so what is there of all gateways is decided with it, as long as it fits.
        """
        from spark_ext.ingest.decisions import NewEntry

        needed = end[0] + bool(end[1])
        begins = {**self._covered, gateway: needed}
        ranges = [(gateway, range(self._covered[gateway], needed))]
        ranges += [(name, range(first, self._states[name].last + 1)) for name, first in begins.items()]
        fresh, size, upto = list["NewEntry"](), 0, dict[str, int]()
        for at, (name, number) in enumerate((name, number) for name, numbers in ranges for number in numbers):
            entry = self._entry(name, number)
            if entry is not None and entry.rows:
                if fresh and size + entry.bytes > MOST_BYTES:
                    self._decide(fresh, upto)
                    if at >= len(ranges[0][1]):
                        return
                    fresh, size = [], 0
                rows = self._log(name).read_segment(entry.name, 0, entry.rows)
                fresh.append(NewEntry(name, number, *(rows.column(column) for column in TOLD_APART)))
                size += entry.bytes
            upto[name] = number + 1
        self._decide(fresh, upto)
        if time.monotonic() > self._tidied_at + TIDY_S:
            self._tidied_at = time.monotonic()
            for name in self._covered:
                self._decisions.delete_below(name, self._log(name).kept())

    def _decide(self, fresh: Sequence[NewEntry], upto: Mapping[str, int]) -> None:
        self._decisions.cover(fresh)
        self._covered.update(upto)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range, without repeats."""
        gateway = channel.id
        while start < end:
            following = min(end, [start[0] + 1, 0])
            for name, skip, rows in pieces(lambda number: self._entry(gateway, number), start, following):
                batch = self._log(gateway).read_segment(name, skip, rows)
                found = self._rows(gateway, self._new_rows(gateway, start[0], skip, batch))
                if found.num_rows:
                    yield found
            start = following

    def _new_rows(self, gateway: str, number: int, skip: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of an entry, from one on, that are no repeats; those with another body are bad rows."""
        import numpy as np
        import pyarrow as pa

        skips = self._decisions.skips(gateway, number)
        kept = np.ones(batch.num_rows, bool)
        for row in (*skips.repeats, *skips.conflicts):
            if 0 <= row - skip < batch.num_rows:
                kept[row - skip] = False
        for row in skips.conflicts:
            if 0 <= row - skip < batch.num_rows:
                known = batch.column("identity")[row - skip].is_valid
                self._bad(gateway, batch, row - skip, OTHER_BODY if known else TOO_LATE)
        return batch if kept.all() else batch.filter(pa.array(kept))

    def _rows(self, gateway: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        def wanted(names: Sequence[str], rows: pa.RecordBatch) -> list[pa.Array]:
            constant = pa.array([gateway] * rows.num_rows, pa.string())
            columns = [constant if name == "gateway" else rows.column(name) for name in names]
            return [one.dictionary_decode() if isinstance(one, pa.DictionaryArray) else one for one in columns]

        if self._columns is None:
            return pa.RecordBatch.from_arrays(wanted(RAW, batch), names=[*RAW])
        kept = np.ones(batch.num_rows, bool)

        def bad(row: int, reason: str) -> None:
            kept[row] = False
            self._bad(gateway, batch, row, reason)

        found = self._parsed(batch, bad)
        if not self.options.metadata:
            return found
        rows = batch if kept.all() else batch.filter(pa.array(kept))
        about = pa.StructArray.from_arrays(wanted(FIELDS, rows), names=[*FIELDS])
        return pa.RecordBatch.from_arrays([*found.columns, about], names=[*found.schema.names, METADATA])

    def _parsed(self, batch: pa.RecordBatch, bad: Callable[[int, str], None]) -> pa.RecordBatch:
        """The columns of bodies, without those that do not fit."""
        import pyarrow as pa

        from spark_ext.ingest.forms import typed

        assert self._columns is not None
        if (decoder := self._formats.decoder("body")) is None:
            return typed(batch, self._columns, bad)
        found = decoded(batch, {"body": decoder}, ["body"], lambda row, _, reason: bad(row, reason))
        return pa.RecordBatch.from_arrays(found.column("body").flatten(), schema=arrow_schema(self._columns))

    def _bad(self, gateway: str, batch: pa.RecordBatch, row: int, reason: str) -> None:
        sequence, event, body = (batch.column(name)[row].as_py() for name in ("sequence", "event_id", "body"))
        self.bad_row(BadRow({"gateway": gateway, "sequence": sequence, "event_id": event}, reason, body))
