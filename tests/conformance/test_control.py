"""Conformance, "Control": acceptance, refusal, bursts and expiry, on a real ledger without queries."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ext.control.client import LocalClient
from spark_ext.control.history import History
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.control.service import ControlService
from spark_ext.failpoints import VARIABLE, FailPoint
from spark_ext.ledger import Ledger, MaintenanceSettings, maintain
from spark_ext.ledger.schema import ControlEventRow, ControlRequestRow, FinishedRow
from spark_ext.model.control import Event
from spark_ext.sources.runtime.planner import Planner
from spark_ext.sources.runtime.view import PlannerView
from tests.control.states import State, now
from tests.server.served import JOB, serving
from tests.sources.memory import Log, Store, memory, registration

SENDER = """
import sys
from spark_ext.control.client import LocalClient
from spark_ext.control.requests import Request
LocalClient(sys.argv[1]).send(Request("set_config", "job", {"key": "k", "value": 1}, idempotency_key="once"))
"""


@pytest.mark.core
@pytest.mark.parametrize(
    ("step", "there"), [(FailPoint.LEDGER_BEFORE_CONTROL_EVENTS, 0), (FailPoint.LEDGER_CONTROL_EVENTS, 1)]
)
def test_e1_a_request_that_was_killed_is_accepted_once(tmp_path: Path, step: FailPoint, there: int) -> None:
    """Killed before the commit of its event, and after it, when nobody has had the answer."""
    state = State(tmp_path / "state")
    environment = {VARIABLE: f"{step}=kill", "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", SENDER, state.path], env=environment, check=False, timeout=120)
    assert done.returncode == -9
    before = state.ledger.table(ControlEventRow).rows()
    assert len(before) == there
    with LocalClient(state.path) as client:
        repeated = client.send(Request("set_config", "job", {"key": "k", "value": 1}, idempotency_key="once"))
    (row,) = Ledger(state.path).table(ControlEventRow).rows()
    assert (row.event_id, row.sequence) == (repeated.event_id, 1)
    assert [one.event_id for one in before] in ([], [row.event_id])


@pytest.mark.core
def test_e4_the_impossible_is_refused_with_a_reason_and_recorded(tmp_path: Path) -> None:
    """An unknown operator, a bad value, and a query that has finished, as a client over HTTP sees it."""
    state = State(tmp_path / "state")
    flag = FinishedRow(
        kind="query", query="r", source="", channel="", sequence=0, epoch=3, lineage=1, incarnation=1, position=None,
        drained=False, at=now(),
    )  # fmt: skip
    state.writer.append(flag)
    with serving(state) as served:
        answers = [
            served.post("pause", "source:nobody"),
            served.post("rate_limit", "source:q-in", {"rows_per_second": "fast"}),
            served.post("pause", "query:r"),
            served.post("pause", "query:q"),
        ]
        events = served.http.get(f"{JOB}/control").json()["events"]
    assert [answer.status_code for answer in answers] == [404, 422, 409, 202]
    assert all(answer.json()["detail"] and answer.json()["do"] for answer in answers[:3])
    assert [(event["kind"], event["target"]) for event in events] == [("pause", "query:q")]
    posts = [row for row in Ledger(state.path).table(ControlRequestRow).rows() if row.method == "POST"]
    assert sorted(row.status for row in posts) == [202, 404, 409, 422]


@pytest.mark.core
@pytest.mark.slow(12, "10,000 events")
def test_e5_a_burst_is_cut_at_the_limit_and_the_rest_obeyed(tmp_path: Path) -> None:
    """From eight threads, while a planner plans one epoch after the other; each look at the events is short."""
    state = State(tmp_path / "state")
    service = ControlService(Ledger(state.path))
    given = registration(checkpoint=str(tmp_path / "checkpoint"), job="orders", state=state.path, lineage=1)
    planner = Planner(memory(Store({"a": 10**9}, ends=False), max_rows_per_epoch=10), given, PlannerView(given))
    log, done = Log(), threading.Event()
    busy: list[int] = []

    def client(number: int) -> list[Event]:
        accepted = []
        for value in range(1_250):
            while True:
                try:
                    waiting = service.offer(Request("set_config", "job", {"key": "k", "value": [number, value]}))
                    break
                except ControlRefused as refused:
                    assert refused.refusal is Refusal.BUSY and refused.refusal.status == 429
                    busy.append(number)
                    time.sleep(refused.retry_after)
            accepted.append(waiting)
        return [one.result().event for one in accepted]

    def plan() -> list[tuple[int, float]]:
        took = []
        while not done.is_set() or log.offsets[-1].control < 10_000:
            begin, before = time.thread_time(), log.offsets[-1].control
            assert log.plan(planner) is not None
            took.append((log.offsets[-1].control - before, time.thread_time() - begin))
            done.wait(0.02)  # as an epoch takes its time
        return took

    with ThreadPoolExecutor(9) as pool:
        epochs = pool.submit(plan)
        sent = [event for events in pool.map(client, range(8)) for event in events]
        done.set()
        planned = epochs.result()
    service.close()
    assert busy, "more than the queue holds was sent at once"
    values = {event.sequence: event.value["value"] for event in sent}
    assert sorted(values) == list(range(1, 10_001))
    for number in range(8):
        assert [value for _, (who, value) in sorted(values.items()) if who == number] == list(range(1_250))
    # Each epoch obeys all events up to one of them, and reads its rows as ever.
    for offset in log.offsets[1:]:
        if offset.control:
            assert planner.configuration(offset).user("q") == {"k": values[offset.control]}
    assert {sum(piece.end - piece.start for piece in epoch) for epoch in log.read()} == {10}
    assert len([count for count, _ in planned if count]) > 3
    # Of the planner's own time a thousand new events take some milliseconds.
    assert sum(seconds for count, seconds in planned if count) < 10


@pytest.mark.core
@pytest.mark.slow(1, "maintains a whole ledger several times")
def test_e8_an_event_stays_until_its_effect_is_held_elsewhere(tmp_path: Path) -> None:
    """One that is not settled stays at any age, as does one from which the configuration in force follows."""
    state = State(tmp_path / "state")
    control = ControlLog(Ledger(state.path))

    def accepted(kind: str, target: str = "job", value: object = None) -> Event:
        (found,) = control.accept([Request(kind, target, value)])
        assert isinstance(found, Accepted), found
        return found.event

    replaced = accepted("set_config", "job", {"key": "k", "value": 1})
    stands = accepted("set_config", "job", {"key": "k", "value": 2})
    lifted, lifts = accepted("pause", "query:q"), accepted("resume", "query:q")
    once, open_ = accepted("broadcast", "job", {"type": "note"}), accepted("broadcast", "job", {"type": "note"})
    partly = accepted("set_config", "job", {"key": "partly", "value": 1})
    again = accepted("set_config", "job", {"key": "partly", "value": 2})
    for event in (replaced, stands, lifted, lifts, once, again):
        state.step(event, "applied", "q", 1)
        state.step(event, "acknowledged")
    state.step(partly, "applied", "q", 1)  # of two queries, the other one has still to obey it
    before = control.configuration()
    settings = MaintenanceSettings(
        sweep_every=timedelta(0), keep_control_events=timedelta(0), budget=timedelta(minutes=1)
    )
    maintain(Ledger(state.path), datetime.now(timezone.utc) + timedelta(days=1), settings, state.incarnation.fence)
    left = {row.sequence for row in Ledger(state.path).table(ControlEventRow).rows()}
    assert left == {event.sequence for event in (stands, lifts, open_, partly, again)}
    after = ControlLog(Ledger(state.path)).configuration()
    assert json.dumps(after.to_json(), sort_keys=True) == json.dumps(before.to_json(), sort_keys=True)
    history = History(Ledger(state.path))
    assert {one.sequence for one in history.page().events if not one.final} == {open_.sequence, partly.sequence}
    assert accepted("pause").sequence == again.sequence + 1
