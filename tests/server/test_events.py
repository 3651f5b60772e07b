"""The stream of lifecycle events: a client that comes again misses nothing that the ledger has."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.incidents.types import EventKind, LifecycleEvent
from spark_ext.server import event_log
from spark_ext.server.answers import LifecycleEventAnswer
from spark_ext.server.event_log import EventLog, Followed, Mark
from spark_ext.server.limits import Limits
from spark_ext.server.problems import Problem
from spark_ext.server.server import ControlServer
from spark_ext.views.downtime import downtime
from spark_ext.views.status import read_status
from tests.control.states import State, now
from tests.ledger import rows as made
from tests.server.served import JOB, Served, client, serving
from tests.support.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


class Lab:
    """An event log over events that a test adds, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.events, self.job = NOON, dict[str, LifecycleEvent](), "abcdef0123"
        monkeypatch.setattr(event_log, "POLL_EVERY", 0.0)
        monkeypatch.setattr(event_log, "events_since", lambda facts, since, sources: {
            one: event for one, event in self.events.items() if event.at >= since
        })  # fmt: skip
        self.server()

    def server(self) -> None:
        """Another server, or the same one after a restart."""
        self.log = EventLog(self._facts, lambda: lambda query: (), lambda: self.now)

    def _facts(self) -> Any:
        return SimpleNamespace(newest={"job_id": self.job})

    def add(self, name: str, late: timedelta = timedelta()) -> None:
        """An event that becomes known now, and happened before."""
        at = self.now - late
        event = LifecycleEvent(event_id=name, kind=EventKind.STATE, at=at, new="RUNNING", incarnation=1)
        self.events = dict(sorted({**self.events, name: event}.items(), key=lambda one: one[1].at))

    def follow(self, mark: Mark | None = None, since: datetime | None = None) -> Followed:
        return Followed(self.log, None if mark is None else Mark.parse(str(mark)), since)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def names(given_: Any) -> list[str]:
    return [event.event_id for _, event in given_]


def test_a_client_that_comes_again_continues_after_its_mark(lab: Lab) -> None:
    lab.add("before")
    stream = lab.follow()
    assert names(stream.take()) == []
    for name in "abc":
        lab.now += timedelta(minutes=1)
        lab.add(name)
    (mark, event), *_ = list(stream.take())
    assert event.event_id == "a"
    lab.server()
    assert names(lab.follow(mark).take()) == ["b", "c"]
    assert names(lab.follow(since=NOON).take()) == ["before", "a", "b", "c"]


def test_what_came_late_while_it_was_away_is_given(lab: Lab) -> None:
    stream = lab.follow()
    lab.now += timedelta(minutes=30)
    lab.add("a")
    ((mark, _),) = stream.take()
    lab.add("late", timedelta(minutes=20))
    assert names(stream.take()) == ["late"], "one that is connected gets it at once"
    assert names(lab.follow(mark).take()) == ["late", "a"]


def test_a_clock_that_is_ahead_hides_nothing(lab: Lab) -> None:
    stream = lab.follow()
    lab.add("ahead", -timedelta(hours=5))
    ((mark, _),) = stream.take()
    lab.now += timedelta(hours=2)
    lab.add("a")
    assert names(lab.follow(mark).take()) == ["a", "ahead"]


def test_what_cannot_be_given_is_named(lab: Lab) -> None:
    stream = lab.follow()
    lab.add("a")
    ((mark, _),) = stream.take()
    lab.now += timedelta(hours=25)
    lab.add("b")
    again = lab.follow(mark)
    assert again.lost is not None and again.lost["since"] == NOON.isoformat() and names(again.take()) == ["b"]
    assert lab.follow(since=NOON).lost is not None and lab.follow().lost is None
    lab.job = "another one"
    lab.server()
    other = lab.follow(mark)
    assert other.lost is not None and "another job" in other.lost["reason"] and names(other.take()) == ["b"]
    with pytest.raises(Problem, match="not of this stream"):
        Mark.parse("7")


ADD, TAKE = st.tuples(st.just("add"), st.integers(0, 55)), st.tuples(st.just("take"), st.integers(0, 3))


@given(st.lists(st.one_of(ADD, TAKE, st.just(("restart", 0))), max_size=40))
def test_every_event_is_given_whenever_it_comes(actions: list[tuple[str, int]]) -> None:
    """A client reads some events of a batch and is cut off; servers come and go; rows are up to an hour late."""
    with pytest.MonkeyPatch.context() as patch:
        lab, got, mark, late = Lab(patch), list[str](), None, False
        stream = lab.follow()
        for number, (action, value) in enumerate(actions):
            lab.now += timedelta(minutes=1)
            if action == "add":
                lab.add(str(number), timedelta(minutes=value))
                late = late or value > 0
            elif action == "take":
                batch = list(stream.take())
                got += names(batch[:value])
                mark = batch[:value][-1][0] if batch[:value] else mark
                if value < len(batch) and mark is not None:
                    stream = lab.follow(mark)
                elif value < len(batch):
                    stream = lab.follow(since=NOON - timedelta(hours=1))
            elif mark is not None:
                lab.server()
                stream = lab.follow(mark)
        got += names(stream.take())
        assert set(got) == lab.events.keys()
        assert late or len(got) == len(set(got)), "without late rows each comes once"


