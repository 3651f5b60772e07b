"""What the benchmarks of push sources share: a gateway as a process of its own, and the plainest client that there is.

The client shares the machine with the gateway, so its requests are made in advance, and sockets are all that it uses.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa

from spark_ext.ingest.description import ABOUT, InboxDescription, new_id
from spark_ext.ingest.place import inbox_path
from spark_ext.storage import Location
from tests.chaos.push import SIGNING, Gateway, secret
from tests.chaos.push_client import signed
from tests.chaos.push_job import INBOX, SECRET
from tests.servers.object_store import Bucket
from tests.servers.ports import free_ports

PATH: Final = f"/v1/inboxes/{INBOX}"


@dataclass
class Answers:
    statuses: Counter[int] = field(default_factory=Counter)
    times: dict[int, list[float]] = field(default_factory=dict)  # by status, ms
    acknowledged: list[tuple[int, float]] = field(default_factory=list)  # numbers of requests; when, s since 1970
    seconds: float = 0.0

    def add(self, number: int, status: int, took: float) -> None:
        self.statuses[status] += 1
        self.times.setdefault(status, []).append(1000 * took)
        if 200 <= status < 300:
            self.acknowledged.append((number, time.time()))


def described(folder: Path, bucket: Bucket | None = None, **settings: Any) -> None:
    """Make the state of a job that does not run, with an inbox, in a folder or an object store."""
    about = InboxDescription(INBOX, new_id(), "bench", scheme="standard", secrets=(f"env:{SECRET}",), **settings)
    place = inbox_path(_state(folder, bucket), INBOX)
    Location.of(place, bucket.options if bucket else {}).folder.write(ABOUT, about.to_json())


@contextmanager
def gateway(folder: Path, bucket: Bucket | None = None) -> Iterator[tuple[int, psutil.Process]]:
    """A gateway of that state as `spark-ext ingest serve` starts it: its port and its process."""
    (port,) = free_ports(1)
    env = {**secret(), "PYTHONPATH": str(Path.cwd()), **(bucket.environment if bucket else {})}
    served = Gateway(0, _state(folder, bucket), folder / "wal", port, env, folder)
    with served.start() as tree:
        served.up()
        yield port, psutil.Process(tree.pid)
        tree.terminate()


def _state(folder: Path, bucket: Bucket | None) -> str:
    return f"{bucket.uri if bucket else folder}/state"


def saved(inbox: Path) -> set[int]:
    """The ids of the events in the segments of an inbox, whose gateways have ended."""
    found: set[int] = set()
    for file in inbox.glob("gateways/*/data/*.arrow"):
        with pa.ipc.open_file(file) as segment:
            found.update(json.loads(body)["id"] for body in segment.read_all()["body"].to_pylist())
    return found


def request(identity: str, body: bytes, kind: str = "application/json", path: str = PATH) -> bytes:
    """A signed request, whole."""
    headers = {"Host": "127.0.0.1", "Content-Type": kind, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **signed(SIGNING, identity, body)}.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def single(number: int, prefix: str = "m") -> bytes:
    return request(f"{prefix}{number}", json.dumps({"id": number, "amount": 1.5, "about": "x" * 100}).encode())


def lines(number: int, count: int = 100) -> bytes:
    first = number * count
    rows = (json.dumps({"id": first + row, "amount": 1.5, "about": "x" * 100}) for row in range(count))
    return request(f"b{number}", "\n".join(rows).encode(), "application/x-ndjson")


def send(
    port: int, requests: Sequence[bytes], connections: int, rate: float | None = None, seconds: float = float("inf")
) -> Answers:
    """Send requests over some connections, each as soon as the one before was answered, or at a rate of all.

    At a rate, a time begins when the request is due, also if no connection is free then. With a limit in seconds the
    requests are sent in turns until it is over.
    """
    found, began = Answers(), time.perf_counter()
    end, number = began + seconds, 0
    free = deque(socket.create_connection(("127.0.0.1", port)) for _ in range(connections))
    busy: dict[socket.socket, tuple[int, float, bytes]] = {}  # number of the request, since when, and what came
    with selectors.DefaultSelector() as ready:
        for one in free:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            now = time.perf_counter()
            more = now < end and (number < len(requests) or end < float("inf"))
            due = began + number / rate if rate else now
            while more and free and due <= now:
                one = free.popleft()
                one.sendall(requests[number % len(requests)])
                busy[one] = (number, due, b"")
                ready.register(one, selectors.EVENT_READ)
                number += 1
                more = number < len(requests) or end < float("inf")
                due = began + number / rate if rate else now
            if not busy and not more:
                break
            for key, _ in ready.select(max(0.0, due - now) if more and free else 1.0):
                one = key.fileobj  # type: ignore[assignment]
                asked, since, before = busy[one]
                text = before + one.recv(65536)
                if not _whole(text):
                    busy[one] = (asked, since, text)
                    continue
                found.add(asked, int(text[9:12]), time.perf_counter() - since)
                ready.unregister(one)
                del busy[one]
                free.append(one)
        for one in free:
            one.close()
    found.seconds = time.perf_counter() - began
    return found


def _whole(text: bytes) -> bool:
    head, there, body = text.partition(b"\r\n\r\n")
    if not there:
        if not text:
            raise ConnectionError("the gateway has closed the connection")
        return False
    place = head.lower().find(b"content-length:")
    return len(body) >= int(head[place + 15 :].split(b"\r", 1)[0]) if place >= 0 else True
