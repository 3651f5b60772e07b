"""Targets of the sinks in benchmarks: a directory, or a private server on loopback that is removed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.postgres import PostgresServer


@dataclass(frozen=True)
class Target:
    sink: str  # the sink's format name
    open: Callable[[Path], AbstractContextManager[dict[str, str]]]
    """Creates the target in a directory; provides the sink's options."""
    columns: tuple[str, ...] = ("*",)  # the columns of `datagen` that are written, as expressions


@contextmanager
def folder(place: Path) -> Iterator[dict[str, str]]:
    yield {"path": str(place / "out")}


@contextmanager
def database(_: Path) -> Iterator[dict[str, str]]:
    from tests.servers.postgres import running

    with running() as server:
        yield {**server.database().options, "table": "rows"}


@contextmanager
def durable_server() -> Iterator[PostgresServer]:
    """A private PostgreSQL with durability on, as in production."""
    from tests.servers.postgres import running

    with running({"fsync": "on", "full_page_writes": "on", "max_wal_size": "8GB"}) as server:
        yield server


@contextmanager
def _prepared(place: Path) -> Iterator[dict[str, str]]:
    with database(place) as options:
        yield {**options, "prepared": "true"}


@contextmanager
def topic(place: Path) -> Iterator[dict[str, str]]:
    from tests.servers.kafka import Broker

    with Broker(place / "broker") as broker:
        yield {"bootstrap_servers": broker.bootstrap, "topic": broker.topic("rows", 2)}


@contextmanager
def receiver(place: Path) -> Iterator[dict[str, str]]:
    from tests.servers.receiver import Receiver

    with Receiver(place / "receiver") as taker:
        yield {"url": taker.url, "outbox": str(place / "outbox")}


TARGETS: Final[dict[str, Target]] = {
    "delta_2pc": Target("delta_2pc", folder),
    "files_2pc": Target("files_2pc", folder),
    "postgres_2pc": Target("postgres_2pc", database),
    "postgres_2pc_prepared": Target("postgres_2pc", _prepared),
    "kafka_2pc": Target("kafka_2pc", topic, ("CAST(id AS STRING) AS key", "tag AS value")),
    "http_2pc": Target("http_2pc", receiver),
}
"""By name of the measurement: the sink, and its mode if it has two."""
