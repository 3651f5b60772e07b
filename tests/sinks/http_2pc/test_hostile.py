"""Answers without an end, and answers that grow: each ends within its limits of time and bytes."""

import gzip
import socket
import threading
import time
import tracemalloc

import pytest

from spark_ext.errors import DataError, TransientError
from spark_ext.sinks.http_2pc.outbox_pieces import Chunk
from tests.sinks.http_2pc.hostile import CHUNK, Play, playing, sender, trickle

OK = b"HTTP/1.1 200 OK\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@pytest.mark.core
@pytest.mark.slow(0.6, "waits out the time limit")
@pytest.mark.parametrize(
    "play",
    [
        trickle(OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        trickle(OK + b"X-Long: ", b"x"),
        trickle(b"", EARLY),
        trickle(b"", b""),
    ],
    ids=["body", "chunks", "headers", "interim answers", "silence"],
)
def test_an_answer_without_an_end_ends_at_the_time_limit(play: Play) -> None:
    with playing(play) as seen:
        begin = time.monotonic()
        with pytest.raises(TransientError, match=r"no answer: ReadTimeout|not complete after 0\.5 s"):
            sender(seen.url).send(CHUNK, {})
        assert time.monotonic() - begin < 5


@pytest.mark.core
@pytest.mark.slow(0.6, "waits out the time limit")
def test_a_receiver_that_reads_slowly_ends_at_the_time_limit() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/rows"
    large = Chunk(0, 1, bytes(32 * 1024**2), True)
    with listening, pytest.raises(TransientError, match="WriteTimeout"):
        sender(url).send(large, {})


@pytest.mark.parametrize(
    "play",
    [trickle(b"", EARLY * 1000, 0), trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n1", b";" + b"x" * 50_000, 0)],
    ids=["interim answers", "extensions of chunks"],
)
def test_an_answer_has_a_limit_of_bytes(play: Play) -> None:
    with playing(play) as seen, pytest.raises(TransientError, match="there was no answer: RemoteProtocolError"):
        sender(seen.url, timeout=30).send(CHUNK, {})


def test_a_long_body_is_read_in_part() -> None:
    with playing(trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n", 0)) as seen:
        sender(seen.url, timeout=30).send(CHUNK, {})
        sender(seen.url, timeout=30).send(CHUNK, {})
        assert len(seen.requests) == 2


def test_an_encoded_body_is_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 KB of gzip in gzip is a gigabyte. No such body is asked for, and one that comes is not shown."""
    bomb = gzip.compress(gzip.compress(bytes(50_000_000)))
    head = f"HTTP/1.1 400 No\r\nContent-Encoding: gzip, gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()

    def play(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head + bomb)

    with playing(play) as seen:
        tracemalloc.start()
        with pytest.raises(DataError) as refused:
            sender(seen.url).send(CHUNK, {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "status 400" in str(refused.value) and "\x00" not in str(refused.value)
    assert peak < 5_000_000
    assert b"\r\nAccept-Encoding: identity\r\n" in seen.requests[0]


def test_cookies_of_an_answer_are_not_sent_again() -> None:
    def play(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(OK + b"Set-Cookie: session=of-the-first; Path=/\r\nContent-Length: 0\r\n\r\n")

    with playing(play) as seen:
        sender(seen.url, Authorization="Bearer first-token").send(CHUNK, {})
        sender(seen.url, Authorization="Bearer second-token").send(CHUNK, {})
        assert len(seen.requests) == 2 and b"second-token" in seen.requests[1]
        assert not any(b"cookie" in request.lower() for request in seen.requests)
