"""What follows the end of a Spark query: every cause, what restarts depend on, and the end of what feeds it."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import CommitError, DataError, FencedError, SparkExtError, StorageError
from spark_ext.failures.labels import Response
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import (
    RUN_AGAIN_MS,
    Action,
    AvailableNowRun,
    Cause,
    Decision,
    Failures,
    Handling,
    RestartPolicy,
    Stands,
    Upstream,
    decide,
    upstream_of,
)

POLICY = RestartPolicy()
NONE = Failures()

failures = st.builds(Failures, st.integers(0, 50), st.floats(0, 1000))
causes = st.sampled_from(Cause)
terminal = st.sampled_from([DataError("x"), FencedError("x")])
passing = st.sampled_from([SparkExtError("x"), StorageError("x"), CommitError("x")])


@pytest.mark.parametrize(("failed", "draining", "stopping", "ends_now"), [*itertools.product([False, True], repeat=4)])
def test_the_cause_is_the_first_that_holds(failed: bool, draining: bool, stopping: bool, ends_now: bool) -> None:
    holds = (failed, stopping, draining, ends_now, True)
    expected = [Cause.FAILURE, Cause.STOPPED, Cause.DRAINED, Cause.CAUGHT_UP, Cause.OUTSIDE][holds.index(True)]
    assert Cause.of(failed=failed, draining=draining, stopping=stopping, ends_now=ends_now) is expected


@pytest.mark.parametrize(
    ("cause", "action"),
    [
        (Cause.DRAINED, Action.FINISH), (Cause.STOPPED, Action.CANCEL), (Cause.CAUGHT_UP, Action.SUSPEND),
        (Cause.OUTSIDE, Action.CANCEL),
    ],
)  # fmt: skip
@given(before=failures, now=st.floats(0, 2000))
def test_an_end_without_a_failure(cause: Cause, action: Action, before: Failures, now: float) -> None:
    decision = decide(cause, None, before, POLICY, now)
    assert (decision.action, decision.failures, decision.delay_ms) == (action, before, 0)


@given(run=st.builds(AvailableNowRun, *[st.booleans()] * 5))
def test_only_a_drain_ends_the_input_of_a_run_of_what_is_there(run: AvailableNowRun) -> None:
    decision = decide(Cause.CAUGHT_UP, None, NONE, POLICY, 0.0, run=run)
    assert decision.action is not Action.FINISH
    assert decision.action is not Action.SUSPEND or (run.committed and run.nothing_left and run.upstream_ended)


@given(error=terminal, before=failures, attempts=st.integers(0, 100))
def test_a_terminal_error_fails_whatever_the_policy(error: SparkExtError, before: Failures, attempts: int) -> None:
    decision = decide(Cause.FAILURE, error, before, RestartPolicy(attempts), before.since)
    assert (decision.action, decision.reason) == (Action.FAIL, str(error))


@given(error=terminal | passing, before=failures, draining=st.booleans())
def test_a_failure_loses_neither_a_stop_nor_a_drain(error: SparkExtError, before: Failures, draining: bool) -> None:
    decision = decide(Cause.FAILURE, error, before, POLICY, 2000.0, stopping=True, draining=draining)
    assert (decision.action, decision.failures) == (Action.CANCEL, before)
    decision = decide(Cause.FAILURE, error, before, POLICY, 2000.0, draining=True)
    assert (decision.action, decision.failures) == (Action.FINISH, before)


@given(error=terminal | passing, before=failures, moved=st.booleans())
def test_a_drain_ends_when_what_was_planned_is_committed(error: SparkExtError, before: Failures, moved: bool) -> None:
    run = AvailableNowRun(committed=False, moved=moved)
    again = decide(Cause.DRAINED, None, before, POLICY, 0.0, draining=True, run=run)
    assert again == Decision(Action.RUN_AGAIN, delay_ms=0 if moved else RUN_AGAIN_MS, failures=before)
    failed = decide(Cause.FAILURE, error, before, POLICY, 2000.0, draining=True, run=run)
    assert failed == decide(Cause.FAILURE, error, before, POLICY, 2000.0)


@given(error=terminal | passing, before=failures, draining=st.booleans())
def test_a_step_that_fails_is_tried_as_an_epoch_is(error: SparkExtError, before: Failures, draining: bool) -> None:
    decision = decide(Cause.STEP, error, before, POLICY, 2000.0, draining=draining)
    assert decision == decide(Cause.FAILURE, error, before, POLICY, 2000.0)


@given(error=passing, attempts=st.integers(0, 8), count=st.integers(0, 10), since=st.floats(0, 1000))
def test_the_policy_says_how_often_to_restart(error: SparkExtError, attempts: int, count: int, since: float) -> None:
    policy = RestartPolicy(attempts, outage_ms=0)
    decision = decide(Cause.FAILURE, error, Failures(count, since), policy, since + 1)
    delay = policy.delay_ms(count + 1)
    assert decision.failures.count == count + 1
    if count < attempts:
        assert decision == Decision(Action.RESTART, str(error), delay or 0, decision.failures)
    else:
        assert (decision.action, delay) == (Action.FAIL, None)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20))
def test_failures_in_a_row_are_counted_from_the_first(times: list[float]) -> None:
    now = NONE
    for time in sorted(times):
        now = decide(Cause.FAILURE, SparkExtError("x"), now, POLICY, time).failures
    assert now == Failures(len(times), min(times), alike=1)


@pytest.mark.parametrize(
    ("handling", "restarts"),
    [
        (Handling(Response.STOP), 0), (Handling(Response.ASK), 0), (Handling(Response.RESTORE), 0),
        (Handling(Response.RESTART_ONCE), 1), (Handling(Response.RESTART), 3),
        (Handling(Response.RESTART, attempts=5), 5), (Handling(Response.RESTART, attempts=5, most=2), 2),
    ],
)  # fmt: skip
def test_the_table_of_decisions_says_how_often(handling: Handling, restarts: int) -> None:
    def after(count: int) -> Action:
        failures, action = NONE, Action.RESTART
        for time in range(count):
            decision = decide(Cause.FAILURE, SparkExtError("x"), failures, POLICY, float(time), handling=handling)
            failures, action = decision.failures, decision.action
        return action

    assert [after(count) for count in range(1, restarts + 1)] == [Action.RESTART] * restarts
    assert after(restarts + 1) is Action.FAIL


def test_the_policy_and_our_own_errors_precede_the_table() -> None:
    once = Handling(Response.RESTART_ONCE)
    assert decide(Cause.FAILURE, SparkExtError("x"), NONE, RestartPolicy(0), 0.0, handling=once).action is Action.FAIL
    stop = Handling(Response.STOP)
    assert decide(Cause.FAILURE, StorageError("x"), NONE, POLICY, 0.0, handling=stop).action is Action.RESTART


@given(st.lists(st.floats(0, 10_000), max_size=20), st.integers(1, 4))
def test_a_limit_in_a_window_counts_epochs_committed_between(times: list[float], most: int) -> None:
    handling = Handling(Response.RESTART, most=most, window_ms=1_000_000)
    failures, restarted = NONE, list[float]()
    for time in sorted(times):
        decision = decide(Cause.FAILURE, SparkExtError("x"), failures, POLICY, time, handling=handling)
        recent = [at for at in restarted if time - at < 1000]
        assert decision.action is (Action.RESTART if len(recent) < most else Action.FAIL)
        if decision.action is Action.FAIL:
            break
        restarted.append(time)
        failures = decision.failures.progressed()


def test_an_epoch_that_fails_in_the_same_way_is_called_poison() -> None:
    failures, reason = NONE, ""
    for _ in range(4):
        decision = decide(Cause.FAILURE, SparkExtError("x"), failures, POLICY, 0.0, sign="4 SINK")
        failures, reason = decision.failures, decision.reason
    assert reason.endswith("a poison epoch: it has failed 4 times in the same way")
    assert "poison" not in decide(Cause.FAILURE, SparkExtError("x"), failures, POLICY, 0.0, sign="4 SOURCE").reason


@pytest.mark.parametrize(
    ("error", "seconds", "action"),
    [
        (StorageError("x"), 299.0, Action.RESTART), (StorageError("x"), 301.0, Action.FAIL),
        (SparkExtError("x"), 299.0, Action.FAIL),
    ],
)  # fmt: skip
def test_an_outage_is_retried_for_longer(error: SparkExtError, seconds: float, action: Action) -> None:
    assert decide(Cause.FAILURE, error, Failures(20, 50.0), POLICY, 50.0 + seconds).action is action


RUNS = State.RUNNING


@pytest.mark.parametrize(
    ("producers", "states", "waits", "ended"),
    [
        ("ab", {"a": State.SUSPENDED, "b": RUNS, "q": RUNS}, {}, False),
        ("ab", {"a": State.SUSPENDED, "b": State.FINISHED, "q": RUNS}, {}, True),
        # One that has left the job.
        ("a", {"q": RUNS}, {}, True),
        # One that is not built ends the run with those it waits for, unless they finish: it is about to be built then.
        ("b", {"a": RUNS, "q": RUNS}, {"b": ("a",)}, False),
        ("b", {"a": State.FINISHED, "q": RUNS}, {"b": ("a",)}, False),
        ("b", {"a": State.SUSPENDED, "q": RUNS}, {"b": ("a",)}, True),
        # One that waits for another that is not built.
        ("c", {"a": RUNS}, {"b": ("a",), "c": ("b",)}, False),
        ("c", {"a": State.FINISHED}, {"b": ("a",), "c": ("b",)}, False),
        ("c", {"a": State.SUSPENDED}, {"b": ("a",), "c": ("b",)}, True),
    ],
)
def test_all_of_those_that_feed_a_query_have_to_have_ended(
    producers: str, states: dict[str, State], waits: dict[str, tuple[str, ...]], ended: bool
) -> None:
    stands = {uid: Stands(state) for uid, state in states.items()}
    assert upstream_of(tuple(producers), stands, waits).ended is ended


def test_their_epochs_count_and_a_root_has_nobody_to_wait_for() -> None:
    assert upstream_of((), {"q": Stands(RUNS)}, {}) == Upstream(ended=True, epochs=0)
    runs = {"a": Stands(RUNS, 4), "b": Stands(RUNS, -1), "q": Stands(RUNS, 9)}
    assert upstream_of(("a", "b"), runs, {}).epochs == 5
