"""Decisions from facts: states, the end of the input, finishes without a flag, restarts, steps that are left."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import CommitError, DataError, PreparedLostError, SparkExtError, StorageError, TransientError
from spark_ext.failures.labels import Response
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.lifecycle import LEGAL, FinalStep, State, can_follow, job_state, steps_left
from spark_ext.model.offsets import Finished, LoggedOffsets, SourceOffset
from spark_ext.model.query_offsets import flushed, input_ended, new_finishes, source_offsets
from spark_ext.model.restarts import Handling, RestartPolicy

states = st.sampled_from(State)


def logged(*sources: object) -> LoggedOffsets:
    return LoggedOffsets(3, {}, sources)


@given(st.lists(states))
def test_a_job_ends_with_its_queries_and_finishes_if_all_did(queries: list[State]) -> None:
    state = job_state(queries)
    assert state.ended == all(query.ended for query in queries)
    assert (state is State.FINISHED) == all(query is State.FINISHED for query in queries)
    assert state in queries or state is State.FAILING or not queries


@given(st.permutations([State.RUNNING, State.FAILED, State.FINISHING, State.FINISHED, State.CANCELED]))
def test_a_failure_shows_whatever_the_others_do(queries: list[State]) -> None:
    assert job_state(queries) is State.FAILING
    assert job_state(state for state in queries if state.ended) is State.FAILED


@pytest.mark.parametrize(
    ("queries", "state"),
    [
        ([State.FINISHED, State.RUNNING], State.RUNNING), ([State.FINISHING, State.RUNNING], State.RUNNING),
        ([State.RESTARTING, State.RUNNING], State.RESTARTING), ([State.FINISHED, State.CANCELED], State.CANCELED),
        ([State.CANCELED, State.RUNNING], State.RUNNING), ([State.FAILING, State.CANCELED], State.FAILING),
    ],
)  # fmt: skip
def test_l4_the_job_is_the_least_advanced_of_its_queries(queries: list[State], state: State) -> None:
    assert job_state(queries) is state


def test_four_states_are_the_end_and_a_query_comes_to_three() -> None:
    ends = {State.FINISHED, State.SUSPENDED, State.FAILED, State.CANCELED}
    assert {state for state in State if state.ended} == ends
    for state in LEGAL.keys() - {state for state in State if state.ended}:
        reached, ahead = set(), {state}
        while ahead:
            reached |= ahead
            ahead = {after for one in ahead for after in LEGAL[one]} - reached
        assert reached >= {State.FINISHED, State.FAILED, State.CANCELED}
        assert State.CREATED not in reached - {state}


@given(states, states)
def test_an_end_is_final_and_no_state_follows_itself(before: State, after: State) -> None:
    assert not can_follow(before, before)
    assert not (before.ended and can_follow(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.FINISHING, State.RUNNING), (State.FINISHING, State.RESTARTING), (State.RUNNING, State.FINISHED),
        (State.RESTARTING, State.FINISHED), (State.CREATED, State.RESTARTING),
    ],
)  # fmt: skip
def test_what_has_all_its_input_ends_by_its_final_checkpoint(before: State, after: State) -> None:
    assert not can_follow(before, after)


@given(st.sampled_from([State.RESTORING, State.FAILING]), states)
def test_states_of_a_job_are_none_of_a_query(state: State, other: State) -> None:
    assert not can_follow(state, other) and not can_follow(other, state)


@given(st.dictionaries(st.sampled_from("abcd"), st.booleans()), st.sets(st.sampled_from("abcd"), min_size=1))
def test_input_has_ended_when_every_source_says_so(ended: dict[str, bool], sources: set[str]) -> None:
    offsets = [SourceOffset(uid, ended=value).to_json() for uid, value in ended.items()]
    assert input_ended(logged(*offsets, None, 17, "x"), sources) == all(ended.get(uid, False) for uid in sources)


def test_markers_and_other_sources_are_no_channel_sources() -> None:
    line = logged(SourceOffset("a", control=4).to_json(), EndOffset("a~end").to_json(), {"logOffset": 1}, None, 5)
    assert source_offsets(line) == {"a": SourceOffset("a", control=4)}


@pytest.mark.parametrize(
    ("ends", "result"),
    [
        ([], True), ([EndOffset("a~end", 1, True)], True), ([EndOffset("a~end", 1, False)], False),
        ([EndOffset("a~end", 0, False)], False), ([EndOffset("a~end", 1, True), EndOffset("b~end", 1, False)], False),
        ([EndOffset("a~end", 1, True), EndOffset("b~end", 2, True)], True),
    ],
)  # fmt: skip
def test_state_is_empty_when_every_marker_has_passed(ends: list[EndOffset], result: bool) -> None:
    line = logged(SourceOffset("a", ended=True).to_json(), *(end.to_json() for end in ends))
    assert flushed(line, [end.uid for end in ends]) is result


def test_a_marker_that_is_not_in_the_epoch_has_not_passed() -> None:
    assert not flushed(logged(SourceOffset("a", ended=True).to_json()), ["a~end"])


@given(st.integers(0, 5), st.integers(0, 6), st.integers(0, 12), st.randoms())
def test_new_finishes_are_those_without_a_flag(confirmed: int, count: int, flagged: int, random: object) -> None:
    finished = [Finished(confirmed + number, f"c{number}", 0) for number in range(1, count + 1)]
    random.shuffle(finished)  # type: ignore[attr-defined]
    found = new_finishes(SourceOffset("a", finished=tuple(finished)), flagged)
    assert [finish.sequence for finish in found] == list(range(max(confirmed, flagged) + 1, confirmed + count + 1))


@given(st.integers(0, 6), st.integers(1, 1000), st.floats(1, 10), st.integers(1, 60_000))
def test_waits_grow_to_a_limit_and_attempts_end(attempts: int, first: int, factor: float, most: int) -> None:
    policy = RestartPolicy(attempts, first, factor, most)
    waits = [policy.delay_ms(failure) for failure in range(1, attempts + 3)]
    given_up = waits[attempts:]
    taken = [wait for wait in waits[:attempts] if wait is not None]
    assert given_up == [None, None] and len(taken) == attempts
    assert all(one <= other for one, other in itertools.pairwise(taken))
    assert all(wait <= most for wait in taken)
    if taken:
        assert taken[0] == min(first, most)


def test_the_shipped_policy() -> None:
    assert [RestartPolicy().delay_ms(failure) for failure in (1, 2, 3, 4)] == [100, 400, 1600, None]


def restarts(policy: RestartPolicy, outage_s: float, epoch_s: float = 0.0) -> float | None:
    """When a query whose attempts take `epoch_s` each runs again after an outage of `outage_s`; None: it failed."""
    now, failures = epoch_s, 0
    while True:
        failures += 1
        delay = policy.delay_ms(failures, (now - epoch_s) * 1000)
        if delay is None:
            return None
        now += delay / 1000
        if now >= outage_s:
            return now
        now += epoch_s


@pytest.mark.parametrize("epoch_s", [0.01, 6.4, 30.0])
def test_a_two_minute_outage_is_ridden_out_and_found_over_soon(epoch_s: float) -> None:
    """However quick an attempt fails: at once in a source, after its own attempts in a sink, or by a time-out."""
    again = restarts(RestartPolicy(), 120, epoch_s)
    assert again is not None and again <= 120 + 30 + epoch_s
    assert restarts(RestartPolicy(), 10_000, epoch_s) is None, "not forever"
    assert restarts(RestartPolicy(0), 1, epoch_s) is None, "no attempts: never"
    assert restarts(RestartPolicy(outage_ms=0), 120, epoch_s) is None, "as any other failure"
    assert RestartPolicy(outage_ms=10**12).delay_ms(10_000, 0) == 30_000


@pytest.mark.parametrize(
    ("error", "handling"),
    [
        (DataError("x"), Handling(Response.STOP)), (StorageError("x"), Handling(outage=True)),
        (CommitError("x"), Handling(outage=True)), (PreparedLostError("x"), Handling(outage=True)),
        (TransientError("x"), Handling()), (SparkExtError("x"), None), (None, None),
    ],
)  # fmt: skip
def test_the_class_of_our_errors_says_what_is_done(error: SparkExtError | None, handling: Handling | None) -> None:
    assert Handling.of(error) == handling


@given(st.integers(0, len(FinalStep)))
def test_a_crash_leaves_the_steps_of_this_release_not_recorded(done: int) -> None:
    order = [FinalStep.COMPLETED, FinalStep.FLAGGED, FinalStep.ACKNOWLEDGED, FinalStep.CLOSED]
    assert steps_left(["POLISHED", *(step.value for step in order[:done])]) == tuple(order[done:])
