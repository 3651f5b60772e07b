"""`sx.Control`: sending, waiting, looking, and its display in notebooks."""

import itertools
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import ConfigurationError, TransientError
from spark_ext.model.control import Event
from spark_ext.server.server import ControlServer
from spark_ext.steering.control import Control
from spark_ext.steering.sent import ControlNotDone, SentEvent
from spark_ext.steering.tables import short, standing_rows
from tests.control.states import State
from tests.support.waiting import until


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture(params=["ledger", "server"])
def control(request: pytest.FixtureRequest, state: State) -> Iterator[Control]:
    if request.param == "ledger":
        yield sx.Control(state.folder)
        return
    with ControlServer(state.path) as server, sx.Control(server.url, server.token) as made:
        yield made


def obey(state: State, sent: SentEvent, status: str, reason: str = "") -> None:
    event = Event(sent.sequence, sent.id, sent.kind, at_ms=int(sent.accepted_at.timestamp() * 1000))
    state.step(event, "applied", "q", 3)
    state.step(event, status, reason=reason, result={"n": 1}, ms=20)


def test_methods_send_kinds(control: Control) -> None:
    sent = [
        control.rate_limit("source:q-in", 5000, older_than="1 h"), control.rate_limit("source:q-in"), control.pause(),
        control.resume("query:q"), control.sample("source:q-in", 0.5), control.interval("10 s", "query:q"),
        control.checkpoint_config({"checkpoint_interval": "30 s"}), control.log_level("info"),
        control.set("k", None, query="q"), control.unset("k"), control.schema("k", True), control.checkpoint(),
        control.savepoint(Path("/kept")), control.drain(), control.stop(), control.restart("query:q"),
        control.seek("q-in", "a/b", {"file": "x"}, yes=True), control.dump(scope="driver"), control.dump(heap=True),
        control.broadcast("flush", [1]),
    ]  # fmt: skip
    assert [(one.kind, one.target, one.value) for one in sent] == [
        ("rate_limit", "source:q-in", {"rows_per_second": 5000, "older_than": 3_600_000}),
        ("rate_limit", "source:q-in", None), ("pause", "job", None), ("resume", "query:q", None),
        ("sample", "source:q-in", {"fraction": 0.5}), ("trigger_interval", "query:q", {"interval": 10_000}),
        ("checkpoint_config", "job", {"checkpoint_interval": 30_000}),
        ("log_level", "job", {"level": "INFO", "logger": ""}), ("set_config", "query:q", {"key": "k", "value": None}),
        ("set_config", "job", {"key": "k", "unset": True}), ("config_schema", "job", {"key": "k", "schema": True}),
        ("checkpoint", "job", None), ("savepoint", "job", {"path": "/kept"}), ("drain", "job", None),
        ("stop", "job", None), ("restart", "query:q", None),
        ("seek", "source:q-in/a/b", {"position": {"file": "x"}, "yes": True}), ("dump", "job", {"scope": "driver"}),
        ("dump", "job", {"heap": True}), ("broadcast", "job", {"type": "flush", "value": [1]}),
    ]  # fmt: skip
    assert [one.sequence for one in sent] == list(range(1, 21))
    assert [one.id for one in sent] == [one.event_id for one in reversed(control.events(limit=1_000))]


def test_waiting_ends_with_the_final_status(control: Control, state: State) -> None:
    sent = control.set("k", 1)
    assert (sent.status, sent.applied, sent.result) == ("accepted", {}, None)
    with pytest.raises(TimeoutError, match="event 1, is accepted after 0"):
        sent.wait(0)
    driver = threading.Thread(target=obey, args=(state, sent, "acknowledged"))
    driver.start()
    assert sent.wait(60) is sent
    driver.join()
    assert (sent.status, sent.applied, sent.result) == ("acknowledged", {"q": 3}, {"n": 1})
    assert sent.wait(0).status == "acknowledged"


@pytest.mark.parametrize("status", ["rejected", "failed", "expired"])
def test_anything_but_acknowledged_is_an_error(state: State, status: str) -> None:
    sent = sx.Control(state.path).pause()
    obey(state, sent, status, "because")
    with pytest.raises(ControlNotDone, match="because") as found:
        sent.wait(60)
    assert found.value.event is not None and found.value.event.status == status
    assert sent.wait(check=False).reason == "because"


def test_how_an_event_is_sent(control: Control) -> None:
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    sent = control.pause(delivery="aligned", idempotency_key="p", expires=soon)
    assert (sent.state.delivery, sent.state.idempotency_key) == ("aligned", "p")
    assert sent.state.expires_at is not None and abs(sent.state.expires_at - soon) < timedelta(milliseconds=2)
    assert control.pause(delivery="aligned", idempotency_key="p", expires=soon).id == sent.id
    late = control.set("k", 1, expires="10 min").state.expires_at
    assert late is not None and timedelta(minutes=9) < late - datetime.now(timezone.utc) < timedelta(minutes=11)
    with pytest.raises(TimeoutError):
        control.pause(wait=0.01)


def test_refusals_are_the_same_over_ledger_and_server(control: Control) -> None:
    for kind in ("nonsense", "release"):
        with pytest.raises(ControlRefused) as refused:
            control.send(kind, "job", None)
        assert refused.value.refusal is Refusal.UNKNOWN_KIND
    with pytest.raises(ControlRefused, match="expires"):
        control.pause(expires="soon")
    with pytest.raises(ControlRefused):
        control.event("none")
    with pytest.raises(ControlRefused):
        control.config("none")
    assert control.events() == []


