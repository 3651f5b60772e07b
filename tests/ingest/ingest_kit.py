"""A gateway's folders, from which tests start processes that crash, freeze and lose what was not synced."""

import random
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from spark_ext.ingest import channel as product
from spark_ext.ingest.channel import OwnedChannel
from spark_ext.ingest.description import InboxDescription
from spark_ext.ingest.log import InboxLog, pieces
from spark_ext.ingest.opening import open_channel
from spark_ext.ingest.records import Receipt, Request
from spark_ext.ingest.store import GatewayStore, Unavailable
from spark_ext.storage import Folder, GrowingFile, LocalFolder

ORDERS = InboxDescription("orders", "inbox-1", "job-1")


class Crash(BaseException):
    """The process is gone: nothing handles this."""


def request(body: str, **more: object) -> Request:
    return Request(at=1_700_000_000_000_000, body=body.encode(), **more)  # type: ignore[arg-type]


def submit(store: GatewayStore, request: Request) -> "Future[Receipt]":
    """Hand a request to a store, for who can wait."""
    future: Future[Receipt] = Future()

    def answer(outcome: Receipt | Unavailable) -> None:
        with suppress(InvalidStateError):  # after the first one it counts no more
            if isinstance(outcome, Unavailable):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    store.take(request, answer)
    return future


@dataclass
class Points:
    """Acts at the nth fail point from now on, or at one with a name."""

    left: int = -1
    name: str = ""
    problem: type[BaseException] = Crash

    def arm(self, nth: int, problem: type[BaseException] = Crash) -> None:
        self.left, self.problem = nth, problem

    def reach(self, point: str) -> None:
        self.left -= 1
        if self.left == 0 or point == self.name:
            raise self.problem(f"at {point}")


class Disk:
    """Which part of each file in the write-ahead log a power failure leaves."""

    def __init__(self) -> None:
        self.synced: dict[Path, int] = {}

    def sync(self, file: GrowingFile) -> None:
        self.synced[file.path] = file.path.stat().st_size

    def power_failure(self, folder: Path, chance: random.Random) -> None:
        """What was not synced is there in part, or as zeros, or as anything."""
        for path in sorted(folder.rglob("*.wal")):
            content = path.read_bytes()
            safe = self.synced.get(path, 0)
            rest = bytearray(content[safe : safe + chance.randint(0, len(content) - safe)])
            for place in range(0, len(rest), 7):
                if chance.random() < 0.3:
                    rest[place : place + 7] = chance.choice((bytes(7), chance.randbytes(7)))[: len(rest) - place]
            path.write_bytes(content[:safe] + rest)


class World:
    """One gateway, its reader and its disk."""

    def __init__(self, folder: Path, description: InboxDescription = ORDERS) -> None:
        self.inbox: Folder = LocalFolder(folder / "inbox")
        self.wal, self.description = folder / "wal", description
        self.points, self.disk = Points(), Disk()
        self.position: list[int] | None = None
        self.delivered: list[str] = []

    @contextmanager
    def machine(self) -> Iterator[None]:
        """Its fail points act, and its syncs are noted; they are not waited for."""
        with (
            patch.object(product, "reach", self.points.reach),
            patch.object(GrowingFile, "_sync", lambda file: self.disk.sync(file)),
            patch.object(LocalFolder, "_sync", lambda *_: None),
        ):
            yield

    def open(self, gateway: str = "g1") -> OwnedChannel:
        found = open_channel(self.description, self.inbox, self.wal, gateway, begin=True)
        assert found is not None
        return found

    def log(self, channel: str = "g1") -> InboxLog:
        return InboxLog(self.inbox.below(f"gateways/{channel}"), "a reader")

    def read(self, log: InboxLog) -> list[str]:
        """The bodies that are new to the reader, in order; it stands behind them then."""
        state = log.look()
        start, end = self.position or [log.released(), 0], [state.last + 1, 0]
        bodies: list[str] = []
        for name, skip, rows in pieces(log.entry, start, end):
            batch = log.read_segment(name, skip, rows)
            bodies += [body.decode() for body in batch.column("body").to_pylist()]
            first = len(self.delivered) + len(bodies) - rows
            assert batch.column("sequence").to_pylist() == list(range(first, first + rows))
        self.position = end
        self.delivered += bodies
        return bodies

    def rows(self, channel: str = "g1") -> list[str]:
        """The bodies that are new to the reader."""
        return self.read(self.log(channel))

    def all_rows(self) -> list[str]:
        """The bodies of all that the reader has read up to now."""
        self.rows()
        return self.delivered


def unlock(channel: OwnedChannel) -> None:
    """Let others have the write-ahead log of a process that is gone, or that a network has cut off."""
    if channel._ahead is not None:
        channel._ahead.close()
