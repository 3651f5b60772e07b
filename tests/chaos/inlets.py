"""Inputs that grow between the runs of a repeated batch, each with the options of the source that reads it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.servers import postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import Database

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
Row = dict[str, Any]


def row(number: int) -> Row:
    return {"id": number, "at": START + timedelta(seconds=10 * number)}


def plain(rows: Sequence[Row]) -> list[str]:
    return [json.dumps({**one, "at": one["at"].strftime("%Y-%m-%dT%H:%M:%SZ")}) for one in rows]


class Inlet(ABC):
    options: Mapping[str, Any]

    @abstractmethod
    def add(self, rows: Sequence[Row]) -> None:
        """Add rows; on return a reader finds them."""


class Folder(Inlet):
    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir()
        self.options = {"path": str(place)}

    def add(self, rows: Sequence[Row]) -> None:
        name = f"{rows[0]['id']:09}.json"
        draft = self._place.parent / f".{name}"
        draft.write_text("".join(f"{line}\n" for line in plain(rows)))
        draft.rename(self._place / name)


class Table(Inlet):
    def __init__(self, place: Path) -> None:
        self._place = place
        self.options = {"path": str(place)}
        self.add([row(0)])

    def add(self, rows: Sequence[Row]) -> None:
        schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
        write_deltalake(str(self._place), pa.Table.from_pylist(list(rows), schema), mode="append")


class Topic(Inlet):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = broker.topic("in", partitions=2)
        self.options = {"bootstrap_servers": broker.bootstrap, "topics": self._topic}

    def add(self, rows: Sequence[Row]) -> None:
        for partition in (0, 1):
            if values := plain(rows[partition::2]):
                self._broker.send(self._topic, values, partition)


class Stages(Topic):
    """A topic up to its present end, and then what comes."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.add([row(0), row(1)])
        common = {"format": "kafka_range", **self.options}
        stages = {
            "history": {**common, "ending": "latest", "seam": "partition:offset"},
            "live": {**common, "ending": "none"},
        }
        named = {f"{stage}.{name}": value for stage, given in stages.items() for name, value in given.items()}
        self.options = {"stages": "history,live", **named}


class Relation(Inlet):
    def __init__(self, database: Database, incremental: str) -> None:
        self._database = database
        database.run("CREATE TABLE rows (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
        self.options = {**database.options, "table": "rows", "incremental": incremental, "poll_interval": "10 ms"}
        if incremental == "column":
            self.options["incremental_column"] = "id"

    def add(self, rows: Sequence[Row]) -> None:
        values = ", ".join(f"({one['id']}, '{one['at'].isoformat()}')" for one in rows)
        self._database.run(f"INSERT INTO rows VALUES {values}")


@contextmanager
def _topic(folder: Path, kind: type[Topic] = Topic) -> Iterator[Inlet]:
    with Broker(folder / "broker") as broker:
        yield kind(broker)


@contextmanager
def _relation(folder: Path, incremental: str) -> Iterator[Inlet]:
    with postgres.running() as server:
        yield Relation(server.database(), incremental)


def _folder(folder: Path) -> AbstractContextManager[Inlet]:
    return nullcontext(Folder(folder / "in"))


INLETS: Mapping[str, tuple[str, int, Callable[[Path], AbstractContextManager[Inlet]]]] = {
    "delta": ("delta", 1, lambda folder: nullcontext(Table(folder / "in"))),
    "files": ("files", 0, _folder),
    "hybrid": ("hybrid", 2, partial(_topic, kind=Stages)),
    "kafka": ("kafka", 0, _topic),
    "linked": ("linked", 0, _folder),
    "native": ("native", 0, _folder),
    "postgres-column": ("postgres", 0, partial(_relation, incremental="column")),
    "postgres-xmin": ("postgres", 0, partial(_relation, incremental="xmin")),
    "windows": ("windows", 0, _folder),
}
"""By name: the shape of the job, how many rows there are at the beginning, and what opens the input in a folder."""
