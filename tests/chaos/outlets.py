"""What chaos needs to know about each sink: options, rows, named steps, what it may leave behind, and its server."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_ext.datafiles.writer import owner_of
from spark_ext.exchange.arrow.segments import incarnation_of
from spark_ext.exchange.kinds import parts
from spark_ext.failpoints import FailPoint
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.sinks.files_2pc.folder import Folder
from spark_ext.sinks.files_2pc.sink import committed_files
from spark_ext.sinks.postgres_2pc.prepare import Origin
from spark_ext.sinks.postgres_2pc.record import Identity
from spark_ext.sources.contract import Limit
from spark_ext.sources.exchange import ExchangeSource
from spark_ext.storage import Location, writer_of
from tests.chaos.scenario import Scenario, Server
from tests.chaos.sink_job import BAD_EVERY, SCHEMA, expected, expected_upserts
from tests.chaos.verify import Content, leftovers
from tests.servers import postgres, receiver
from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer
from tests.sinks.postgres_2pc.postgres_kit import LEFT
from tests.spec import traces

UID = "copied"


class Outlet(ABC):
    name: ClassVar[str]  # the sink's format name
    starts: ClassVar[tuple[str, ...]]  # fail points of the claim, passed in the driver's own process
    commits: ClassVar[tuple[str, ...]]  # the sink's own fail points of an epoch, passed in workers
    ends: ClassVar[tuple[str, ...]] = ()
    """The sink's own fail points of the final checkpoint, passed in the driver's own process."""
    server: Server | None = None

    @abstractmethod
    def options(self, out: Path) -> dict[str, str]:
        """Options of the sink in the round with this directory, which has its own target."""

    @abstractmethod
    def rows(self, out: Path) -> pa.Table:
        """The rows that a reader of the round's target sees."""

    @abstractmethod
    def left(self, out: Path) -> list[str]:
        """Descriptions of everything that is prepared or staged and will never be visible."""

    def disallowed(self, out: Path) -> list[str]:
        """What of the round's history the model of the commit protocol does not allow."""
        return []

    def expected(self) -> pa.Table:
        return expected()


def trace_of(out: Path) -> traces.Trace:
    return traces.of_job(out / "state", out / "table", query="copy", source="generated", sink=UID)


class DeltaOutlet(Outlet):
    name = "delta_2pc"
    starts = (FailPoint.DELTA_BEFORE_FENCE, FailPoint.DELTA_FENCED, FailPoint.DELTA_CLEANED)
    commits: ClassVar[tuple[str, ...]] = (FailPoint.DELTA_BEFORE_COMMIT, FailPoint.DELTA_COMMITTED)

    def options(self, out: Path) -> dict[str, str]:
        return {"path": str(out / "table")}

    def rows(self, out: Path) -> pa.Table:
        return DeltaTable(out / "table").to_pyarrow_table()

    def left(self, out: Path) -> list[str]:
        return leftovers("table", out / "table", UID)

    def disallowed(self, out: Path) -> list[str]:
        problem = traces.validate(trace_of(out))
        return [problem] if problem else []


MOST_FILES = 30  # live ones at the end of a round with compaction: without it there are over ninety, two per epoch


class OptimizedOutlet(DeltaOutlet):
    """With compaction behind the epochs, every second."""

    commits = (*DeltaOutlet.commits, FailPoint.DELTA_BEFORE_OPTIMIZE, FailPoint.DELTA_OPTIMIZED)

    def options(self, out: Path) -> dict[str, str]:
        return {**super().options(out), "optimize_interval": "1 s"}

    def left(self, out: Path) -> list[str]:
        found = DeltaTable(out / "table")
        count, epochs = len(found.file_uris()), found.transaction_version(f"fence:{UID}")
        many = [f"the table has {count} files, incarnation {epochs}"] if count > MOST_FILES else []
        return super().left(out) + many


class UpsertOutlet(OptimizedOutlet):
    """Rows replace those of their key, in whatever order they come; deleted ones are kept, marked."""

    mode: ClassVar[Mapping[str, str]] = {"deleted_if": "gone", "tombstones": "keep"}

    def options(self, out: Path) -> dict[str, str]:
        return {**super().options(out), **{"mode": "upsert", "key": "channel,id", "newest_by": "at", **self.mode}}

    def rows(self, out: Path) -> pa.Table:
        return super().rows(out).filter(pc.invert(pc.field("gone")))

    def expected(self) -> pa.Table:
        return expected_upserts(shuffled=True)

    def disallowed(self, out: Path) -> list[str]:
        # The model counts the rows that commits add, and a merge writes others again.
        return []


