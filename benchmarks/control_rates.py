"""How exactly `rate_limit` holds: 100, 10,000 and 1,000,000 rows per second of a source, and 10,000 of one channel.

One job per source, into a sink that does nothing, with more rows to read than it may. Each limit is measured over 30
s from the first epoch under it. Last comes the change from 1,000,000 to 1,000: from which epoch on it holds, and how
many rows are read until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._control import JOB, Epoch, epochs, rate, recorded
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import checkpoint_of, session, workplace
from spark_ext.jobs.job import Job
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.steering.sent import SentEvent

ROUNDS = 1
SECONDS = 30.0
LIMITS = (100, 10_000, 1_000_000)
OF_CHANNEL = 10_000  # rows per second of one channel while the other one is paused
CUT = 1_000  # rows per second after the highest limit
CUT_S = 10.0
AT_MOST = 1_500_000  # rows per epoch, whatever the limit
FIRST = 100  # the same, before the first limit
OFF = 0.05  # by how much a rate may be off
CHANNELS: Final = 2  # of each input
_PART = 1_000_000


@contextmanager
def datagen(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    yield {"rows": str(rows), "channels": str(CHANNELS)}


@contextmanager
def files(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    data = folder / "data"
    data.mkdir()
    schema = pa.schema([("id", pa.int64())])
    each = rows // CHANNELS
    for number in range(CHANNELS):
        with pq.ParquetWriter(data / f"part-{number}.parquet", schema) as writer:
            for begin in range(number * each, (number + 1) * each, _PART):
                ids = np.arange(begin, min(begin + _PART, (number + 1) * each), dtype=np.int64)
                writer.write_table(pa.table({"id": ids}, schema))
    yield {"path": str(data)}


@contextmanager
def postgres(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    from tests.servers.postgres import running

    with running() as server:
        database = server.database()
        database.run(
            f"CREATE TABLE numbers AS SELECT id FROM generate_series(1, {rows}::bigint) AS id",
            "ALTER TABLE numbers ADD PRIMARY KEY (id)",
            "VACUUM ANALYZE numbers",
        )
        yield {**database.options, "table": "numbers", "rows_per_channel": str(rows // CHANNELS)}


@contextmanager
def kafka(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    from confluent_kafka import Producer

    from tests.servers.kafka import Broker

    with Broker(folder) as broker:
        topic = broker.topic("rows", CHANNELS)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap, "linger.ms": 20, "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000, "log_level": 0,
            }
        )  # fmt: skip
        for number in range(rows):
            while True:
                try:
                    producer.produce(topic, b"x", partition=number % CHANNELS)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.05)
        assert producer.flush(60) == 0
        yield {"bootstrap_servers": broker.bootstrap, "topics": topic}


INPUTS: Final[Mapping[str, Callable[[Path, int], AbstractContextManager[dict[str, str]]]]] = {
    "datagen": datagen, "files": files, "postgres": postgres, "kafka_range": kafka,
}  # fmt: skip
"""By source: makes that many rows in a folder, and provides the source's options."""

SOURCES = tuple(INPUTS)


def run(rounds: int = ROUNDS) -> Figures:
    with session("control_rates") as spark:
        return [
            figure
            for source in SOURCES
            for figure in _figures(source, [_measured(spark, source) for _ in range(rounds)])
        ]


def _measured(spark: SparkSession, source: str) -> dict[str, float]:
    rows = int(max(LIMITS) * (SECONDS + 5)) + 4 * AT_MOST
    with workplace() as folder, INPUTS[source](folder, rows) as options:

        def started(at_most: int) -> Job:
            reader = spark.readStream.format(source).options(uid="in", readers=2, max_rows_per_epoch=at_most, **options)
            if source == "datagen":
                reader = reader.schema("id bigint")
            writer = reader.load().writeStream.format("nothing")
            return sx.Job(spark, JOB, state=folder / "state").add("q", writer).start()

        # A job takes events once it was started. This start reads little until the first limit is there.
        first = started(FIRST)
        first.control.rate_limit("source:in", LIMITS[0], wait=60)
        first.stop(60)
        job = started(AT_MOST)
        found = _Limits(job, folder / "state")
        out = {f"{limit:,} rows/s": found.held(SECONDS, limit) for limit in LIMITS[:-1]}
        one, other = found.channels()
        # There is always a limit, and that of a measurement is new: nothing has accrued under it.
        job.control.pause(f"source:in/{other}", wait=60)
        job.control.rate_limit(f"source:in/{one}", OF_CHANNEL, wait=60)
        job.control.rate_limit("source:in", wait=60)
        out[f"{OF_CHANNEL:,} rows/s of a channel"] = found.held(SECONDS)
        job.control.rate_limit("source:in", OF_CHANNEL, wait=60)
        job.control.rate_limit(f"source:in/{one}", wait=60)
        job.control.resume(f"source:in/{other}", wait=60)
        out[f"{LIMITS[-1]:,} rows/s"] = found.held(SECONDS, LIMITS[-1])
        out |= found.cut()
        job.stop(60)
    return out