@pytest.mark.slow(1, "2,500 events")
def test_events_are_found_on_several_pages(state: State) -> None:
    control = sx.Control(state.path)
    ControlLog(state.ledger).accept([Request("set_config", "job", {"key": "k", "value": n}) for n in range(2_500)])
    assert [one.sequence for one in control.events(limit=2_200)] == list(range(2_500, 300, -1))
    assert [one.sequence for one in control.events(after=2_498)] == [2_499, 2_500]
    assert len(control.events(after=0, limit=10_000)) == 2_500
    assert control.config()["config"] == {"k": 2_499}


def test_what_is_in_force_follows_from_all_events(control: Control) -> None:
    assert control.config()["standing"] == {}
    control.pause()
    control.set("k", 1, delivery="aligned")
    found = control.config()
    assert found["standing"] == {"pause": {"job": {"": None}}}
    assert found["aligned"] == {"2": {"kind": "set_config", "target": "job", "value": {"key": "k", "value": 1}}}
    control.resume()
    assert control.config()["standing"] == {}
    assert [row["value"] for row in standing_rows(found)] == ["", "k = 1 (aligned, event 2: waits for a barrier)"]


def test_events_are_followed(control: Control, state: State) -> None:
    first = control.set("a", 1)
    found = control.follow(after=0)
    assert next(found).sequence == 1
    second = control.set("b", 2)
    assert next(found).sequence == 2
    obey(state, first, "acknowledged")
    seen = list(itertools.islice((one for one in found if one.final), 1))
    assert [(one.sequence, one.status) for one in seen] == [(1, "acknowledged")]
    assert second.status == "accepted"


def test_urls_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_EXT_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="no token for the server"):
        sx.Control("http://127.0.0.1:1")
    for wrong in (
        "http://user:secret@host", "https://host/v1", "https://host/v1/jobs/a/b", "https://host?token=secret",
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="parts that it may not have") as refused:
            sx.Control(wrong, "token")
        assert "secret" not in str(refused.value)
    monkeypatch.setattr("spark_ext.control.client.ATTEMPTS", 1)
    with sx.Control("http://127.0.0.1:1/v1/jobs/a", "token-of-a-test") as control:
        assert repr(control) == "<Control of http://127.0.0.1:1/v1/jobs/a>"
        with pytest.raises(TransientError, match="cannot be reached"):
            control.pause()
        assert "cannot be reached" in control._repr_html_(), "a display raises nothing"


def test_displays(control: Control) -> None:
    assert control._repr_html_() == "<p>No control event is in force.</p><p>No control events.</p>"
    sent = control.set("<b>", "a & b")
    shown = control._repr_html_()
    assert "&lt;b&gt; = &quot;a &amp; b&quot;" in shown and "<b>" not in shown
    assert "set_config" in sent._repr_html_() and repr(sent) == "<SentEvent 1 set_config job: accepted>"
    assert control.events()._repr_html_().count("<tr>") == 2
    assert short({"a": {"b": "c" * 100}}).endswith("...")


class TestButtons:
    """The widget, clicked without a browser."""

    @pytest.fixture
    def panel(self, control: Control) -> Any:
        pytest.importorskip("ipywidgets")
        from spark_ext.steering.control import Panel

        return Panel(control, control.sources, control._repr_html_)

    def test_pause_and_limits_act_at_once(self, panel: Any, control: Control) -> None:
        panel.pause.click()
        assert panel.said.value == "event 1: pause job accepted"
        assert "pause" in panel.view.value
        field, put, lift = panel.limits["q-in"]
        field.value = 250
        put.click()
        assert control.events(limit=1)[0].value == {"rows_per_second": 250}
        lift.click()
        panel.resume.click()
        assert control.config()["standing"] == {}
        assert set(panel.limits) == {"q-in", "r-in"}

    def test_drain_and_stop_ask_first(self, panel: Any, control: Control) -> None:
        for first, sure, not_sure in (panel.drain, panel.stop):
            assert [one.layout.display for one in (first, sure, not_sure)] == [None, "none", "none"]
            first.click()
            assert (first.layout.display, sure.layout.display) == ("none", None)
            not_sure.click()
            assert (first.layout.display, sure.layout.display) == (None, "none")
        assert control.events() == []
        panel.drain[0].click()
        panel.drain[1].click()
        assert [one.kind for one in control.events()] == ["drain"]

    def test_an_error_is_shown(self, state: State) -> None:
        pytest.importorskip("ipywidgets")
        from spark_ext.steering.control import Panel

        elsewhere = sx.Control(state.folder / "none")
        panel = Panel(elsewhere, elsewhere.sources, elsewhere._repr_html_)
        panel.pause.click()
        assert "no job was ever started" in panel.said.value

    def test_without_ipywidgets_it_is_the_table(self, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
        control = sx.Control(state.path)
        assert type(control.buttons()).__name__ == "VBox"
        monkeypatch.setattr("spark_ext.steering.control.find_spec", lambda name: None)
        assert control.buttons() is control


def test_a_relative_path_is_one_job_wherever_the_process_goes(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(state.folder.parent)
    control = sx.Control(state.folder.name)
    monkeypatch.chdir(tmp_path.parent)
    assert control.pause().sequence == 1
    until(lambda: len(sx.Control(state.path).events()) == 1, "it is in the ledger")
