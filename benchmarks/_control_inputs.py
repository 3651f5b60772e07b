"""Inputs from which sources can read a million rows per second for a minute: files, a table, a topic, and none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHANNELS: Final = 2
"""Of each input."""
_PART = 1_000_000


@contextmanager
def datagen(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    """Nothing has to be made."""
    yield {"rows": str(rows), "channels": str(CHANNELS)}


@contextmanager
def files(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    """Parquet files of ids."""
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
    """A table of ids in a new server."""
    from tests.servers.postgres import PostgresServer

    server = PostgresServer()
    try:
        database = server.create().database()
        database.run(
            f"CREATE TABLE numbers AS SELECT id FROM generate_series(1, {rows}::bigint) AS id",
            "ALTER TABLE numbers ADD PRIMARY KEY (id)",
            "VACUUM ANALYZE numbers",
        )
        yield {**database.options, "table": "numbers", "rows_per_channel": str(rows // CHANNELS)}
    finally:
        server.close()


@contextmanager
def kafka(folder: Path, rows: int) -> Iterator[dict[str, str]]:
    """A topic of messages of one byte in a new broker."""
    from confluent_kafka import Producer

    from tests.servers.kafka import Broker

    with Broker(folder) as broker:
        topic = broker.topic("rows", CHANNELS)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
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
    "datagen": datagen,
    "files": files,
    "postgres": postgres,
    "kafka_range": kafka,
}
"""By source: makes so many rows in a folder, and provides the source's options."""
