"""Events over WebSocket, by a client of the specification alone."""

import base64
import json
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame
from websockets.frames import Opcode as Op

from spark_ext.gateway import reception
from spark_ext.gateway import websocket as product
from spark_ext.ingest.log import InboxLog
from spark_ext.storage import LocalFolder
from tests.gateway.served import NAME, Served, serving, stored
from tests.gateway.test_gateway import refused
from tests.support.waiting import until


def sent(op: Op, payload: bytes, *, final: bool = True) -> bytes:
    """A frame of a client."""
    return Frame(op, payload, final).serialize(mask=True)


class Socket:
    def __init__(self, port: int, path: str, **headers: str) -> None:
        named = {
            "Host": "localhost", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }  # fmt: skip
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        found = (line.decode().partition(":") for line in iter(self.file.readline, b"\r\n"))
        self.headers = {name.lower(): value.strip() for name, _, value in found}
        self.problem = self.file.read(int(self.headers.get("content-length", 0)))

    def send(self, *payloads: bytes, op: Op = Op.TEXT) -> None:
        self.socket.sendall(b"".join(sent(op, one) for one in payloads))

    def receive(self) -> tuple[int, bytes]:
        first, size = self.file.read(2)
        if size > 125:
            size = int.from_bytes(self.file.read(2), "big")
        return first & 0x0F, self.file.read(size)

    def answer(self) -> dict[str, Any]:
        op, payload = self.receive()
        assert op == Op.TEXT
        found: dict[str, Any] = json.loads(payload)
        return found

    def closed(self) -> int:
        """The code with which it is closed."""
        op, payload = self.receive()
        assert op == Op.CLOSE and self.file.read() == b""
        return int.from_bytes(payload[:2], "big")


@contextmanager
def connected(own: Served, rest: str = "", **headers: str) -> Iterator[Socket]:
    if not rest and "Authorization" not in headers:
        headers["Authorization"] = f"Bearer {own.server.token}"
    made = Socket(own.port, f"/v1/inboxes/{NAME}{rest}/ws?a=b", **headers)
    try:
        yield made
    finally:
        made.file.close()
        made.socket.close()


def test_each_message_is_answered_when_it_is_stored(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        with connected(own, f"/t/{own.server.token}", X_Producer="p", X_Sequence="10") as client:
            assert client.status == 101
            client.send(b"zero", b"one")
            client.send(b"two", op=Op.BINARY)
            client.socket.sendall(sent(Op.TEXT, b"th", final=False) + sent(Op.CONT, b"ree"))
            answers = [client.answer() for _ in range(4)]
            assert [(one["message"], one["level"], one["events"]) for one in answers] == [
                (n, "disk", 1) for n in range(4)
            ]
            client.send(b"there?", op=Op.PING)
            assert client.receive() == (Op.PONG, b"there?")
            client.send(b"\x03\xe8", op=Op.CLOSE)
            assert client.closed() == 1000
        assert json.loads(own.ask("GET", f"/v1/inboxes/{NAME}/producers/p").body)["acknowledged"] == 13
    rows = stored(tmp_path)
    assert [row["body"] for row in rows] == [b"zero", b"one", b"two", b"three"]
    assert [row["producer_sequence"] for row in rows] == [10, 11, 12, 13]
    assert {(row["path"], row["query"]) for row in rows} == {("ws", "a=b")}
    names = {name for name, _ in rows[0]["headers"]}
    assert not names & {"upgrade", "connection", "sec-websocket-key"}


def test_refusals_of_messages(tmp_path: Path) -> None:
    with serving(tmp_path, about={"max_body": 100, "max_bytes": 1_500}) as own:
        with connected(own) as client:
            client.send(b"", b"x")
            answers = sorted((client.answer() for _ in range(2)), key=lambda one: one["message"])
            assert (answers[0]["status"], answers[0]["reason"]) == (400, "malformed")
            assert answers[1]["level"] == "disk"
            client.send(b"x" * 101)
            assert client.closed() == 1009
        with connected(own, X_Producer="p", X_Sequence="0") as client:  # whose numbers would have a gap
            client.send(b"", b"one")
            assert client.answer()["status"] == 400
            assert client.closed() == 1008
        with connected(own, X_Producer="p", X_Sequence="9" * 5_000) as client:
            client.send(b"one")
            assert client.answer()["status"] == 400
        with connected(own) as client:
            client.send(*[b"x" * 100] * 10)
            answers = []
            while (received := client.receive())[0] == Op.TEXT:
                answers.append(json.loads(received[1]))
            assert received[0] == Op.CLOSE and received[1][:2] == b"\x03\xf5"
            (refusal,) = (one for one in answers if "status" in one)  # and what was taken before it is answered
            assert refusal["status"] == 429 and refusal["retry_after"] > 0
            accepted = {one["message"] for one in answers if "level" in one}
            assert accepted == set(range(refusal["message"]))
    assert len(stored(tmp_path)) == 1 + len(accepted)


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"rest": "/x"}, 400, "not served here"),
        ({"Authorization": ""}, 401, "token"),
        ({"Authorization": "Bearer x"}, 401, "token"),
        ({"Origin": "http://evil.test"}, 403, "another site"),
        ({"Host": "evil.test"}, 403, "not a name"),
        ({"Sec_WebSocket_Version": "8"}, 400, "Sec-WebSocket-Version"),
        ({"Content_Length": "3"}, 400, "handshake"),
        ({"Sec_WebSocket_Key": "short"}, 400, "handshake"),
        ({"Idempotency_Key": "k"}, 400, "headers of its own"),
    ],
)
def test_handshakes_that_are_refused(served: Served, headers: dict[str, str], status: int, said: str) -> None:
    with connected(served, **headers) as client:
        assert client.status == status and said in client.problem.decode()


