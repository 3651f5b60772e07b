"""A gateway that connects to a feed: what it sends is in the inbox, or the time for which it is missing is recorded."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.sync import server

from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StateError
from spark_ext.gateway import feed as product
from spark_ext.gateway.feed import Feed, Subscription
from spark_ext.ingest.channel import OwnedChannel
from spark_ext.ingest.description import DRAIN
from spark_ext.storage import LocalFolder, writer_of
from tests.gateway.served import NAME, describe, stored
from tests.support.processes import Tree
from tests.support.waiting import until

SUBSCRIBE, RESUME = '{"op":"subscribe"}', '{"op":"subscribe","after":"{cursor}"}'


class Sender:
    """A feed that sends numbered messages, from the next one or after a cursor, and can be cut off."""

    def __init__(self) -> None:
        self.messages: list[str | bytes] = []
        self.status: list[int] = []  # with which the next handshakes are refused
        self.asked: list[str] = []
        self.open: list[Any] = []
        self.sent = 0
        self._more = threading.Condition()
        self._server = server.serve(self._serve, "127.0.0.1", 0, process_request=self._admit)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/feed"

    def send(self, *messages: str | bytes | int) -> None:
        with self._more:
            self.messages += [json.dumps({"id": one}) if isinstance(one, int) else one for one in messages]
            self._more.notify_all()

    def cut(self) -> None:
        """Close all connections as a crash does."""
        for one in self.open:
            with suppress(OSError):
                one.socket.shutdown(2)
        self.open.clear()

    def close(self) -> None:
        self.cut()
        self._server.shutdown()
        with self._more:
            self._more.notify_all()
        self._thread.join()

    def _admit(self, connection: Any, request: Any) -> Any:
        if self.status:
            return connection.respond(HTTPStatus(self.status.pop(0)), "not now")
        return None

    def _serve(self, connection: Any) -> None:
        frame = connection.recv()
        self.asked.append(frame)
        after = json.loads(frame).get("after")
        with self._more:
            at = len(self.messages) if after is None else int(after) + 1
        self.open.append(connection)
        while connection in self.open:
            with self._more:
                self._more.wait(0.1)
            for message in self.messages[at:]:
                connection.send(message)
                self.sent += 1
                at += 1


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sender]:
    for name, seconds in (("SAVE_EVERY", 0.02), ("LOOK_EVERY", 0.02), ("STEADY", 0.05)):
        monkeypatch.setattr(product, name, seconds)
    found = Sender()
    try:
        yield found
    finally:
        found.close()


@contextmanager
def running(state: Path, subscription: Subscription) -> Iterator[tuple[Feed, list[Any]]]:
    """A feed in a thread, and what became of it."""
    feed, asked, ended = Feed(str(state), NAME, "g1", subscription), threading.Event(), list[Any]()

    def run() -> None:
        try:
            ended.append(feed.run(asked))
        except SparkExtError as problem:
            ended.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield feed, ended
    finally:
        asked.set()
        thread.join(60)
        assert not thread.is_alive()


def plain(sender: Sender) -> Subscription:
    return Subscription(sender.url, (SUBSCRIBE,))


def with_cursor(sender: Sender) -> Subscription:
    return Subscription(sender.url, (SUBSCRIBE,), "/id", (RESUME,))


def gaps(state: Path) -> list[dict[str, Any]]:
    folder = LocalFolder(state / "inboxes" / NAME / "gaps")
    return [json.loads(folder.read(name)) for name in sorted(folder.names()) if writer_of(name) is None]


def ids(state: Path) -> list[int]:
    return [json.loads(row["body"])["id"] for row in stored(state)]


def connected(sender: Sender, times: int = 1) -> None:
    until(lambda: len(sender.asked) == times and bool(sender.open), "the gateway has subscribed")


def test_a_feed_with_a_cursor_is_continued_where_it_was(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path, "pointer", pointer="/id")
    with running(tmp_path, with_cursor(sender)) as (feed, _):
        connected(sender)
        sender.send(0, 1, 2)
        until(lambda: feed.kept == 3, "they are kept")
        sender.cut()
        sender.send(3)
        until(lambda: feed.kept == 4, "it is connected again")
    sender.send(4, 5)
    with running(tmp_path, with_cursor(sender)) as (feed, _):
        until(lambda: feed.kept == 2, "the next process has what came meanwhile")
    assert ids(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert [json.loads(one).get("after") for one in sender.asked] == [None, "2", "3"]
    assert gaps(tmp_path) == []
    assert all(row["identity"] is not None for row in stored(tmp_path))


def test_without_a_cursor_each_time_that_may_be_missing_is_recorded(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path)
    with running(tmp_path, plain(sender)) as (feed, _):
        connected(sender)
        sender.send(0)
        until(lambda: feed.kept == 1, "it is kept")
        assert gaps(tmp_path) == [], "before the first connection nothing was asked for"
        sender.cut()
        connected(sender, 2)
        until(lambda: gaps(tmp_path), "the gap is recorded")
    with running(tmp_path, plain(sender)):
        connected(sender, 3)
        until(lambda: len(gaps(tmp_path)) == 2, "the second one is recorded")
    lost, stopped = gaps(tmp_path)
    assert lost["reason"].startswith("the connection was lost: ")
    assert stopped["reason"] == "the gateway did not run"
    assert lost["from"] < lost["to"] <= stopped["from"] < stopped["to"]


def test_messages_without_what_the_inbox_asks_for_are_kept_all_the_same(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path, "pointer", pointer="/id")
    with running(tmp_path, with_cursor(sender)) as (feed, _):
        connected(sender)
        sender.send('{"event":"subscribed"}', b"\x00\xff", 2)
        until(lambda: feed.kept == 3, "they are kept")
    rows = stored(tmp_path)
    assert [row["body"] for row in rows] == [b'{"event":"subscribed"}', b"\x00\xff", b'{"id": 2}']
    assert [row["event_id"] for row in rows] == [None, None, "2"]


def test_a_feed_that_is_faster_than_the_job_is_not_read(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path, max_bytes=200_000, max_body=100_000)
    with running(tmp_path, plain(sender)) as (feed, ended):
        connected(sender)
        sender.send(*(os.urandom(10_000) for _ in range(5_000)))
        until(lambda: feed.kept >= 10, "some are kept")
        before = -1

        def stands() -> bool:
            nonlocal before
            before, now = sender.sent, sender.sent
            return threading.Event().wait(0.3) or sender.sent == now

        until(stands, "the feed is slowed down")
        assert sender.sent < 5_000
        assert ended == []
        stopped = time.time_ns() // 1_000
    assert len(stored(tmp_path)) == feed.kept < 30
    with running(tmp_path, plain(sender)):
        until(lambda: gaps(tmp_path), "what was not kept is in the gap")
    assert gaps(tmp_path)[0]["from"] < stopped


def test_a_drain_ends_it(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path)
    with running(tmp_path, plain(sender)) as (feed, ended):
        connected(sender)
        sender.send(0)
        until(lambda: feed.kept == 1, "it is kept")
        LocalFolder(tmp_path / "inboxes" / NAME).write(DRAIN, '{"start": "x"}')
        until(lambda: ended, "it has ended")
    assert ended == [True]
    assert ids(tmp_path) == [0]


@pytest.mark.parametrize("status", [401, 404])
def test_a_feed_that_is_down_is_tried_again_until_it_refuses(
    tmp_path: Path, sender: Sender, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    describe(tmp_path)
    sender.status = [503, 429, status]
    with caplog.at_level(logging.WARNING), running(tmp_path, plain(sender)) as (_, ended):
        until(lambda: ended, "it has ended")
    assert [text.split("status ")[1][:3] for text in caplog.messages if "next attempt in" in text] == ["503", "429"]
    assert isinstance(ended[0], ConfigurationError)
    assert f"refuses the connection with status {status}" in str(ended[0])


def test_a_message_that_is_too_large_ends_it_by_name(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path, max_body=1000)
    with running(tmp_path, plain(sender)) as (_, ended):
        connected(sender)
        sender.send(0, "x" * 1001)
        until(lambda: ended, "it has ended")
    assert isinstance(ended[0], DataError)
    assert "larger than 1000 bytes" in str(ended[0])
    assert ids(tmp_path) == [0]


def test_messages_that_could_not_be_kept_are_kept_later(
    tmp_path: Path, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, commit = list[int](), OwnedChannel.commit

    def once(self: OwnedChannel, requests: Sequence[Any]) -> int:
        if not failed:
            failed.append(len(requests))
            self.broken = True
            raise OSError("the disk is full")
        return commit(self, requests)

    monkeypatch.setattr(OwnedChannel, "commit", once)
    describe(tmp_path, "pointer", pointer="/id")
    with running(tmp_path, with_cursor(sender)) as (feed, _):
        connected(sender)
        sender.send(0, 1, 2)
        until(lambda: feed.kept == 3, "they are kept")
    assert failed
    assert sorted(ids(tmp_path)) == [0, 1, 2]


def test_a_disk_that_is_full_ends_nothing(
    tmp_path: Path, sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("full")

    describe(tmp_path, "pointer", pointer="/id")
    with running(tmp_path, with_cursor(sender)) as (feed, _):
        connected(sender)
        sender.send(0)
        until(lambda: feed.kept == 1, "it is kept")
        with monkeypatch.context() as broken:
            broken.setattr(product.Place, "save", full)
            sender.send(1)
            until(lambda: "the place in the feed cannot be stored: full" in caplog.text, "it is said")
        sender.send(2)
        until(lambda: feed.kept == 3, "they are kept")
    assert ids(tmp_path) == [0, 1, 2]


def test_a_damaged_place_is_refused(tmp_path: Path, sender: Sender) -> None:
    describe(tmp_path)
    for text, what in (("{", "is damaged"), ('{"version":2,"cursor":"","at":1}', "has version 2")):
        LocalFolder(tmp_path / "inboxes" / NAME).write("gateways/g1/feed.json", text)
        with running(tmp_path, plain(sender)) as (_, ended):
            until(lambda: ended, "it has ended")
        assert isinstance(ended[0], StateError)
        assert what in str(ended[0])


def test_gaps_that_no_job_reports_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MOST_GAPS", 2)
    folder = LocalFolder(tmp_path / "inboxes" / NAME)
    folder.write("gaps/g-1-00000000000000000001.json", '{"from": 0, "to": 1}')  # of another gateway
    place = product.Place(folder, "g", "x")
    for number in range(5):
        place.connected(f"reason {number}")
        place.lost(number + 1)
    first, rest = sorted(gaps(tmp_path), key=lambda one: int(one["to"]))[1:]
    assert (first["from"], first["reason"]) == (1, "reason 1")
    assert (rest["from"], rest["reason"]) == (2, "reason 4"), "all later ones"


@pytest.mark.parametrize(
    ("subscription", "what"),
    [
        (Subscription("https://host/x"), "not that of a WebSocket"),
        (Subscription("ws://host", cursor="id", resume=(RESUME,)), "'id' is not a JSON pointer"),
        (Subscription("ws://host", cursor="/id"), "a cursor needs --cursor, and"),
        (Subscription("ws://host", resume=(RESUME,)), "a cursor needs --cursor, and"),
        (Subscription("env:SPARK_EXT_NOT_SET"), "cannot be read"),
    ],
)
def test_what_is_not_a_feed_is_refused(subscription: Subscription, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        subscription.opened("inbox 'orders'")


def test_a_cursor_is_put_into_the_address_or_the_frames() -> None:
    found = Subscription("wss://h/x?after={cursor}", ("a",), "/id", ('{"after":"{cursor}"}',)).opened("x")
    assert (found.frames(""), found.address("")) == (("a",), "wss://h/x?after=")
    assert (found.frames('a"b'), found.address("a b&c")) == (('{"after":"a\\"b"}',), "wss://h/x?after=a%20b%26c")


@pytest.mark.slow(15, "starts the command twice")
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path, sender: Sender) -> None:
    state = tmp_path / "s"
    describe(state, "pointer", pointer="/id")
    place = LocalFolder(state / "inboxes" / NAME)
    command: list[str | Path] = [sys.executable, "-m", "spark_ext", "ingest", "connect", state, NAME]
    command += ["--url", sender.url, "--subscribe", SUBSCRIBE, "--cursor", "/id", "--resume", RESUME]

    def cursor() -> str:
        return str(json.loads(place.find("gateways/feed/feed.json") or b'{"cursor":""}')["cursor"])

    with Tree(command, tmp_path / "log", {}) as tree:
        connected(sender)
        sender.send(*range(200))
        until(lambda: cursor() == "199", "a cursor is stored")
        sender.send(*range(200, 400))
        until(lambda: sender.sent >= 300, "more is sent")
        tree.kill()
    sender.cut()
    with Tree(command, tmp_path / "log", {}) as tree:
        until(lambda: cursor() == "399", "the rest is stored")
        tree.terminate()
        assert tree.poll() == 0
        assert "messages were kept" in tree.text()
    assert sorted(set(ids(state))) == list(range(400))
    assert len({row["identity"] for row in stored(state)}) == 400
