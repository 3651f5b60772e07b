"""Alert rules are a pure function of where the time of a job went."""

from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.incidents.registry import AlertRule
from spark_ext.views.downtime import Downtime, Period, availability
from tests.incidents.made import T0, at


def rule(text: str = "availability below 0.9 over 100 s", **labels: Any) -> AlertRule:
    return AlertRule(rule=text, labels=labels)


def down(*pieces: tuple[str, float, str]) -> Downtime:
    found, now = [], 0.0
    for state, seconds, incident in pieces:
        found.append(Period("", state, at(now), at(now + seconds), incident))
        now += seconds
    return Downtime(tuple(found), ())


INCIDENTS: list[dict[str, Any]] = [
    {"incident_id": "net", "labels": {"type": "NETWORK", "origin": "library"}},
    {"incident_id": "sys", "labels": {"type": "SYSTEM"}}, {"incident_id": "bare", "labels": None},
]  # fmt: skip
TIMES = down(("RUNNING", 50, ""), ("RESTARTING", 5, "net"), ("RUNNING", 25, ""), ("DOWN", 20, "sys"))


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        ({}, 0.75), ({"type": "SYSTEM"}, 0.8), ({"type": ["SYSTEM", "NETWORK"]}, 0.75),
        ({"type": ["SYSTEM", "NETWORK"], "origin": "library"}, 0.95), ({"team": "a"}, 1.0),
    ],
)  # fmt: skip
def test_only_downtime_of_these_labels_counts(labels: dict[str, Any], share: float) -> None:
    found = availability(rule(**labels), TIMES, INCIDENTS, at(100))
    assert found.share == pytest.approx(share)
    assert found.low is (share < 0.9)
    assert found.down == pytest.approx((1 - share) * 100)


def test_only_the_period_counts() -> None:
    assert availability(rule("availability below 0.9 over 20 s"), TIMES, INCIDENTS, at(100)).share == 0
    assert availability(rule("availability below 0.9 over 1 day"), TIMES, INCIDENTS, at(100)).share == 0.75
    assert availability(rule("availability below 0.9 over 20 s"), TIMES, INCIDENTS, at(80)).share == 1


def test_time_in_which_the_job_did_not_exist_does_not_count() -> None:
    assert availability(rule(), Downtime((), ()), [], T0).share == 1
    assert not availability(rule("availability below 100 % over 1 h"), Downtime((), ()), [], T0).low


def test_downtime_without_incident_counts_for_unlabelled_rules() -> None:
    found = down(("RESTARTING", 50, ""), ("RUNNING", 50, ""))
    assert availability(rule(), found, [], at(100)).share == 0.5
    assert availability(rule(type="SYSTEM"), found, [], at(100)).share == 1


STATE = st.sampled_from(["RUNNING", "DOWN", "STOPPED"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(STATE, st.floats(0.1, 100), st.sampled_from(["net", "sys"])), min_size=1, max_size=10),
    st.integers(1, 500),
)
def test_the_downtimes_of_all_labels_add_up(pieces: list[tuple[str, float, str]], period: int) -> None:
    times = down(*pieces)
    now = times.pieces[-1].until

    def of(**labels: str) -> float:
        return availability(rule(f"availability below 0.9 over {period} s", **labels), times, INCIDENTS, now).down

    assert of(type="NETWORK") + of(type="SYSTEM") == pytest.approx(of())
    whole = min(timedelta(seconds=period), now - times.pieces[0].since).total_seconds()
    share = availability(rule(f"availability below 0.9 over {period} s"), times, INCIDENTS, now).share
    assert share == pytest.approx(times.availability(now - timedelta(seconds=period), now), abs=1e-6)
    assert 0 <= share <= 1 and of() == pytest.approx((1 - share) * whole, abs=1e-3)
