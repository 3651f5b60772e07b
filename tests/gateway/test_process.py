"""The process of a gateway: its end, its death, and what others see of it."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_ext.failpoints import VARIABLE as FAILPOINTS
from tests.gateway.served import NAME, SECRETS, VARIABLE, Client, describe, signed, stored
from tests.support.processes import Tree
from tests.support.waiting import until
from tests.test_cli import refused, spark_ext


class Process:
    def __init__(self, tree: Tree, printed: dict[str, Any]) -> None:
        self.tree, self.url, self.token = tree, printed["url"], printed["token"]
        self.port = int(self.url.split(":")[2].partition("/")[0])
        self.client = Client(self.port, self.token)


@contextmanager
def started(state: Path, *arguments: str | Path, gateway: str = "g1", **env: str) -> Iterator[Process]:
    command: list[str | Path] = [sys.executable, "-m", "spark_ext", "ingest", "serve"]
    log = state.parent / f"{gateway}.log"
    log.unlink(missing_ok=True)
    with Tree([*command, state, NAME, "--gateway", gateway, "--json", *arguments], log, env) as tree:

        def printed() -> bool:
            assert tree.poll() is None, tree.text()
            return any(line.startswith("{") for line in tree.text().splitlines())

        until(printed, "the gateway has said where it is")
        yield Process(tree, json.loads(next(line for line in tree.text().splitlines() if line.startswith("{"))))


def send_until_it_ends(own: Process, scheme: str, acknowledged: list[str], number: int) -> None:
    for one in range(10_000):
        id_ = f"msg_{number}_{one}"
        body = json.dumps({"id": id_}).encode()
        try:
            if own.client.post(body, **signed(scheme, body, id=id_)).status != 202:
                return
        except (OSError, EOFError, ValueError):
            return
        acknowledged.append(id_)


def senders(own: Process, acknowledged: list[str], scheme: str = "standard") -> list[threading.Thread]:
    threads = [
        threading.Thread(target=send_until_it_ends, args=(own, scheme, acknowledged, number)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.slow(6, reason="two starts of a process each")
@pytest.mark.parametrize("point", ["ingest.synced=kill#20", "ingest.before_entry=kill"])
def test_what_was_acknowledged_before_a_kill_is_there_after_it(tmp_path: Path, point: str) -> None:
    state, acknowledged = tmp_path / "state", list[str]()
    describe(state, "standard")
    secret = {VARIABLE: SECRETS["standard"]}
    with started(state, **secret, **{FAILPOINTS: point}) as own:
        threads = senders(own, acknowledged)
        assert own.tree.wait(60) == -signal.SIGKILL
        for thread in threads:
            thread.join()
    assert acknowledged
    with started(state, **secret) as own:
        assert own.client.post(b"after", **signed("standard", b"after", id="after")).status == 202
        os.kill(own.tree.pid, signal.SIGTERM)
        assert own.tree.wait(60) == 0
    rows = stored(state)
    assert {*acknowledged, "after"} <= {row["event_id"] for row in rows}
    assert [row["sequence"] for row in rows] == list(range(len(rows)))
    for text in (own.tree.text(), (tmp_path / "g1.log").read_text()):
        assert SECRETS["standard"] not in text


@pytest.mark.slow(6, reason="two processes, and a command")
def test_a_stop_under_load_loses_nothing_and_two_share_a_port(tmp_path: Path) -> None:
    state, acknowledged = tmp_path / "state", list[str]()
    describe(state, "standard")
    secret = {VARIABLE: SECRETS["standard"]}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with (
        started(state, "--port", port, "--reuse-port", **secret) as one,
        started(state, "--port", port, "--reuse-port", gateway="g2", **secret) as other,
    ):
        threads = senders(one, acknowledged)
        until(lambda: len(acknowledged) > 40, "events are accepted")
        for own in (one, other):
            os.kill(own.tree.pid, signal.SIGTERM)
        assert [own.tree.wait(60) for own in (one, other)] == [0, 0]
        for thread in threads:
            thread.join()
    rows = stored(state)
    assert set(acknowledged) <= {row["event_id"] for row in rows}
    assert {row["sequence"] for row in rows} == set(range(max(row["sequence"] for row in rows) + 1))
    sealed = json.loads(spark_ext("ingest", "seal", state, NAME, "g1", "--json").stdout)
    assert sealed == {"gateway": "g1", "events": sealed["events"], "lost_after": None} and sealed["events"] <= len(rows)


def test_what_the_commands_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(tmp_path)
    serve = ("ingest", "serve", tmp_path, NAME, "--gateway")
    assert "other characters" in refused(*serve, "a/b")
    assert "no gateway of this name" in refused("ingest", "seal", tmp_path, NAME, "g1")
    assert "does not exist" in refused("ingest", "seal", tmp_path, "other", "g1")
    monkeypatch.setitem(sys.modules, "httptools", None)
    assert "pip install 'spark-ext[ingest]'" in refused(*serve, "g1")
