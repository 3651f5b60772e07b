"""The source `control`: the control events of its own job as rows.

    spark.readStream.format("control").option("uid", "events").option("kinds", "broadcast").load()

| column | type | meaning |
|---|---|---|
| sequence | bigint | place in the one order of the job's events, from 1; there are gaps |
| event_id | string | identifies the event |
| kind | string | `set_config`, `broadcast`, ... |
| target | string | `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL` or `sink:UID` |
| value | string | JSON; null if the kind has none |
| delivery | string | `immediate` or `aligned` |
| requested_by | string | who asked, as the ledger has it |
| origin | string | from where: `rest ADDRESS`, `cli`, `python`, `emit` |
| at | timestamp | when it was accepted |

There is one channel. The planner writes the rows of an epoch to a file beside the query's checkpoint, and the position
names it: a replay reads the same rows, however long the ledger keeps events. Secrets that the planner knows are masked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pydantic import field_validator

from spark_ext.control import current, stamps
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.masking import mask
from spark_ext.model.control import Target
from spark_ext.model.control_kinds import kinds
from spark_ext.model.offsets import Json, Position
from spark_ext.options import Names
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Committed, Limit, SourceOptions
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from spark_ext.ledger.schema import ControlEventRow
    from spark_ext.spark.session.registry import Registration

CHANNEL: Final = "events"
FOLDER: Final = "control_rows"  # folder of the files in the query's checkpoint directory
LOOK_EVERY: Final = 0.1  # minimum time between two looks at the ledger, s

SCHEMA: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("target", pa.string()),
        ("value", pa.string()),
        ("delivery", pa.string()),
        ("requested_by", pa.string()),
        ("origin", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


class ControlEventsOptions(SourceOptions):
    """Options of `control`."""

    identity_fields: ClassVar[frozenset[str]] = frozenset({"kinds"})
    kinds: Names = ()
    """Kinds of events, comma-separated; empty: all that may be requested."""

    @field_validator("kinds")
    @classmethod
    def _known(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        public = {name for name, kind in kinds().items() if kind.public}
        unknown = [name for name in given if name not in public]
        if unknown:
            raise ValueError(f"unknown kind of event {unknown[0]!r}; use {', '.join(sorted(public))}")
        return given


class ControlEvents(ChannelSource):
    """Control events, each once, in their order. Unbounded: it ends with a drain."""

    options_type = ControlEventsOptions
    options: ControlEventsOptions
    only_in_jobs = "its rows are those of the job that runs the query"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._ledger: EventRows | None = None
        self._safe: Position = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ledger": None}

    @classmethod
    def name(cls) -> str:
        """`control`."""
        return "control"

    @property
    def _who(self) -> str:
        return f"source '{self.options.uid}' (control)"

    def schema(self) -> str:
        """The columns."""
        return (
            "sequence bigint, event_id string, kind string, target string, value string, delivery string, "
            "requested_by string, origin string, at timestamp"
        )

    @property
    def bounded(self) -> bool:
        """Further events may come."""
        return False

    def discover(self) -> Iterable[Channel]:
        """The one channel."""
        self._rows()
        return [Channel(CHANNEL, {"sequence": 0})]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Up to the newest event, or as many as the limit allows; their rows are in a file by then."""
        upto = None if limit.upto is None else int(limit.upto["sequence"])
        found = self._rows().after(int(start["sequence"]), limit.rows, upto)
        if not found:
            return Advance(start, rows=0)
        text = "".join(f"{json.dumps(row)}\n" for row in found)
        last = found[-1]["sequence"]
        name = f"{last}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        stamps.put(self._registered().checkpoint, f"{FOLDER}/{name}.jsonl", text)
        return Advance({"sequence": last, "file": name}, rows=len(found), bytes=len(text))

    def latest(self, channel: Channel) -> Position:
        """The newest event."""
        return {"sequence": self._rows().newest()}

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """The sequence of the last event that is not read: a number from 0."""
        sequence = position.get("sequence") if isinstance(position, dict) else position
        if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 0:
            what = f"{position!r} is not a position of the control events"
            do = "give the sequence of an event, or 0"
            raise ConfigurationError(what, operator=self._who, kept="the source continues where it is", do=do)
        return {"sequence": sequence}

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of one epoch, from their file."""
        place = current.of_task()
        if place is None:
            raise self._outside()
        file = f"{FOLDER}/{end['file']}.jsonl" if "file" in end else None
        text = "" if file is None else SparkLog(place.checkpoint).read(file)
        if text is None:
            what = f"the file {file}, which holds the events of this epoch, is missing"
            do = "restore the checkpoint directory from a backup, as a whole"
            kept = "the offsets and the output are unchanged; nothing of this epoch was committed"
            raise StateError(what, operator=f"{self._who}, {place.operator}", kept=kept, do=do)
        rows = [json.loads(line) for line in text.splitlines()]
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        wanted = SCHEMA.names if self.declared is None else self.declared.names
        yield batch.select([name for name in wanted if name in SCHEMA.names])

    def on_epoch_committed(self, epoch: Committed) -> None:
        """Remove the files that no replay needs any more. In an object store they stay."""
        registration = registry.lookup(self.options.uid)
        folder = None if registration is None else local_path(registration.checkpoint)
        safe = epoch.positions.get(CHANNEL)
        if folder is None or safe is None or safe == self._safe:
            return
        for name in SparkLog(str(folder)).names(FOLDER):
            last = name.partition("-")[0]
            if last.isdigit() and int(last) <= safe["sequence"]:
                (folder / FOLDER / name).unlink(missing_ok=True)
        self._safe = safe

    def _registered(self) -> Registration:
        found = registry.lookup(self.options.uid)
        if found is None:
            raise self._outside()
        return found

    def _outside(self) -> StateError:
        what = "the source gives the control events of the job that runs its query, and the query runs outside of a job"
        do = "add the query to a job, and start it with job.run()"
        return StateError(what, operator=self._who, kept="nothing was read", do=do)

    def _rows(self) -> EventRows:
        if self._ledger is None:
            self._ledger = EventRows(self._registered().state, self.options.kinds)
        return self._ledger


class EventRows:
    """The ledger's accepted events as rows, read at most every 100 ms and only what is new. For one thread."""

    def __init__(self, state: str, wanted: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        # Not at the top: tasks import this module, and delta-rs must not be used before a process forks.
        from spark_ext.ledger import Ledger
        from spark_ext.ledger.schema import ControlEventRow

        self._table = Ledger(state).table(ControlEventRow)
        self._wanted = frozenset(wanted or (name for name, kind in kinds().items() if kind.public))
        self._clock = clock
        self._looked_at: float | None = None
        self._version: int | None = None
        self._begin = self._seen = 0
        self._rows: list[dict[str, Json]] = []

    def after(self, sequence: int, most: int | None = None, upto: int | None = None) -> list[dict[str, Json]]:
        """At most `most` rows behind an event, in their order; `upto` is the last sequence, None means all."""
        if sequence < self._begin:
            # The channel was sent back.
            self._rows, self._seen, self._looked_at, self._version = [], sequence, None, None
        self._begin = sequence
        self._refresh()
        self._rows = [row for row in self._rows if row["sequence"] > sequence]
        return [row for row in self._rows if upto is None or row["sequence"] <= upto][:most]

    def newest(self) -> int:
        """The sequence of the newest event of any kind, or 0."""
        self._refresh()
        return self._seen

    def _refresh(self) -> None:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        self._table.refresh()
        version = self._table.version
        if version == self._version:
            return
        self._seen = max(self._seen, self._begin)
        # A storage may have failed after a commit that was then repeated.
        later = {
            row.sequence: row for row in self._table.rows([("sequence", ">", self._seen), ("status", "=", "accepted")])
        }
        self._rows += [_row(later[sequence]) for sequence in sorted(later) if later[sequence].kind in self._wanted]
        self._seen = max(self._seen, *later) if later else self._seen
        self._version = version


def _row(event: ControlEventRow) -> dict[str, Json]:
    return {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "kind": event.kind,
        "target": str(Target.parse(event.target)),
        "value": None if event.value is None else mask(json.dumps(event.value)),
        "delivery": event.delivery or "immediate",
        "requested_by": mask(event.requested_by or ""),
        "origin": event.origin or "",
        "at": round(event.at.timestamp() * 1_000_000),
    }