class _Limits:
    def __init__(self, job: Job, state: Path) -> None:
        self._job, self._state = job, state
        self._log = SparkLog(str(checkpoint_of(state)))

    def _ended(self) -> bool:
        return self._job.done

    def newest(self) -> int:
        """The newest committed epoch; -1: none."""
        newest = self._log.newest_commit()
        return -1 if newest is None else newest

    def channels(self) -> tuple[str, str]:
        logged = self._log.offsets(self.newest())
        assert logged is not None
        one, other, *_ = sorted(source_offsets(logged)["in"].running)
        return one, other

    def held(self, seconds: float, limit: int | None = None) -> float:
        """Set a limit of the source (None: the present one); returns rows per second from the first epoch under it."""
        if limit is None:
            first = self.newest() + 1
        else:
            first = self._first(self._job.control.rate_limit("source:in", limit, wait=60))
        return rate(self._after(first, seconds), 0, float("inf"))

    def _first(self, change: SentEvent) -> int:
        first = change.applied["q"]
        assert first is not None
        return first

    def _after(self, first: int, seconds: float) -> list[Epoch]:
        """The epochs from one on, as soon as one has begun that many seconds after it; none that began later."""
        begun = {epoch.number: epoch.began for epoch in recorded(self._state, first, ended=self._ended)}[first]
        time.sleep(max(0.0, begun + seconds - time.time()))
        behind = self.newest() + 1
        found = [epoch for epoch in recorded(self._state, behind, ended=self._ended) if epoch.number >= first]
        return [epoch for epoch in found if epoch.number <= behind]

    def cut(self) -> dict[str, float]:
        asked = time.time()
        change = self._job.control.rate_limit("source:in", CUT)
        answered = time.time()
        first = self._first(change.wait(60))
        found = self._after(first, CUT_S)
        before = [epoch for epoch in epochs(self._state) if epoch.number < first and epoch.committed > asked]
        return {
            "cut": rate(found, 0, float("inf")), "cut, epochs": sum(epoch.began > answered + 0.1 for epoch in before),
            "cut, s": found[0].began - answered, "cut, rows": sum(epoch.rows for epoch in before),
            "cut, first rows": found[0].rows,
        }  # fmt: skip


def _figures(source: str, rounds: list[dict[str, float]]) -> Figures:
    def of(name: str, unit: str = "rows/s") -> Sample:
        return Sample.of([found[name] for found in rounds], unit)

    limits = {f"{limit:,} rows/s": limit for limit in LIMITS} | {f"{OF_CHANNEL:,} rows/s of a channel": OF_CHANNEL}
    off = {name: max(abs(found[name] / limit - 1) for found in rounds) for name, limit in limits.items()}
    yield Figure(
        f"control_rates_{source}",
        f"by how much the rows per second of {source} are off a limit, over {SECONDS:g} s; the worst limit",
        max(off.values()),
        Aim("<=", OFF),
        {name: of(name) for name in limits},
        {"off": {name: round(share, 4) for name, share in off.items()}},
    )
    yield Figure(
        f"control_rates_{source}_cut",
        f"by how much {source} is off {CUT:,} rows/s in the {CUT_S:g} s after a change from {LIMITS[-1]:,}",
        max(abs(found["cut"] / CUT - 1) for found in rounds),
        Aim("<=", OFF),
        {"after the change": of("cut")},
        {
            "epochs under the old limit that began 100 ms after the answer or later": of("cut, epochs", "").to_json(),
            "from the answer to the first epoch, s": of("cut, s", "s").to_json(),
            "rows of the epochs under way and before, from the request on": of("cut, rows", "rows").to_json(),
            "rows of the first epoch": of("cut, first rows", "rows").to_json(),
        },
    )
