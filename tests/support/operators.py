"""Operators for tests: a source and a sink that append to an event log of JSON lines, which the validators read."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext.errors import FencedError, StorageError
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Committed, Limit, SourceOptions


def record(log: str, event: str, **fields: Any) -> None:
    """Append one event: a single write, which other processes that append do not divide."""
    if log:
        line = json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **fields}) + "\n"
        with Path(log).open("ab", buffering=0) as out:
            out.write(line.encode())


def events(log: str | Path, *names: str) -> list[dict[str, Any]]:
    """The events of a log, in order; only those with the given names, if any are given.

    What comes after the last line feed is being written at this moment.
    """
    path = Path(log)
    whole = path.read_text().rpartition("\n")[0] if path.is_file() else ""
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if not names or line["event"] in names]


class NumbersOptions(SourceOptions):
    """Channels from `0` on, each with a number of rows; `n` counts within the channel."""

    counts: str = "100"  # rows per channel, comma-separated
    log: str = ""
    live: bool = False
    """If set, the source is unbounded: channels never end, begin with a row, and grow by `rate` rows per second."""
    rate: int = 100
    gate: str = ""  # while this file does not exist, only the first epoch is planned
    gate_at: str = ""
    """Instead: rows per channel, comma-separated, up to which epochs are planned while the gate does not exist."""
    fail_at: int = -1  # reading this row of channel 0 raises an error
    finalize_after: int = 0
    step_ms: int = 1000  # difference of event time between rows, ms


class Numbers(ChannelSource):
    """Deterministic rows (channel, n, ts): a row is a function of its channel and number."""

    options_type = NumbersOptions
    options: NumbersOptions

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "channel string, n bigint, ts timestamp"

    @property
    def bounded(self) -> bool:
        return not self.options.live

    def discover(self) -> Iterator[Channel]:
        record(self.options.log, "discover", uid=self.options.uid)
        # A live channel has its first row at once: a query that is seen to wait for data counts as RUNNING.
        data = {"since": time.time() - 1 / self.options.rate} if self.options.live else None
        for index, _ in enumerate(self.options.counts.split(",")):
            yield Channel(str(index), 0, data)

    def advance(self, channel: Channel, start: Any, limit: Limit) -> Advance:
        upto = None
        if self.options.gate and not Path(self.options.gate).exists():
            if not self.options.gate_at and start > 0:
                return Advance(start)
            upto = int(self.options.gate_at.split(",")[int(channel.id)]) if self.options.gate_at else None
        if self.options.live:
            there = int((time.time() - channel.data["since"]) * self.options.rate)
            end = max(start, there if limit.rows is None else min(there, start + limit.rows))
            return Advance(end, rows=end - start)
        count = int(self.options.counts.split(",")[int(channel.id)])
        last = count if upto is None else min(count, upto)
        end = last if limit.rows is None else min(last, start + limit.rows)
        return Advance(end, finished=end == count, rows=end - start)

    def read(self, channel: Channel, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        if channel.id == "0" and start <= self.options.fail_at < end:
            raise ValueError(f"row {self.options.fail_at} cannot be read")
        record(self.options.log, "read", uid=self.options.uid, channel=channel.id, start=start, end=end)
        numbers = range(start, end)
        yield pa.RecordBatch.from_pydict(
            {
                "channel": pa.array([channel.id] * len(numbers)),
                "n": pa.array(numbers, pa.int64()),
                "ts": pa.array([n * self.options.step_ms * 1000 for n in numbers], pa.timestamp("us", "UTC")),
            }
        )

    def on_epoch_committed(self, epoch: Committed) -> None:
        record(
            self.options.log, "committed", uid=self.options.uid, positions=dict(epoch.positions),
            finished=list(epoch.finished), final=epoch.final,
        )  # fmt: skip

    def open(self) -> None:
        record(self.options.log, "open", uid=self.options.uid)

    def end_of_input(self) -> None:
        record(self.options.log, "end_of_input", uid=self.options.uid)

    def close(self) -> None:
        record(self.options.log, "close", uid=self.options.uid)


class GrowingOptions(NumbersOptions):
    path: str = ""  # the file


class Growing(Numbers):
    """One channel without an end, with as many rows as a file says."""

    options_type = GrowingOptions
    options: GrowingOptions

    @classmethod
    def name(cls) -> str:
        return "growing"

    @property
    def bounded(self) -> bool:
        return False

    def latest(self, channel: Channel) -> Any:
        return int(Path(self.options.path).read_text())

    def lag(self, channel: Channel, at: Any) -> int | None:
        return int(self.latest(channel) - at)

    def advance(self, channel: Channel, start: Any, limit: Limit) -> Advance:
        ends = [self.latest(channel), limit.upto, None if limit.rows is None else start + limit.rows]
        end = max(start, min(end for end in ends if end is not None))
        return Advance(end, rows=end - start)


class DirtyOptions(NumbersOptions):
    bad_every: int = 10  # the first of each this many rows of a channel is bad


class Dirty(Numbers):
    """The rows of `numbers`, some of them bad. A start with another number of readers cuts ranges otherwise."""

    options_type = DirtyOptions
    options: DirtyOptions

    @classmethod
    def name(cls) -> str:
        return "dirty"

    def split(self, channel: Channel, start: Any, end: Any, parts: int) -> Sequence[tuple[Any, Any]]:
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
        return [(low, high) for low, high in pairwise(cuts) if low < high]

    def read(self, channel: Channel, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        for n in range(start, end):
            if n % self.options.bad_every == 0:
                self.bad_row(BadRow({"n": n}, f"{n} is a multiple of {self.options.bad_every}", f"row {n}"))
        for batch in super().read(channel, start, end):
            yield batch.filter(pa.array([n % self.options.bad_every != 0 for n in batch.column("n").to_pylist()]))


class FolderOptions(SinkOptions):
    path: str
    log: str = ""
    fail_commits: int = 0  # number of first commit attempts that raise, after they took effect
    fail_claims: int = 0  # number of first claims that raise, before they take effect
    finalize_after: int = 0  # final epochs that the sink needs before it is finalized
    lost_epoch: int = -1  # the commit of this epoch raises after it took effect, and is not retried


class Folder(TwoPhaseCommitSink):
    """Writes each epoch as one file, by an atomic rename to a name that is the epoch's identity."""

    options_type = FolderOptions
    options: FolderOptions

    @classmethod
    def name(cls) -> str:
        return "folder"

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        rows = [row for batch in batches for row in batch.to_pylist()]
        return json.dumps(rows, default=str) if rows else None

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        folder = Path(self.options.path)
        folder.mkdir(parents=True, exist_ok=True)
        fence = folder / "fence"
        if epoch.incarnation and fence.exists() and int(fence.read_text()) > epoch.incarnation:
            raise FencedError("a newer incarnation has the folder", operator=f"sink '{epoch.sink}'")
        target = folder / f"{epoch.sink}-{epoch.lineage}-{epoch.query_id}-{epoch.number:06d}.json"
        record(
            self.options.log, "commit", uid=epoch.sink, epoch=epoch.number, final=epoch.final,
            incarnation=epoch.incarnation, lineage=epoch.lineage, query_id=epoch.query_id, repeat=target.exists(),
        )  # fmt: skip
        if target.exists():
            return CommitOutcome.ALREADY_COMMITTED
        rows = [row for part in prepared for row in json.loads(part)]
        draft = folder / f".{target.name}.{os.getpid()}"
        draft.write_text(json.dumps({"final": epoch.final, "rows": rows}))
        draft.rename(target)
        if epoch.number == self.options.lost_epoch:
            raise ValueError("the driver is lost between the sink's commit and Spark's")
        done = folder / "attempts"
        attempts = int(done.read_text()) if done.exists() else 0
        if attempts < self.options.fail_commits:
            done.write_text(str(attempts + 1))
            raise OSError("the commit took effect, and then the connection was lost")
        return CommitOutcome.COMMITTED

    def claim(self, claim: Claim) -> None:
        folder = Path(self.options.path)
        folder.mkdir(parents=True, exist_ok=True)
        if len(events(self.options.log, "claim_failed")) < self.options.fail_claims:
            record(self.options.log, "claim_failed", uid=claim.sink, incarnation=claim.incarnation)
            raise StorageError("the folder is missing", operator=f"sink '{claim.sink}'", kept="all", do="restore it")
        (folder / "fence").write_text(str(claim.incarnation))
        record(self.options.log, "claim", uid=claim.sink, incarnation=claim.incarnation)

    def open(self) -> None:
        record(self.options.log, "open", uid=self.options.uid)

    def end_of_input(self) -> None:
        record(self.options.log, "end_of_input", uid=self.options.uid)

    def on_final_checkpoint(self, epoch: Epoch) -> None:
        record(self.options.log, "final_checkpoint", uid=self.options.uid, epoch=epoch.number)

    def close(self) -> None:
        record(self.options.log, "close", uid=self.options.uid)


class PatientFolder(Folder):
    """A folder that needs some epochs after the last row before it is finalized."""

    requires_finalization = True

    @classmethod
    def name(cls) -> str:
        return "patient_folder"

    def is_finalized(self, epoch: Epoch) -> bool:
        finals = sum(
            json.loads(path.read_text())["final"] for path in Path(self.options.path).glob(f"{epoch.sink}-*.json")
        )
        return finals >= self.options.finalize_after


def rows(folder: str | Path) -> list[dict[str, Any]]:
    """All rows that the folder sink has made visible, in the order of their epochs."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path(folder).glob("*.json")):
        found.extend(json.loads(path.read_text())["rows"])
    return found