# -- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    begin = now() - timedelta(minutes=5)
    state = State(tmp_path_factory.mktemp("events") / "state", started=begin)
    for seconds, name, operator in (
        (1, "RUNNING", ""),
        (2, "RUNNING", "q"),
        (60, "RESTARTING", ""),
        (90, "RUNNING", ""),
    ):
        state.writer.append(made.state(name, operator, begin + timedelta(seconds=seconds)))
    state.writer.append([made.incident(1, begin + timedelta(seconds=60)), made.checkpoint(3, at=begin)])
    with serving(state, limits=Limits(waiting=2)) as found:
        yield found


def messages(served: Served, server: ControlServer | None = None, **more: Any) -> Iterator[dict[str, str]]:
    """The messages of a stream."""
    with client(server or served.server, served.token) as http, http.stream("GET", f"{JOB}/events", **more) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        message: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                message[name] = value
            else:
                yield message
                message = {}


def first(found: Iterator[dict[str, str]], number: int) -> list[dict[str, str]]:
    return [one for _, one in zip(range(number), (one for one in found if "data" in one), strict=False)]


def test_the_stream_resumes_at_another_server(served: Served) -> None:
    begin = (now() - timedelta(hours=2)).isoformat()
    got = first(messages(served, params={"since": begin, "kind": ["state", "source"]}), 5)
    events = [json.loads(one["data"]) for one in got]
    assert [(one["kind"], one["query"], one["source"], one["old"], one["new"]) for one in events] == [
        ("state", "", "", "CREATED", "RUNNING"), ("state", "q", "", "CREATED", "RUNNING"),
        ("source", "q", "q-in", None, "RUNNING"), ("state", "", "", "RUNNING", "RESTARTING"),
        ("state", "", "", "RESTARTING", "RUNNING"),
    ]  # fmt: skip
    assert [one["event"] for one in got] == [one["kind"] for one in events]
    assert {*events[0]} == {*LifecycleEventAnswer.model_fields}, "as the description has it"
    with ControlServer(served.state.path) as other:
        given = messages(Served(served.state, other), headers={"Last-Event-ID": got[2]["id"]}, params={"kind": "state"})
        rest = first(given, 2)
    assert [json.loads(one["data"])["event_id"] for one in rest] == [one["event_id"] for one in events[3:]]


def test_a_new_row_comes_to_a_client_that_waits(served: Served) -> None:
    found = messages(served)
    assert next(found) == {"retry": "1000"}
    served.state.writer.append(made.checkpoint(4, status="FAILED", at=now()))
    (one,) = first(found, 1)
    assert (one["event"], json.loads(one["data"])["details"]["checkpoint_id"]) == ("checkpoint", 4)
    found.close()  # type: ignore[attr-defined]


def test_the_stream_has_limits_as_the_other_routes(served: Served) -> None:
    assert served.http.get(f"{JOB}/events", params={"kind": "channel"}).status_code == 422
    assert served.http.get(f"{JOB}/events", headers={"Last-Event-ID": "7"}).status_code == 400
    assert client(served.server).get(f"{JOB}/events").status_code == 401
    streams: list[Iterator[dict[str, str]]] = []

    def all_taken() -> bool:
        """Those of clients that have gone are given back in a moment."""
        streams.append(messages(served))
        try:
            return next(streams[-1]) != {"retry": "1000"}
        except AssertionError:
            return len(streams) > 2

    until(all_taken, "the limit", 20)
    assert served.http.get(f"{JOB}/events").status_code == 429


def test_time_and_availability_are_those_of_the_ledger(served: Served) -> None:
    timeline = served.http.get(f"{JOB}/timeline").json()
    assert sum(timeline["states_s"].values()) == pytest.approx(timeline["wall_s"], abs=0.01)
    assert timeline["states_s"]["RESTARTING"] == pytest.approx(30) and timeline["queries_s"]["q"]["RUNNING"] > 200
    begin = datetime.fromisoformat(timeline["incarnations"][0]["since"])
    period = {"since": begin.isoformat(), "until": (begin + timedelta(seconds=100)).isoformat()}
    found = served.http.get(f"{JOB}/availability", params=period).json()
    assert found["causes_s"] == {"USER_CODE": pytest.approx(30)} and found["down_s"] == pytest.approx(30)
    by_incident = served.http.get(f"{JOB}/availability", params={**period, "by": "incident"}).json()
    assert by_incident["causes_s"] == {"i1": pytest.approx(30)}
    status = read_status(served.state.path)
    divided = downtime(status.timeline, [vars(made.incident(1, begin + timedelta(seconds=60)))], now())
    until = datetime.fromisoformat(found["until"])
    assert found["availability"] == pytest.approx(divided.availability(begin, until))
    assert served.http.get(f"{JOB}/availability", params={**period, "until": period["since"]}).status_code == 422
