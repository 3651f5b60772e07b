"""The counter of downtime says what the ledger says, across starts of the driver."""

import json
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.commands.check import facts_of
from spark_ext.incidents.registry import read_registry
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import ExecutionStateRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.metrics.downtime import DowntimeMeter, Past, _values, past_of, read_past
from spark_ext.model.execution import REQUESTED
from spark_ext.observing.upkeep import Alerts
from spark_ext.views.check import Limits, health
from spark_ext.views.downtime import downtime
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.timeline import timeline
from tests.control.states import State
from tests.metrics.rows import incident, state
from tests.test_cli import spark_ext
from tests.views.test_downtime import History
from tests.views.test_timeline import at, job
from tests.views.test_timeline import state as state_row

UPS, DOWNS = ("RUNNING", "FINISHING"), ("RESTARTING", "FAILING", "CREATED", "SCHEDULING")
KINDS = ("USER_CODE", "NETWORK", "SYSTEM")


@given(st.data())
def test_it_is_what_the_view_of_the_ledger_has(data: st.DataObject) -> None:
    """Two starts: the first failed after a while; the second is measured, and looked at from time to time."""
    names = data.draw(st.lists(st.sampled_from((*UPS, *DOWNS)), min_size=1, max_size=12))
    times = [40 + 5 * (number + 1) for number in range(len(names))]
    failures = [incident("first", 20, type="USER_CODE")]
    second = []
    for number, (name, seconds) in enumerate(zip(names, times, strict=True)):
        if name in DOWNS and data.draw(st.booleans()):
            late = data.draw(st.sampled_from([0, 3]))
            second.append(incident(f"i{number}", seconds + late, type=data.draw(st.sampled_from(KINDS))))
    blames: list[str | None] = []
    for number, seconds in enumerate(times):
        blames.append(f"s{number}" if data.draw(st.integers(0, 3)) == 0 else None)
        if blames[-1]:
            # As a stall is: recorded with the state, also with RUNNING.
            second.append(incident(f"s{number}", seconds, kind="stall", type=data.draw(st.sampled_from(KINDS))))
    reasons = [data.draw(st.sampled_from(["", f"{REQUESTED}somebody"])) for _ in names]
    begins = data.draw(st.integers(0, len(names)))
    now = times[-1] + 5

    jobs = [job("started", 0), job("ended", 25, 1, reason="FAILED"), job("started", 40, 2)]
    states = [state_row("", "RUNNING", 5), state_row("", "FAILING", 20), state_row("", "FAILED", 22)]
    states += [
        {**state_row("", name, seconds, 2, reason), "incident": blame}
        for name, seconds, blame, reason in zip(names, times, blames, reasons, strict=True)
    ]
    known = [_values(row) for row in (*failures, *second)]
    whole = downtime(timeline(states, jobs, alive=frozenset({2})), known, at(now))
    classes = {row["incident_id"]: row["labels"]["type"] for row in known}
    expected: dict[str, float] = defaultdict(float)
    for piece in whole.pieces:
        if piece.down:
            expected[classes.get(piece.incident, "UNKNOWN")] += piece.seconds

    before = downtime(timeline(states, jobs, alive=frozenset({2})), [_values(row) for row in failures], at(40))
    past = past_of([piece for piece in before.pieces if piece.since < at(40)], {"first": _values(failures[0])}, at(40))
    meter = DowntimeMeter()
    seen: dict[str, float] = {}
    for number, (name, seconds) in enumerate(zip(names, times, strict=True)):
        if number == begins:
            meter.begin(past)
        for row in second:
            if row.incident_id[1:] == str(number) and row.at == at(seconds):
                meter.take(row)
        meter.take(replace(state(name, seconds, "", 2, blames[number]), reason=reasons[number]))
        for row in second:
            if row.incident_id[1:] == str(number) and row.at != at(seconds):
                meter.take(row)
        shown = meter.seconds(at(seconds))
        assert all(shown[kind] >= value for kind, value in seen.items()), "a counter never decreases"
        seen = shown
    if begins == len(names):
        meter.begin(past)
    found = {kind: value for kind, value in meter.seconds(at(now)).items() if value}
    assert found == pytest.approx({kind: value for kind, value in expected.items() if value})


def test_nothing_is_said_before_the_past_is_known() -> None:
    meter = DowntimeMeter()
    meter.take(state("RUNNING", 2, ""))
    assert meter.seconds(at(5)) == {}
    meter.begin(Past(at(0), {"SYSTEM": 7.0}))
    assert meter.seconds(at(5)) == {"SYSTEM": 7.0}


