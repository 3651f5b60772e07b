"""Which control events maintenance keeps: what is in force follows from them as from all."""

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from spark_ext.ledger.maintenance import _in_force
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import JOB, Delivery, Event
from tests.model.test_configuration import events

SOON = datetime(2026, 1, 1, tzinfo=timezone.utc)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    found: list[Event] = []
    for lineage in range(draw(st.integers(1, 3))):
        last = found[-1].sequence if found else 0
        if lineage:
            old, new = draw(st.sampled_from([("q", "p"), ("p", "q"), ("q", "r")]))
            value = {"old": old, "new": new, "lineage": lineage}
            last += 1
            found.append(Event(last, f"r{last}", "renamed", JOB, value))
        for one in draw(events()):
            moved = replace(one, sequence=one.sequence + last, event_id=f"e{one.sequence + last}")
            if one.kind == "release":
                outcome = draw(st.sampled_from(["void", "withdrawn", ""]))
                moved = replace(moved, value={**one.value, **({outcome: True} if outcome else {})})
            found.append(moved)
    return found


def row(event: Event, expires_at: datetime | None) -> dict[str, Any]:
    return {
        "event_id": event.event_id, "sequence": event.sequence, "kind": event.kind, "target": str(event.target),
        "value": json.dumps(event.value), "delivery": event.delivery.value, "expires_at": expires_at,
    }  # fmt: skip


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(histories(), st.data())
def test_what_is_kept_has_the_same_configuration(given: list[Event], data: st.DataObject) -> None:
    """Also when some events were refused or expired, which then end nothing that was in force before them."""
    others = [one.sequence for one in given if one.kind not in ("renamed", "release")]  # the job writes those
    late = data.draw(st.sets(st.sampled_from(others))) if others else set()
    void = data.draw(st.sets(st.sampled_from(sorted(late)))) if late else set()
    rows = [row(one, SOON if one.sequence in late else None) for one in given]
    kept = _in_force(rows, {one.event_id for one in given if one.sequence not in void})

    def fold(upon: list[Event]) -> Configuration:
        return replace(Configuration().after(one for one in upon if one.sequence not in void), sequence=0)

    assert fold([one for one in given if one.sequence in kept]) == fold(given)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30))
def test_what_was_replaced_is_not_kept(times: int) -> None:
    given = [Event(one, f"e{one}", "set_config", JOB, {"key": "k", "value": one}) for one in range(1, times)]
    assert _in_force([row(one, None) for one in given], {one.event_id for one in given}) == {times - 1}


def test_an_aborted_barrier_ends_nothing() -> None:
    value = {"sequence": 2, "event_id": "e2", "checkpoint": 9}
    given = [
        Event(1, "e1", "set_config", JOB, {"key": "k", "value": 1}),
        Event(2, "e2", "set_config", JOB, {"key": "k", "value": 2}, Delivery.ALIGNED),
        Event(3, "e3", "release", JOB, {**value, "void": True}),
    ]
    rows = [row(one, None) for one in given]
    assert _in_force(rows, {"e1", "e3"}) == {1, 2}
    rows.append(row(Event(4, "e4", "release", JOB, {**value, "checkpoint": 10}), None))
    assert _in_force(rows, {"e1", "e2", "e3", "e4"}) == {2, 4}