class DeleteOutlet(UpsertOutlet):
    """Rows that delete their key, which come in order."""

    mode: ClassVar[Mapping[str, str]] = {"deleted_if": "gone", "tombstones": "drop"}

    def rows(self, out: Path) -> pa.Table:
        return DeltaOutlet.rows(self, out)

    def expected(self) -> pa.Table:
        return expected_upserts(shuffled=False)


class HttpOutlet(Outlet):
    """A receiver that keeps no more keys than it must; one for all rounds, with a path for each."""

    name = "http_2pc"
    starts = (FailPoint.DELTA_BEFORE_FENCE, FailPoint.HTTP_FENCED)
    commits = (
        FailPoint.DELTA_BEFORE_COMMIT, FailPoint.HTTP_DECIDED, FailPoint.HTTP_BEFORE_REQUEST, FailPoint.HTTP_ANSWERED,
        FailPoint.HTTP_ACKNOWLEDGED, FailPoint.HTTP_BEFORE_SETTLE, FailPoint.HTTP_RECORDED, FailPoint.HTTP_SETTLED,
    )  # fmt: skip

    def __init__(self, there: receiver.Receiver) -> None:
        self.server = self._receiver = there

    def options(self, out: Path) -> dict[str, str]:
        return {"url": f"{self._receiver.url}/{out.name}", "outbox": str(out / "outbox"), "batch_rows": "40"}

    def rows(self, out: Path) -> pa.Table:
        return pa.Table.from_pylist(receiver.rows(self._receiver.folder, out.name), SCHEMA)

    def left(self, out: Path) -> list[str]:
        # An acknowledged epoch is removed from the outbox; a repeated task may leave a file of the last start.
        place = out / "outbox" / UID
        live = DeltaTable(place).file_uris()
        return [f"the outbox still holds {Path(uri).name}" for uri in live] + leftovers("outbox", place, UID)


class FilesOutlet(Outlet):
    name = "files_2pc"
    starts = (FailPoint.FILES_BEFORE_CLAIM, FailPoint.FILES_CLAIMED, FailPoint.FILES_CLEANED)
    commits = (FailPoint.FILES_BEFORE_COMMIT, FailPoint.FILES_COMMITTED, FailPoint.FILES_PUBLISHED)

    def options(self, out: Path) -> dict[str, str]:
        return {"path": str(out / "files"), "format": "parquet"}

    def rows(self, out: Path) -> pa.Table:
        return pa.concat_tables([pq.read_table(file) for file in committed_files(out / "files")])

    def left(self, out: Path) -> list[str]:
        folder, newest = Folder(Location.of(str(out / "files"), {}), "chaos"), newest_incarnation(out)
        committed = {file["path"] for file in folder.committed()}
        others = ((file, owner_of(file)) for file in folder.files.folder.files() if file not in committed)
        return [f"{file} was left" for file, owner in others if owner is None or owner[1] < newest]


class ExchangeOutlet(Outlet):
    """An exchange that no query reads, so that it holds every row when the job has ended."""

    name = "exchange_2pc"
    starts = (FailPoint.EXCHANGE_BEFORE_CLAIM, FailPoint.EXCHANGE_CLAIMED, FailPoint.EXCHANGE_CLEANED)
    commits = (FailPoint.EXCHANGE_BEFORE_ENTRY, FailPoint.EXCHANGE_ENTRY)
    ends = (FailPoint.EXCHANGE_BEFORE_SEAL, FailPoint.EXCHANGE_SEALED)

    def options(self, out: Path) -> dict[str, str]:
        return {"key": "tag"}

    def rows(self, out: Path) -> pa.Table:
        source = ExchangeSource({"uid": "chaos", "path": str(_exchange(out))})
        channels = list(source.discover())
        step = source.advance_together({channel.id: channel.begin for channel in channels}, Limit(), None)
        assert step is not None and step.finished, "the exchange is not sealed"
        batches = [
            batch for channel in channels for batch in source.read(channel, channel.begin, step.ends[channel.id])
        ]
        return pa.Table.from_batches(batches)

    def left(self, out: Path) -> list[str]:
        folder, newest = _exchange(out), newest_incarnation(out)
        log = parts("arrow", str(folder), "chaos").master.log
        entries = [entry for number in range(log.look().last + 1) if (entry := log.entry(number)) is not None]
        named = {segment.name for entry in entries for segment in entry.segments}
        unnamed = [path.name for path in (folder / "data").iterdir() if path.name not in named]
        found = [f"no entry names {name}" for name in unnamed if (incarnation_of(name) or 0) < newest]
        drafts = [path.name for path in folder.rglob("*") if path.is_file() and writer_of(path.name) is not None]
        return found + [f"the draft {name} was left" for name in drafts]


