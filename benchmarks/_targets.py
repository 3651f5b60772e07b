"""Targets of the sinks in benchmarks: a directory, or a private server on loopback that is removed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer


@dataclass(frozen=True)
class Target:
    """The target of a sink, and how to write to it."""

    sink: str
    """The sink's format name."""
    open: Callable[[Path], AbstractContextManager[dict[str, str]]]
    """Creates the target in a directory; provides the sink's options."""
    columns: tuple[str, ...] = ("*",)
    """The columns of `datagen` that are written, as expressions."""


@contextmanager
def folder(place: Path) -> Iterator[dict[str, str]]:
    """A folder."""
    yield {"path": str(place / "out")}


@contextmanager
def database(_: Path) -> Iterator[dict[str, str]]:
    """A table in a new database."""
    from tests.servers.postgres import PostgresServer

    server = PostgresServer()
    try:
        yield {**server.create().database().options, "table": "rows"}
    finally:
        server.close()


@contextmanager
def durable_server() -> Iterator[PostgresServer]:
    """A private PostgreSQL with durability on, as in production."""
    from tests.servers.postgres import PostgresServer

    server = PostgresServer({"fsync": "on", "full_page_writes": "on", "max_wal_size": "8GB"})
    try:
        yield server.create()
    finally:
        server.close()


def _prepared(place: Path) -> AbstractContextManager[dict[str, str]]:
    @contextmanager
    def opened() -> Iterator[dict[str, str]]:
        with database(place) as options:
            yield {**options, "prepared": "true"}

    return opened()


@contextmanager
def topic(place: Path) -> Iterator[dict[str, str]]:
    """A topic with two partitions."""
    from tests.servers.kafka import Broker

    home = place / "broker"
    home.mkdir()
    with Broker(home) as broker:
        yield {"bootstrap_servers": broker.bootstrap, "topic": broker.topic("rows", 2)}


@contextmanager
def receiver(place: Path) -> Iterator[dict[str, str]]:
    """A receiver that remembers keys."""
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
