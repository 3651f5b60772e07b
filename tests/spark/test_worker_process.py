"""A Python worker of Spark's answers without delay, and is spared collections of what is never garbage."""

import gc
import importlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ext.spark.watching import worker_process
from spark_ext.spark.watching.worker_process import begin_task, end_quietly, tune

pytestmark = pytest.mark.slow(0.5, "looks for garbage among all objects of a test process")


@pytest.fixture(autouse=True)
def collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_loaded", 0)
    gc.unfreeze()
    yield
    gc.freeze()


def test_nothing_is_frozen_outside_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    begin_task()
    tune()
    assert gc.get_freeze_count() == 0


def test_a_worker_freezes_what_is_loaded_and_again_when_more_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counted roughly: other threads of a test process free some objects meanwhile."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    tune()
    first = gc.get_freeze_count()
    assert first > len(sys.modules)
    kept = [[number] for number in range(1000)]
    tune()
    assert gc.get_freeze_count() < first + len(kept)
    (tmp_path / "loaded_later.py").write_text("HELD = [[number] for number in range(1000)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_later")
    tune()
    assert gc.get_freeze_count() > first + 1.5 * len(kept)
    del sys.modules["loaded_later"]


def test_garbage_is_collected_before_it_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")

    class Node:
        gone = 0
        other: "Node"

        def __del__(self) -> None:
            Node.gone += 1

    first, second = Node(), Node()
    first.other, second.other = second, first
    del first, second
    tune()
    assert Node.gone == 2


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection, on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname()[:2])
        with client, server.accept()[0] as other:
            yield client, other


def test_a_worker_s_connections_send_at_once(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    assert not any(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in pair)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    tune()
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in pair)
    # It is not closed behind its owner's back.
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
def test_a_task_s_connections_confirm_at_once(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    for one in pair:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not any(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for one in pair)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    begin_task()
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for one in pair)


def test_a_planner_whose_jvm_has_gone_prints_no_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    end_quietly()
    assert sys.excepthook is sys.__excepthook__, "outside a worker"
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    end_quietly()
    for first, then, shown in (
        (EOFError, BrokenPipeError, False), (EOFError, None, True), (ValueError, BrokenPipeError, True),
        (None, ConnectionResetError, True),
    ):  # fmt: skip
        try:
            try:
                if first is not None:
                    raise first
            finally:
                if then is not None:
                    raise then
        except (EOFError, ValueError, ConnectionError) as problem:
            sys.excepthook(type(problem), problem, problem.__traceback__)
        assert ("Traceback" in capsys.readouterr().err) == shown, (first, then)