class PostgresOutlet(Outlet):
    """A table for each round; small tasks send their rows inline, or no task does."""

    name = "postgres_2pc"
    starts = (FailPoint.POSTGRES_FENCED, FailPoint.POSTGRES_CLEANED)
    commits: ClassVar[tuple[str, ...]] = (
        FailPoint.POSTGRES_STAGED, FailPoint.POSTGRES_BEFORE_COMMIT, FailPoint.POSTGRES_RECORDED,
        FailPoint.POSTGRES_COMMITTED,
    )  # fmt: skip

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.database = server.database()

    def options(self, out: Path) -> dict[str, str]:
        return {**self.database.options, "table": _plain(out.name), "inline_size": "0"}

    def rows(self, out: Path) -> pa.Table:
        return pa.Table.from_pylist(self.database.table(_plain(out.name)), SCHEMA)

    def left(self, out: Path) -> list[str]:
        newest = newest_incarnation(out)
        # Other rounds have their own tables in this database.
        mark = Identity(UID, f"public.{_plain(out.name)}").mark
        names = [name for name in self.database.column(LEFT) if mark in name]
        return [f"{name} was left" for name in names if (origin := Origin.of(name)) and origin.incarnation < newest]


class PreparedOutlet(PostgresOutlet):
    commits = (FailPoint.POSTGRES_PREPARED, *PostgresOutlet.commits[1:], FailPoint.POSTGRES_PART_COMMITTED)

    def options(self, out: Path) -> dict[str, str]:
        return {**super().options(out), "prepared": "true"}


class KafkaOutlet(Outlet):
    name = "kafka_2pc"
    starts = (FailPoint.KAFKA_BEFORE_FENCE, FailPoint.KAFKA_FENCED, FailPoint.KAFKA_CLEANED)
    commits = (FailPoint.KAFKA_BEFORE_COMMIT, FailPoint.KAFKA_COMMITTED)

    def __init__(self, broker: Broker) -> None:
        self.server = self.broker = broker
        self.topics: dict[str, str] = {}

    def options(self, out: Path) -> dict[str, str]:
        if out.name not in self.topics:
            self.topics[out.name] = self.broker.topic(out.name, partitions=2)
        return {
            "bootstrap_servers": self.broker.bootstrap, "topic": self.topics[out.name], "staging": str(out / "staging"),
        }  # fmt: skip

    def rows(self, out: Path) -> pa.Table:
        found = [json.loads(message.value() or b"") for message in self.broker.messages(self.topics[out.name])]
        return pa.Table.from_pylist(found, SCHEMA)

    def left(self, out: Path) -> list[str]:
        newest = newest_incarnation(out)
        files = (path.name for path in (out / "staging").rglob("*.arrow"))
        return [f"{name} was left" for name in files if int(name[1:].partition("-")[0]) < newest]


ASIDE: Mapping[str, str] = {"on_bad_row": "quarantine"}
# Fail points of a commit with bad rows, and of the driver when it moves them into their table.
KEPT = (FailPoint.BAD_ROWS_BEFORE_KEPT, FailPoint.BAD_ROWS_KEPT, FailPoint.BAD_ROWS_DECIDED)
MOVED = (FailPoint.BAD_ROWS_BEFORE_COMMIT, FailPoint.BAD_ROWS_COMMITTED, FailPoint.BAD_ROWS_DELETED)


def with_bad_rows(good: pa.Table, out: Path) -> pa.Table:
    """The rows of the target and those of the table of bad rows, which must not be mixed up."""
    table = pa.table(DeltaTable(str(out / "state" / "bad_rows" / "table")).scan())
    bad = pa.Table.from_pylist([json.loads(raw) for raw in table["raw"].to_pylist()], SCHEMA)
    assert all(number % BAD_EVERY == 0 for number in bad["id"].to_pylist())
    assert all(number % BAD_EVERY for number in good["id"].to_pylist())
    return pa.concat_tables([good.select(SCHEMA.names).cast(SCHEMA), bad])


def waiting(out: Path) -> list[str]:
    """Bad rows that are not in their table when the job has ended."""
    return [f"bad rows wait in {path}" for path in (out / "state" / "bad_rows" / "sinks").rglob("*.parquet")]


