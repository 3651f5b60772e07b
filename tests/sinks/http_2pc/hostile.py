"""A server of raw sockets that plays an answer byte by byte, whatever HTTP says; and a sink's client for it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_ext.sinks.http_2pc import client
from spark_ext.sinks.http_2pc.addresses import Allowed
from spark_ext.sinks.http_2pc.client import Sender, Wire
from spark_ext.sinks.http_2pc.outbox_pieces import Chunk
from spark_ext.sinks.http_2pc.tls import Tls

CHUNK = Chunk(0, 1, b'{"n":1}\n', True)

Play = Callable[[socket.socket, threading.Event], None]  # Answers one request; is to end once the event is set


@dataclass
class Seen:
    url: str
    requests: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def playing(play: Play) -> Iterator[Seen]:
    over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    seen = Seen(f"http://127.0.0.1:{listening.getsockname()[1]}/rows")
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            while request := _request(connection):
                seen.requests.append(request)
                play(connection, over)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(listening.accept()[0],)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield seen
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()
        close_connections()
        for thread in threads:
            thread.join()


def _request(connection: socket.socket) -> bytes:
    held = b""
    while b"\r\n\r\n" not in held:
        part = connection.recv(65536)
        if not part:
            return b""
        held += part
    head, _, body = held.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def close_connections() -> None:
    while client._pools:
        client._pools.popitem()[1].close()


def sender(url: str, timeout: float = 0.5, **headers: str) -> Sender:
    wire = Wire(url, "POST", headers, (), timeout, 60.0, "retry", False, Tls(), False, Allowed(urlsplit(url)))
    return Sender(wire, "sink 'out'")


def trickle(beginning: bytes, again: bytes, pause: float = 0.02) -> Play:
    """Never longer without a byte than `pause`, and never at an end."""

    def play(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(beginning)
        while not over.wait(pause):
            connection.sendall(again)

    return play
