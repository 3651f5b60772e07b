"""The counter of downtime says what the ledger says, across starts of the driver."""

from collections import defaultdict
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.ledger import start_incarnation
from spark_ext.metrics.downtime import DowntimeMeter, Past, _values, past_of, read_past
from spark_ext.views.downtime import downtime
from spark_ext.views.timeline import timeline
from tests.control.states import State
from tests.metrics.rows import incident, state
from tests.views.test_timeline import at, job
from tests.views.test_timeline import state as state_row

UPS, DOWNS = ("RUNNING", "FINISHING"), ("RESTARTING", "FAILING", "CREATED")
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
    begins = data.draw(st.integers(0, len(names)))
    now = times[-1] + 5

    jobs = [job("started", 0), job("ended", 25, 1, reason="FAILED"), job("started", 40, 2)]
    states = [state_row("", "RUNNING", 5), state_row("", "FAILING", 20), state_row("", "FAILED", 22)]
    states += [
        {**state_row("", name, seconds, 2), "incident": blame}
        for name, seconds, blame in zip(names, times, blames, strict=True)
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
        meter.take(state(name, seconds, "", 2, blames[number]))
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