class DeltaBadRowsOutlet(DeltaOutlet):
    """A column of the table is NOT NULL: tasks find the rows that do not fit."""

    commits = (*KEPT, *DeltaOutlet.commits)
    ends = MOVED

    def options(self, out: Path) -> dict[str, str]:
        if not DeltaTable.is_deltatable(str(out / "table")):
            DeltaTable.create(str(out / "table"), pa.schema([*SCHEMA, pa.field("ok", pa.int32(), nullable=False)]))
        return {**super().options(out), **ASIDE}

    def rows(self, out: Path) -> pa.Table:
        return with_bad_rows(super().rows(out), out)

    def left(self, out: Path) -> list[str]:
        return super().left(out) + waiting(out)

    def disallowed(self, out: Path) -> list[str]:
        """In the model an epoch writes all rows that it has read: here those of both tables together."""
        trace = trace_of(out)
        bad = Counter(pa.table(DeltaTable(str(out / "state" / "bad_rows" / "table")).scan())["epoch"].to_pylist())
        both = tuple(replace(it, rows=it.rows + bad[it.epoch - 1]) if it.kind == "epoch" else it for it in trace.target)
        problem = traces.validate(replace(trace, target=both))
        return [problem] if problem else []


class PostgresBadRowsOutlet(PostgresOutlet):
    """A constraint of the table refuses the rows: the commit finds them."""

    commits = (*KEPT, *PostgresOutlet.commits)
    ends = MOVED

    def options(self, out: Path) -> dict[str, str]:
        columns = "id bigint, channel integer, value float8, tag text, ok integer NOT NULL"
        self.database.run(f"CREATE TABLE IF NOT EXISTS {_plain(out.name)} ({columns})")
        return {**super().options(out), **ASIDE}

    def rows(self, out: Path) -> pa.Table:
        return with_bad_rows(super().rows(out), out)

    def left(self, out: Path) -> list[str]:
        return super().left(out) + waiting(out)


def newest_incarnation(out: Path) -> int:
    """The newest incarnation that has committed an epoch: it claimed the target, and removed what older ones left."""
    return max(row.incarnation for row in Ledger(str(out / "state")).table(EpochRow).rows())


def _exchange(out: Path) -> Path:
    return out / "state" / "exchanges" / UID


def _plain(name: str) -> str:
    return name.replace("-", "_")


@contextmanager
def _http(folder: Path) -> Iterator[Outlet]:
    with receiver.Receiver(folder / "receiver", memory="newest") as there:
        yield HttpOutlet(there)


@contextmanager
def _postgres(folder: Path, kind: type[PostgresOutlet] = PostgresOutlet) -> Iterator[Outlet]:
    with postgres.running() as server:
        yield kind(server)


@contextmanager
def _kafka(folder: Path) -> Iterator[Outlet]:
    with Broker(folder / "broker") as broker:
        yield KafkaOutlet(broker)


# For each sink, a function that opens its outlet and server in a directory.
OUTLETS: Mapping[str, Callable[[Path], AbstractContextManager[Outlet]]] = {
    "delta_2pc": lambda _: nullcontext(DeltaOutlet()), "delta_2pc-optimize": lambda _: nullcontext(OptimizedOutlet()),
    "delta_2pc-upsert": lambda _: nullcontext(UpsertOutlet()),
    "delta_2pc-delete": lambda _: nullcontext(DeleteOutlet()), "files_2pc": lambda _: nullcontext(FilesOutlet()),
    "http_2pc": _http, "exchange_2pc": lambda _: nullcontext(ExchangeOutlet()), "postgres_2pc": _postgres,
    "postgres_2pc-prepared": partial(_postgres, kind=PreparedOutlet), "kafka_2pc": _kafka,
    "delta_2pc-bad-rows": lambda _: nullcontext(DeltaBadRowsOutlet()),
    "postgres_2pc-bad-rows": partial(_postgres, kind=PostgresBadRowsOutlet),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SinkScenario(Scenario):
    outlet: Outlet

    @classmethod
    def of(cls, outlet: Outlet) -> "SinkScenario":
        return cls("tests.chaos.sink_job", {"copy": UID}, ("copy",), server=outlet.server, outlet=outlet)

    def command(self, out: Path) -> list[str]:
        return [*super().command(out), "--sink", self.outlet.name, "--options", json.dumps(self.outlet.options(out))]

    def content(self, out: Path) -> dict[str, Content]:
        return {"copy": Content(self.outlet.rows(out).select(SCHEMA.names).cast(SCHEMA))}

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        return self.outlet.left(out)

    def disallowed(self, out: Path) -> list[str]:
        return self.outlet.disallowed(out)
