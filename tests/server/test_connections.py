"""What strangers can do to the driver of a job before they have shown a token."""

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from spark_ext.clients.listener import Listener
from spark_ext.metrics import exporters
from spark_ext.server.bodies import DRAINED
from spark_ext.server.limits import Limits
from tests.control.states import State
from tests.server.served import JOB, Served, serving
from tests.support.waiting import until

HALF = b"GET /v1/jobs HTTP/1.1\r\nHost: loc"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> State:
    return State(tmp_path_factory.mktemp("connections") / "state")


@pytest.fixture(scope="module")
def served(state: State) -> Iterator[Served]:
    with serving(state, limits=Limits(connections=8, header_seconds=3600)) as found:
        yield found


def connect(port: int, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.sendall(sent)
    return made


def port_of(served: Served) -> int:
    return int(served.server.url.rpartition(":")[2])


def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("what", ["server", "metrics"])
def test_without_requests_they_cost_little_and_keep_nobody_out(served: Served, what: str) -> None:
    with ExitStack() as stack:
        port, most = port_of(served), 8
        if what == "metrics":
            one = exporters.Endpoint("127.0.0.1", 0)
            stack.callback(one.close)
            port, most = one._server.server_port, exporters.CONNECTIONS
        idle = [stack.enter_context(connect(port, HALF)) for _ in range(3 * most)]
        until(lambda: sum(map(is_closed, idle)) >= 2 * most, "those that were idle for longest are closed")
        with connect(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as asking:
            assert b" 200 " in asking.recv(100)
        assert not is_closed(idle[-1])


def test_unread_answers_without_a_token_keep_nobody_out(served: Served) -> None:
    asset = b"GET /page/plots.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    wait = f"GET {JOB}/control/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token}\r\n\r\n"
    with ExitStack() as stack:
        follower = stack.enter_context(connect(port_of(served), wait.encode()))
        assert b" 200 " in follower.recv(1_000)
        for _ in range(7):
            deaf = stack.enter_context(connect(port_of(served), asset * 1_000))
            assert b" 200 " in deaf.recv(100)  # and no more of all these answers
        with connect(port_of(served), b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as asking:
            assert b" 200 " in asking.recv(100)
        assert not is_closed(follower)


def test_answers_that_are_not_read_are_not_kept(state: State) -> None:
    asset = b"GET /page/plots.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(state, limits=Limits(unread_seconds=0.1)) as own, connect(port_of(own), asset * 1_000) as deaf:
        port, of_client = port_of(own), deaf.getsockname()[1]

        def kept() -> bool:
            held = psutil.Process().net_connections("tcp")
            return any((one.laddr.port, one.raddr and one.raddr.port) == (port, of_client) for one in held)

        assert b" 200 " in deaf.recv(100)
        until(lambda: not kept(), "the connection is cut off", 60)


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "second"])
def test_headers_have_to_arrive_in_time(state: State, before: bytes) -> None:
    with serving(state, limits=Limits(header_seconds=0.1)) as own, connect(port_of(own), before + HALF) as slow:
        until(lambda: is_closed(slow), "it is closed")


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000,
    ],
    ids=["path", "one", "many"],
)
def test_large_headers_are_refused_before_they_are_in_memory(served: Served, begin: bytes) -> None:
    with connect(port_of(served), begin) as own:
        sent = 0
        try:
            while sent < 50_000_000:
                sent += own.send(b"x" * 65_536)
        except ConnectionError:
            pass
        assert sent < 20_000_000  # what the kernel holds for both sides


def test_ordinary_headers_and_bodies_pass_however_they_arrive(served: Served) -> None:
    body = b'{"kind": "set_config", "value": {"key": "k", "value": "%s"}}' % (b"v" * 60_000)
    request = (
        f"POST {JOB}/control HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token}\r\n"
        f"Content-Type: application/json\r\nX: {'y' * 10_000}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with connect(port_of(served), request + body) as own:
        assert b" 202 " in own.recv(100)
    with connect(port_of(served)) as own:
        for at in range(0, len(request + body), 7_000):
            own.sendall((request + body)[at : at + 7_000])
        assert b" 202 " in own.recv(100)


def test_a_client_that_sends_too_much_sees_why_up_to_a_bound(served: Served) -> None:
    most = Limits().body_bytes * DRAINED
    assert served.set_key("v" * (most - 1_000)).status_code == 413
    begin = (
        f"POST {JOB}/control HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {50 * most}\r\n\r\n"
    )
    with connect(port_of(served), begin.encode()) as own, pytest.raises(ConnectionError):
        for _ in range(50):
            own.sendall(b"v" * most)


def test_refusals_anybody_can_cause_are_logged_now_and_then(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    with caplog.at_level(logging.WARNING):
        for sent in (b"no request\r\n\r\n", upgrade) * 20:
            with connect(port_of(served), sent) as own:
                assert own.recv(100)
    assert 1 <= len(caplog.records) <= 10


def test_one_too_many_is_refused_while_the_others_have_requests() -> None:
    with Listener(socket.create_server(("127.0.0.1", 0)), 2) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        clients = [stack.enter_context(connect(port)) for _ in range(3)]
        accepted = [stack.enter_context(listener.accept()[0]) for _ in range(2)]
        listener.busy = {one.fileno() for one in accepted}
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert [is_closed(one) for one in clients] == [False, False, True]


def test_a_process_without_descriptors_says_so_once_a_second() -> None:
    with Listener(socket.create_server(("127.0.0.1", 0)), 100) as listener, connect(listener.getsockname()[1]):
        free = os.dup(0)
        os.close(free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                listener.accept()
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