TEXT = sent(Op.TEXT, b"x")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (bytes.fromhex("810548656c6c6f"), 1002),  # not masked
        (b"\xc1" + TEXT[1:], 1002),  # compressed, which was not agreed on
        (b"\x83" + TEXT[1:], 1002),  # of no known kind
        (b"\x80" + TEXT[1:], 1002),
        (sent(Op.TEXT, b"x", final=False) + TEXT, 1002),
        (b"\x89\xfe\x00\x7e" + bytes(130), 1002),  # a ping of 126 bytes
        (b"\x09\x80" + bytes(4), 1002),  # a part of one
        (sent(Op.TEXT, b"\xff"), 1007),
        (sent(Op.BINARY, b"x" * 1_000_000)[:14], 1009),  # before it is here
        (sent(Op.BINARY, b"x" * 90, final=False) + sent(Op.CONT, b"x" * 11, final=False), 1009),
    ],
    ids=range(10),  # each process masks them in another way
)
def test_who_does_not_keep_to_the_protocol_is_disconnected(served: Served, content: bytes, code: int) -> None:
    before = served.accepted
    with connected(served, Sec_WebSocket_Extensions="permessage-deflate") as client:
        assert "sec-websocket-extensions" not in client.headers
        client.socket.sendall(content)
        assert client.closed() == code
    assert served.accepted == before


def test_a_message_may_come_in_any_parts_but_not_without_its_end(served: Served) -> None:
    before = served.accepted
    with connected(served) as client:
        client.socket.sendall(sent(Op.TEXT, b"x" * 50)[:-1])
    with connected(served) as client:
        client.socket.sendall(sent(Op.TEXT, b"x", final=False))
    with connected(served) as client:
        whole = sent(Op.TEXT, b"x" * 99, final=False) + sent(Op.PING, b"there?") + sent(Op.CONT, b"x")
        for byte in whole:
            client.socket.sendall(bytes([byte]))
        assert client.receive() == (Op.PONG, b"there?")
        assert client.answer()["message"] == 0
    assert served.accepted == before + 1


def test_endless_parts_take_no_memory(served: Served) -> None:
    content = sent(Op.TEXT, b"x", final=False) + sent(Op.CONT, b"", final=False) * 2_000 + sent(Op.PING, b"?")
    with connected(served) as client:
        tracemalloc.start()
        try:
            client.socket.sendall(content)
            assert client.receive()[0] == Op.PONG
            assert tracemalloc.get_traced_memory()[0] < 64_000
        finally:
            tracemalloc.stop()


def test_a_client_that_reads_no_answers_is_not_read(served: Served) -> None:
    content, total = sent(Op.PING, b"x" * 125) * 500 + TEXT, 0
    with connected(served) as client:
        client.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            while total < 40_000_000:  # more than the kernel holds for both sides
                client.socket.sendall(content)
                total += len(content)


def test_no_more_than_some_messages_wait_and_their_client_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "QUIET", 0.1)
    with serving(tmp_path, about={"ack": "table"}) as own, connected(own) as client:
        client.socket.sendall(TEXT * 600 + sent(Op.CLOSE, b"\x03\xe8"))
        until(lambda: own.accepted >= product.MOST_WAITING, "some are taken")
        assert [client.receive()[0] for _ in range(4)] == [Op.PING] * 4
        assert own.accepted < product.MOST_WAITING + product.PART / len(TEXT) + 1
        log = InboxLog(LocalFolder(tmp_path / "inboxes" / NAME / "gateways" / "g1"), "a test")
        answers, over = set[int](), threading.Event()

        def release() -> None:  # beside the client, which waits for entries that may not be written yet
            while not over.wait(0.01):
                log.release(log.look().last + 1)  # as a job does once the events are in its table

        with ThreadPoolExecutor() as pool:
            released = pool.submit(release)
            try:
                while (received := client.receive())[0] != Op.CLOSE:
                    if received[0] == Op.TEXT:
                        answers.add(json.loads(received[1])["message"])
            finally:
                over.set()
            released.result()
        assert answers == set(range(600)), "it is closed behind all answers"


def test_a_message_waits_for_the_table_as_long_as_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "JOB_SECONDS", 0.2)
    with serving(tmp_path, about={"ack": "table"}) as own:
        with connected(own, X_Producer="p", X_Sequence="0") as client:
            client.send(b"x")
            answer = client.answer()
            assert (answer["message"], answer["status"], answer["reason"]) == (0, 503, "not_yet")
            assert "may have been stored" in answer["kept"] and answer["retry_after"] > 0
            assert client.closed() == 1013
        posted = own.post(b"x", X_Producer="p", X_Sequence="0")
        refused(posted, 503, "not_yet", "check that it runs")
        assert posted.problem["kept"] == answer["kept"]
    assert [row["producer_sequence"] for row in stored(tmp_path)] == [0, 0], "the second one is a repeat for the job"


def test_a_client_that_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "QUIET", 0.1)
    with serving(tmp_path) as own, connected(own) as client:
        assert client.receive() == (Op.PING, b"")
        assert client.file.read() == b""


def test_the_end_of_the_gateway_closes_connections_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as own, connected(own) as client:
        client.send(b"x")
        assert client.answer()["level"] == "disk"
        own.server.stop()
        assert client.closed() == 1001


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits, about = {"refused_burst": 1_000}, {"max_body": 100}
    with serving(tmp_path_factory.mktemp("websocket"), limits=limits, about=about) as found:
        yield found
