"""Where each sink of a benchmark writes to: a folder, or a private server on loopback that is gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Target:
    """What a sink is given."""

    sink: str
    """The sink's format."""
    open: Callable[[Path], AbstractContextManager[dict[str, str]]]
    """Makes the target in a folder; gives the sink's options."""
    columns: tuple[str, ...] = ("*",)
    """What of `datagen`'s columns the sink takes."""


@contextmanager
def folder(place: Path) -> Iterator[dict[str, str]]:
    """A folder."""
    yield {"path": str(place / "out")}


@contextmanager
def database(_: Path) -> Iterator[dict[str, str]]:
    """A table of a fresh database."""
    from tests.servers.postgres import PostgresServer

    server = PostgresServer()
    try:
        yield {**server.create().database().options, "table": "rows"}
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
    """A topic of two partitions."""
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
"""By what is measured: the sink, and its mode where there are two."""
