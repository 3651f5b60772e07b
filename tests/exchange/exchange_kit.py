"""Exchanges without Spark: written by the sink, read by the log and the reader."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from spark_ext.exchange.contract import Parts
from spark_ext.exchange.kinds import parts
from spark_ext.exchange.pinned import pin, put_back
from spark_ext.exchange.positions import pieces
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.exchange_2pc import ExchangeSink
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.exchange import ExchangeSource
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.source_contract import SourceWorld
from spark_ext.worker_internals import to_arrow_schema
from tests.support.folders import folder_snapshot


def visible(exchange: Parts) -> Iterator[pa.RecordBatch]:
    about, log = exchange.master.describe(), exchange.master.log
    assert about is not None
    state, found = log.look(), 0
    for partition in range(about.partitions):
        for piece in pieces(log.entry, partition, [state.released, 0], [state.last + 1, 0], "test"):
            for batch in exchange.reader.read(piece):
                found += batch.num_rows
                yield batch
    assert found == state.total - state.released_rows, "entries say how many rows there are"


class ExchangeTarget(SinkTarget):
    """The exchanges of a job: a sink writes the one of its own name."""

    before_commit = "exchange.before_entry"
    after_commit = "exchange.entry"
    points = ("exchange.before_claim", "exchange.claimed", "exchange.cleaned")

    def __init__(self, path: Path, **options: str) -> None:
        self.path, self.given = path, options
        self.kind = options.get("kind", "arrow")

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        given = {"uid": uid, "path": str(self.path / uid), "partitions": "3", **self.given, **options}
        return ExchangeSink(given)

    def _exchanges(self) -> list[Parts]:
        found = self.path.glob("*/exchange.json" if self.kind == "arrow" else "*/_delta_log")
        return [parts(self.kind, str(about.parent), "test") for about in found]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for exchange in self._exchanges():
            yield from visible(exchange)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches() for row in batch.to_pylist()]

    def ids(self) -> list[int]:
        return sorted(value for batch in self.batches() for value in batch.column("id").to_pylist())

    def leftovers(self) -> set[str]:
        found = {file.name for file in self.path.glob("*/data/i*")}
        for exchange in self._exchanges():
            log = exchange.master.log
            for number in range(log.look().last + 1):
                entry = log.entry(number)
                found -= {segment.name for segment in (entry.segments if entry is not None else ())}
        return found

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def snapshot(self) -> Callable[[], object]:
        return folder_snapshot(self.path)

    def make_anew(self) -> None:
        """Of the same name and job, as somebody makes it who has copied its description."""
        sink = self.sink()
        assert isinstance(sink, ExchangeSink)
        sink._parts.master.register(sink.descriptor(columns("id bigint, name string"), "job-1"))

    def damage(self) -> Callable[[], object]:
        """A file is in the place of the log, or a folder in that of its next file."""
        if self.kind == "delta":
            folder = self.path / "out" / "_delta_log"
            entry = folder / f"{len(list(folder.glob('*.json'))):020}.json"
            entry.mkdir()
            return entry.rmdir
        log, aside = self.path / "out" / "log", self.path / "out" / "log.aside"
        log.rename(aside)
        log.touch()

        def repair() -> None:
            log.unlink()
            aside.rename(log)

        return repair


class Producer:
    """A query that writes an exchange, one start after the other."""

    def __init__(
        self, path: Path, schema: str = "id bigint, word string", partitions: int = 3, kind: str = "arrow"
    ) -> None:
        self.partitions = partitions
        self.schema = columns(f"{schema}, p int")
        of_partitions = {"partitions": str(partitions), "partition_column": "p"}
        self.options = {"uid": "out", "path": str(path), "kind": kind, **of_partitions}
        self.lineage, self.incarnation, self.epoch = 1, 0, -1

    @property
    def sink(self) -> ExchangeSink:
        return ExchangeSink(self.options)

    @property
    def parts(self) -> Parts:
        return self.sink._parts

    def start(self, *, anew: bool = False) -> None:
        """The next start of the job; `anew`: after a reset."""
        self.incarnation += 1
        if anew:
            self.lineage, self.epoch = self.lineage + 1, -1
        sink = self.sink
        sink.validate(self.schema)
        sink.claim(Claim("out", "job", "id", self.incarnation, self.lineage, start=self.incarnation + 100))

    def prepare(self, rows: Sequence[dict[str, Any]], epoch: int, partition: int = 0) -> Any:
        task = Task("out", "q", epoch, partition, 0, self.incarnation, self.lineage, self._start)
        table = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(self.schema))
        return self.sink.write(self.schema, iter(table.to_batches(10)), task)

    def write(self, *tasks: Iterable[dict[str, Any]], barrier: int | None = None, watermark: int = 0) -> None:
        self.epoch += 1
        prepared = [self.prepare(list(rows), self.epoch, number) for number, rows in enumerate(tasks)]
        given = replace(self.identity(self.epoch, barrier), watermark=watermark)
        self.sink.commit(self.schema, given, [one for one in prepared if one is not None])

    def seal(self) -> None:
        self.sink.on_final_checkpoint(self.identity(self.epoch))

    def identity(self, epoch: int, barrier: int | None = None) -> Epoch:
        return Epoch("out", self.lineage, "q", epoch, self.incarnation, start=self._start, barrier=barrier)

    @property
    def _start(self) -> int:
        return self.incarnation and self.incarnation + 100


def rows(start: int, end: int, partition: int | None = None) -> list[dict[str, Any]]:
    """Rows with the ids [start, end), in one partition or in turn."""
    return [
        {"id": number, "word": f"w{number}", "p": number % 3 if partition is None else partition}
        for number in range(start, end)
    ]


class ExchangeWorld(SourceWorld):
    """An exchange that is sealed, with a barrier, epochs without rows, and partitions without."""

    def __init__(self, path: Path, *, job: bool = True, kind: str = "arrow") -> None:
        self.path, self.kind = path, kind
        producer = Producer(path, kind=kind)
        if job:
            producer.start()
            producer.write(rows(900, 930))
            producer.write(rows(930, 940), rows(940, 955))
            producer.start(anew=True)
        producer.write(rows(0, 11), rows(11, 15, 0))
        producer.write()
        producer.write(rows(15, 20, 1))
        if job:
            producer.start()
        producer.write(rows(20, 31), barrier=1)
        producer.write(rows(31, 33, 2), rows(33, 37), rows(37, 38))
        producer.seal()

    def source(self, **options: str) -> ChannelSource:
        return ExchangeSource({"uid": "in", "path": str(self.path), "kind": self.kind, **options})

    def expected(self) -> list[dict[str, Any]]:
        return [{"id": row["id"], "word": row["word"]} for row in rows(0, 38)]

    def misfits(self) -> list[T.StructType]:
        return [columns("id bigint, word bigint"), columns("id bigint, nowhere string")]


class PutBackWorld(ExchangeWorld):
    """The same rows, all in flight in a savepoint, from which the exchange was created again in its place."""

    def __init__(self, path: Path, *, kind: str = "arrow") -> None:
        super().__init__(path, kind=kind)
        master = parts(kind, str(path), "test").master
        last = master.log.look().last
        pin(master, str(path), 0, last + 1, f"{path}-pinned")
        put_back(f"{path}-pinned", f"{path}-new", number=last + 5, lineage=9, job_id="id", who="test")
        path.rename(f"{path}-old")
        Path(f"{path}-new").rename(path)
