"""Inboxes for tests: gateways without HTTP, which keep requests as the real ones do."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from spark_ext.ingest.description import InboxDescription, new_id
from spark_ext.ingest.opening import open_channel, seal
from spark_ext.ingest.place import InboxPlace, inbox_path
from spark_ext.ingest.records import Request
from spark_ext.ingest.store import Draining, GatewayStore
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.http_ingest import HttpIngestSource
from spark_ext.testing.source_contract import SourceWorld
from tests.ingest.ingest_kit import submit

START = 1_760_000_000_000_000


def request(body: str, identity: str = "", at: int | None = None, **changes: Any) -> Request:
    """A request with one event, which was sent under an identity."""
    moment = time.time_ns() // 1_000 if at is None else START + at
    return Request(moment, body.encode(), scheme="standard" if identity else "", identity=identity, **changes)


class Inbox:
    """An inbox, and gateways that keep what they are given in their logs at once."""

    def __init__(self, folder: Path, *, job_id: str = "job", **settings: Any) -> None:
        self.folder, self.wal = folder / "inboxes" / "orders", folder / "wal"
        self.place = InboxPlace(str(self.folder), "inbox 'orders'")
        self.about = self.place.register(InboxDescription("orders", new_id(), job_id, **settings))

    def push(self, gateway: str, *groups: Sequence[Request]) -> None:
        """Each group becomes an entry of the gateway's log."""
        channel = open_channel(self.about, self.place.folder, self.wal, gateway, begin=True)
        assert channel is not None
        try:
            for group in groups:
                channel.commit(group)
                channel.settle()
        finally:
            channel.close()

    def send(self, gateway: str, *bodies: str) -> None:
        """Events that have their bodies as identities, in one entry."""
        self.push(gateway, [request(body, body) for body in bodies])

    def seal(self, gateway: str) -> None:
        """The gateway ends."""
        seal(self.about, self.place.folder, self.wal, gateway, accept_loss=False)


class Gateways:
    """Gateways of a job's inbox in this process, which acknowledge as those behind HTTP do."""

    def __init__(self, state: Path, name: str = "orders") -> None:
        self.place = InboxPlace(inbox_path(str(state), name), f"inbox '{name}'")
        self.wal = state.parent / "wal"
        self.acknowledged: list[str] = []
        self._stores: dict[str, GatewayStore] = {}

    def open(self, gateway: str) -> GatewayStore:
        """Start a gateway."""
        store = GatewayStore(self.place.description(), self.place.folder, self.wal, gateway)
        store.open()
        self._stores[gateway] = store
        return store

    def send(self, gateway: str, *identities: str, body: str = "") -> None:
        """Send events, and wait for their acknowledgement."""
        store = self._stores.get(gateway) or self.open(gateway)
        waiting = [(submit(store, request(body or one, one)), one) for one in identities]
        for future, one in waiting:
            future.result(60)
            self.acknowledged.append(one)

    def refuses(self, gateway: str) -> bool:
        """Whether a gateway says that the job ends."""
        try:
            self.send(gateway, f"late-{time.monotonic()}")
        except Draining:
            return True
        return False

    def close(self, *gateways: str) -> None:
        """Stop gateways, or all; their logs are not sealed."""
        for name in gateways or [*self._stores]:
            self._stores.pop(name).close()

    def seal(self, gateway: str) -> None:
        """What the command `spark-ext ingest seal` does for one that does not come back."""
        seal(self.place.description(), self.place.folder, self.wal, gateway, accept_loss=False)


class InboxWorld(SourceWorld):
    """An inbox of typed events, for the contract kit: repeats within and between gateways, and one that has ended."""

    def __init__(self, folder: Path) -> None:
        columns = StructType([StructField("n", LongType())])
        self.inbox = Inbox(folder, columns=columns.jsonValue())
        for gateway, numbers in (("g1", range(12)), ("g2", range(10, 15)), ("g3", range(20, 31))):
            bodies = [json.dumps({"n": number}) for number in (*numbers, numbers[0])]
            self.inbox.push(gateway, *([request(one, one) for one in bodies[at : at + 4]] for at in range(0, 16, 4)))
        self.inbox.seal("g2")

    def source(self, **options: str) -> ChannelSource:
        return HttpIngestSource({"uid": "in", "path": str(self.inbox.folder), **options})

    def expected(self) -> list[dict[str, Any]]:
        return [{"n": number} for number in (*range(15), *range(20, 31))]
