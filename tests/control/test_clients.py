"""The two clients: over HTTP and on the ledger itself; what one does the other sees, and they raise the same errors."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest

from spark_ext.control.client import Client, LocalClient
from spark_ext.control.event_state import EventState
from spark_ext.control.history import Filter
from spark_ext.control.http_client import ControlClient
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import ConfigurationError, TransientError
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.ledger.view import event_of
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Event
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from tests.control.states import State
from tests.support.waiting import until


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture(params=["http", "local"])
def client(state: State, request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "local":
        yield LocalClient(state.path, requested_by="ann", origin="cli")
        return
    with ControlServer(state.path) as server, ControlClient(server.url, server.token or "") as found:
        yield found


def set_key(value: Any, **more: Any) -> Request:
    return Request("set_config", "job", {"key": "k", "value": value}, **more)


def event(state: State, one: EventState) -> Event:
    (row,) = [row for row in state.ledger.table(ControlEventRow).rows() if row.event_id == one.event_id]
    return event_of(row)


def refusal(act: Any) -> Refusal:
    with pytest.raises(ControlRefused) as refused:
        act()
    assert refused.value.what and refused.value.kept and refused.value.do
    return refused.value.refusal


def test_sends_and_finds_events(state: State, client: Client) -> None:
    first = client.send(set_key(1))
    second = client.send(
        Request("pause", "source:q-in", delivery="aligned", expires_at=datetime(2099, 1, 1, tzinfo=timezone.utc))
    )
    assert (first.status, first.value, first.requested_by) == (
        "accepted", {"key": "k", "value": 1}, "local" if isinstance(client, ControlClient) else "ann",
    )  # fmt: skip
    assert (second.delivery, second.expires_at) == ("aligned", datetime(2099, 1, 1, tzinfo=timezone.utc))
    assert client.event(first.event_id).sequence == 1
    assert [one.sequence for one in client.events().events] == [2, 1]
    assert [one.sequence for one in client.events(Filter(kind=["pause"], target=["source:q-in"])).events] == [2]
    page = client.events(after=0, limit=1)
    assert [one.sequence for one in client.events(cursor=page.cursor).events] == [2]
    state.step(event(state, first), "applied", "q", 4, ms=8)
    found = client.event(first.event_id)
    assert (found.status, found.applied) == ("applied", {"q": 4})
    assert found.applied_ms is not None and 7 <= found.applied_ms <= 8  # events have whole ms, rows have more


def test_raises_what_the_log_refuses(state: State, client: Client) -> None:
    client.send(set_key(1, idempotency_key="a"))
    assert client.send(set_key(1, idempotency_key="a")).sequence == 1
    assert refusal(lambda: client.send(set_key(2, idempotency_key="a"))) is Refusal.KEY_REUSED
    assert refusal(lambda: client.send(Request("nonsense"))) is Refusal.UNKNOWN_KIND
    assert refusal(lambda: client.send(Request("pause", "x y"))) is Refusal.MALFORMED
    assert refusal(lambda: client.send(Request("pause", "query:x"))) is Refusal.UNKNOWN_TARGET
    assert refusal(lambda: client.send(set_key(float("nan")))) is Refusal.BAD_VALUE
    assert refusal(lambda: client.send(set_key({1, 2}))) is Refusal.BAD_VALUE
    assert refusal(lambda: client.send(Request("seek", "source:q-in/a", {"position": 1}))) is Refusal.BAD_VALUE
    assert refusal(lambda: client.send(set_key("x" * 200_000))) is Refusal.BAD_VALUE
    old = datetime(2001, 1, 1, tzinfo=timezone.utc)
    assert refusal(lambda: client.send(set_key(1, expires_at=old))) is Refusal.EXPIRED
    assert refusal(lambda: client.event("none")) is Refusal.UNKNOWN_TARGET
    assert refusal(lambda: client.events(cursor="x")) is Refusal.MALFORMED
    assert refusal(lambda: client.events(Filter(status=["x"]))) is Refusal.MALFORMED
    assert refusal(lambda: client.config("x")) is Refusal.UNKNOWN_TARGET
    assert refusal(lambda: client.config("q", 5)) is Refusal.UNKNOWN_TARGET
    assert len(state.ledger.table(ControlEventRow).rows()) == 1


def test_waits_for_the_final_status(state: State, client: Client) -> None:
    sent = client.send(set_key(1))
    assert client.wait(sent.event_id, 0.05).status == "accepted"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, sent.event_id)
        state.step(event(state, sent), "applied", "q", 4)
        state.step(event(state, sent), "failed", ms=20, reason="no")
        assert (waiting.result(30).status, waiting.result().reason) == ("failed", "no")


def test_shows_the_configuration_of_an_epoch(state: State, client: Client) -> None:
    state.epoch("q", 0, Configuration().after([event(state, client.send(set_key(1)))]))
    found = client.config("q")
    assert (found.epoch, found.configuration.user("q"), found.configuration.sequence) == (0, {"k": 1}, 1)
    assert client.config("q", 0) == found


def test_follows_what_happens(state: State, client: Client) -> None:
    first = client.send(set_key(1))
    seen: list[tuple[int, str]] = []

    def read() -> None:
        for one in itertools.islice(client.follow(after=0), 3):
            seen.append((one.sequence, one.status))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: seen == [(1, "accepted")], "the first event")
    state.step(event(state, first), "applied", "q", 1)
    until(lambda: len(seen) == 2, "its next state")
    state.step(event(state, first), "acknowledged", ms=20)
    reader.join(30)
    assert seen == [(1, "accepted"), (1, "applied"), (1, "acknowledged")]


def test_a_stream_continues_after_a_restart(state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from spark_ext.server.tokens import create

    file = tmp_path / "tokens"
    token = create(file, "ann")
    server = ControlServer(state.path, tokens=file)
    _, port = server.start()
    local = LocalClient(state.path)
    seen: list[int] = []

    def read() -> None:
        with ControlClient(server.url, token) as client:
            for one in client.follow(after=0):
                seen.append(one.sequence)
                if one.sequence == 2:
                    return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    local.send(set_key(1))
    until(lambda: seen == [1], "the first event")
    server.stop()
    until(lambda: "will retry" in caplog.text, "a warning")
    local.send(set_key(2))
    with ControlServer(state.path, tokens=file, port=port):
        reader.join(30)
    assert seen[-1] == 2 and set(seen) == {1, 2}
    assert [record.levelname for record in caplog.records if "reach" in record.message] == ["WARNING"]


def test_errors_of_the_server_are_errors_of_this_package(state: State) -> None:
    with ControlServer(state.path, limits=Limits(rate=0.01, burst=1, refusal_seconds=0)) as server:
        with ControlClient(server.url, "wrong", "orders") as client, pytest.raises(ConfigurationError, match="token"):
            client.events()
        with ControlClient(server.url, server.token or "", "orders") as client:
            client.events()
            with pytest.raises(ControlRefused) as busy:
                client.send(set_key(1))
            assert busy.value.refusal is Refusal.BUSY and busy.value.retry_after > 1
            url = server.url
    with ControlClient(url, "x", "orders") as client, pytest.raises(TransientError, match="cannot be reached"):
        client.events()


def test_a_request_beyond_the_limit_is_sent_again_when_told(state: State) -> None:
    with (
        ControlServer(state.path, limits=Limits(change_rate=1, change_burst=1, refusal_seconds=0)) as server,
        ControlClient(server.url, server.token or "") as client,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}) as other,
    ):
        assert client.send(set_key(1)).sequence == 1
        refused = other.post("/v1/jobs/orders/control", json={"kind": "pause", "target": "job"})
        assert refused.status_code == 429 and refused.json()["reason"] == "rate"
        assert refused.headers["retry-after"] == "1"
        assert other.get("/v1/jobs/orders/control").status_code == 200, "what changes nothing has a limit of its own"
        assert client.send(set_key(2)).sequence == 2


def test_a_request_whose_answer_was_lost_is_accepted_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with ControlServer(state.path) as server, ControlClient(server.url, server.token or "") as client:
        request, lost = client._http.request, [True]

        def loses_one(method: str, path: str, **more: Any) -> Any:
            answer = request(method, path, **more)
            if method == "POST" and lost.pop():
                lost.append(False)
                raise client._httpx.ReadError("the connection was reset")
            lost.append(False)
            return answer

        monkeypatch.setattr(client._http, "request", loses_one)
        assert client.send(set_key(1)).sequence == 1
    assert len(state.ledger.table(ControlEventRow).rows()) == 1