def test_an_incident_that_is_known_late_decreases_no_counter() -> None:
    meter = DowntimeMeter()
    meter.begin(Past(at(0), {"UNKNOWN": 1.0}))
    meter.take(state("RUNNING", 0, ""))
    meter.take(state("RESTARTING", 10, ""))
    assert meter.seconds(at(15)) == {"UNKNOWN": 6.0}
    meter.take(incident("a", 10, type="NETWORK"))
    assert meter.seconds(at(16)) == {"UNKNOWN": 6.0, "NETWORK": 6.0}


def test_a_failure_just_before_a_short_run_is_blamed_afterwards() -> None:
    meter = DowntimeMeter()
    meter.begin(Past(at(0)))
    for row in (incident("a", 10, type="NETWORK"), state("RUNNING", 10.5, ""), state("RESTARTING", 11, "")):
        meter.take(row)
    assert meter.seconds(at(13)) == {"NETWORK": 0.5 + 2.0}


def test_a_lost_driver_is_in_the_past_before_its_row_is_written(tmp_path: Path) -> None:
    one = State(tmp_path / "state")
    begun = one.ledger.jobs()[-1].at
    start_incarnation(one.ledger, "orders", takeover=True)
    seen = {"last_seen": begun.isoformat(), "incarnation": 1}
    past = read_past(one.ledger, 2, [incident("d", 0, "job 'orders'", "driver_lost", seen, type="SYSTEM")])
    assert past.started == one.ledger.jobs()[-1].at and past.cause is not None
    assert past.cause["incident_id"] == "d"
    assert sum(past.seconds.values()) == pytest.approx((past.started - begun).total_seconds())


RULES = """
alerts:
  - {rule: availability below 100 % over 36500 days, labels: {type: SYSTEM}}
  - {rule: availability below 100 % over 36500 days, labels: {type: NETWORK}}
"""


def test_all_that_tells_whose_a_second_was_agrees(tmp_path: Path) -> None:
    """A driver is lost twice within the window in which that is one incident."""
    told = (
        History().up(10).lost(5, 1).in_state("DEPLOYING", 2).up(20).lost(7, 1).slots(3).in_state("DEPLOYING", 1).up(9)
    )
    told.restarted(6).in_state("DEPLOYING", 2).up(9).failed("QUOTA", 4).slots(30).in_state("DEPLOYING", 1).up(9)
    told.incidents[1]["incident_id"] = told.incidents[0]["incident_id"]
    told.incidents[3]["labels"]["base"] = "NETWORK"
    place = str(tmp_path / "state")
    ledger = Ledger(place)
    for row in told.jobs:
        incarnation = start_incarnation(ledger, "j", takeover=True, now=row["at"])
        forget(place, incarnation.number)
    writer = LedgerWriter(ledger, incarnation)
    states: list[Any] = [ExecutionStateRow(**row) for row in told.states]
    incidents: list[Any] = [
        replace(
            incident(one["incident_id"], 0, one["operator"], one["type"], one["evidence"], **one["labels"]),
            at=one["at"],
        )
        for one in told.incidents
    ]
    writer.append([*states, *incidents])
    expected = {"SYSTEM": 5 + 3 + 7 + 1 + 3 + 1 + 30, "QUOTA": 4 + 1}
    assert told.classes() == expected

    shown = json.loads(spark_ext("timeline", place, "--json").stdout)
    assert shown["classes_s"] == pytest.approx(expected)
    lines = spark_ext("timeline", place, "--by", "class").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[-2:]] == ["SYSTEM: 50.0 s down", "QUOTA: 5.0 s down"]

    kinds = {row.incident_id: row.labels["type"] for row in incidents}
    document = page(FactsReader(ledger).read(), datetime.now(timezone.utc))["timeline"]
    by_page: dict[str, float] = defaultdict(float)
    for name, seconds in document["incidents_s"].items():
        by_page[kinds[name]] += sum(seconds.values())
    assert by_page == pytest.approx(expected) and document["down_s"] == pytest.approx(55)

    meter = DowntimeMeter()
    meter.begin(read_past(ledger, 3, ()))
    for taken in sorted([*incidents[2:], *states[3:]], key=lambda row: getattr(row, "since", None) or row.at):
        meter.take(taken)
    assert meter.seconds(told.now) == pytest.approx(expected)

    registry = read_registry(RULES, "rules.yaml")
    now = datetime.now(timezone.utc)
    measured = health(facts_of(ledger), Limits(rules=registry.alerts), now).measured
    assert [one.found.down for one in measured] == pytest.approx([50, 5]), "a type of the user's counts as its base"
    behind = WriteBehind(writer, "j", registry=registry)
    Alerts("j", ledger, behind).evaluate(0)
    said = [one.incident.what.partition(", ")[2].partition(":")[0] for one in behind.incidents.open("")]
    assert said == ["down for 50 s", "down for 5 s"]
