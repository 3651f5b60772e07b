"""Time in each state: it adds up to the wall time over all drivers, and what listeners report has its bounds."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.metrics.book import Book, Bound
from spark_ext.metrics.downtime import Past
from spark_ext.metrics.state_time import StateMeter, seconds_before
from spark_ext.metrics.tally import Tally
from spark_ext.views.downtime import downtime
from spark_ext.views.timeline import timeline
from tests.metrics.jobs import measured, value
from tests.metrics.rows import state
from tests.views.page.test_document import started
from tests.views.test_timeline import at

STATES = st.sampled_from(["DEPLOYING", "RUNNING", "SCHEDULING", "RESTARTING", "PAUSED"])
STEPS = st.lists(
    st.tuples(STATES, st.sampled_from(["", "q"]), st.sampled_from([None, "i"]), st.integers(1, 9)), max_size=12
)


@given(STEPS, STEPS, st.integers(1, 20), st.integers(0, 30))
def test_the_seconds_of_all_drivers_are_those_of_the_timeline(
    first: list[tuple[str, str, str | None, int]], second: list[tuple[str, str, str | None, int]], gap: int, after: int
) -> None:
    """Also when the past is known only after some rows."""
    rows, moment, starts = [], 0, []
    for number, steps in enumerate((first, second), 1):
        moment += 0 if number == 1 else gap
        starts.append(started(at=at(moment), incarnation=number))
        for name, operator, blame, seconds in steps:
            moment += seconds
            rows.append(state(name, moment, operator, number, blame))
        if number == 1:
            moment += 1
            starts.append(started("ended", at=at(moment), incarnation=1, reason="FAILED"))
    now = at(moment + after)
    history = timeline([vars(row) for row in rows], starts, alive=frozenset({2}))
    divided = downtime(history, [], now)
    meter, began = StateMeter(), starts[-1]["at"]
    mine = [row for row in rows if row.incarnation == 2]
    past = seconds_before(divided, history, 2, began)
    for row in mine[: after % (len(mine) + 1)]:
        meter.take(row)
    assert meter.seconds(now) == ({}, 0.0)
    meter.begin(began, past)
    for row in mine[after % (len(mine) + 1) :]:
        meter.take(row)
    found, up = meter.seconds(now)
    of_job = {name: seconds for (operator, name), seconds in found.items() if not operator and seconds}
    assert of_job == pytest.approx({name: one for name, one in divided.by_state().items() if one})
    assert sum(of_job.values()) == pytest.approx(divided.wall)
    assert {name: one for (operator, name), one in found.items() if operator and one} == pytest.approx(
        {name: one for (operator, name), one in history.seconds(now).items() if operator and one}
    )
    assert up == pytest.approx(
        sum(piece.seconds for piece in divided.pieces if piece.state in ("RUNNING", "PAUSED") and not piece.down)
    )


def test_a_counter_of_a_state_never_decreases() -> None:
    metrics = measured(state("RUNNING", 10, ""))
    metrics.begin(Past(at(0)))
    assert value(metrics, "spark_ext_state_seconds_total", "", "RUNNING") == 90
    metrics.tap(state("SCHEDULING", 60, ""))  # it is noticed late
    assert value(metrics, "spark_ext_state_seconds_total", "", "RUNNING") == 90
    assert value(metrics, "spark_ext_uptime_seconds_total") == 90


def test_each_stay_before_a_query_runs_is_an_observation() -> None:
    tally, book = Tally("j"), Book(Bound("j"))
    names = ("DEPLOYING", "SCHEDULING", "DEPLOYING", "RUNNING", "RESTARTING", "RUNNING")
    for second, name in enumerate(names):
        for change in [*tally.take(state(name, second)), *tally.take(state(name, second))]:
            book.apply(change)
    found = {
        one.labels[-1]: one.value for one in book.samples() if one.metric.name == "spark_ext_state_duration_seconds"
    }
    assert found == {"DEPLOYING": 2, "SCHEDULING": 1}


def test_what_listeners_report_is_bounded_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = measured(limit=2)
    for number in range(4):
        metrics.report("late_rows", 2, f"k{number}", True)
    metrics.report("late_rows", 3, "k0", True)
    metrics.report("depth", 7, "", False)
    metrics.report("depth", 5, "", False)
    assert value(metrics, "spark_ext_listener_counter_total", "late_rows", "k0") == 5
    assert value(metrics, "spark_ext_listener_counter_total", "_other", "_other") == 4
    assert value(metrics, "spark_ext_listener_gauge", "depth", "") == 5
    assert sum("spark_ext_listener_counter_total has more than 2 combinations" in one for one in caplog.messages) == 1
