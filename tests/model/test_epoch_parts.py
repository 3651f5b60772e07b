"""The time of an epoch is shared out completely, and in proportion."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.epoch_parts import COMMIT, OTHER, PARTS, PlanTime, Sample, StageTime, attributed, divided

times = st.integers(0, 100_000)
intervals = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    stages = [
        StageTime(number, *draw(intervals), draw(times), draw(times), draw(st.booleans()))
        for number in range(draw(st.integers(0, 4)))
    ]
    plan = PlanTime(draw(st.booleans()), draw(times), draw(times), draw(times), draw(st.none() | times))
    jobs = draw(st.lists(intervals, max_size=3))
    return attributed(7, jobs, stages, plan, in_function=draw(st.booleans()))


@given(
    sample=samples(),
    spent=st.fixed_dictionaries({"planning": times, "execution": times, "log": times}),
    execution=st.none() | times,
)
def test_parts_are_all_of_the_time_and_none_is_negative(
    sample: Sample, spent: dict[str, int], execution: int | None
) -> None:
    parts = divided(spent, sample, execution)
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == sum(spent.values())
    assert min(parts.values()) >= 0


@given(samples())
def test_what_tasks_did_is_no_more_than_the_time_of_the_jobs(sample: Sample) -> None:
    assert min(sample.reading, sample.user_code, sample.state) >= 0
    assert sample.reading + sample.user_code + sample.state <= sample.jobs + 1e-6


SPENT = {"planning": 10, "execution": 1_000, "log": 5}


def parts(plan: PlanTime, *stages: StageTime, jobs: tuple[int, int] = (0, 800), **more: bool) -> dict[str, int]:
    return {part: ms for part, ms in divided(SPENT, attributed(1, [jobs], stages, plan, **more), None).items() if ms}


def test_a_stage_that_reads_and_runs_the_users_code() -> None:
    # Two tasks side by side: sums are twice the time by the clock.
    one = StageTime(0, 0, 800, 1_600)
    assert parts(PlanTime(reading_user=1_200), one) == {"planning": 10, "reading": 200, "user_code": 600, "commit": 205}


def test_what_comes_after_the_last_row_is_not_reading_where_the_same_tasks_write() -> None:
    one = StageTime(0, 0, 800, 800)
    found = parts(PlanTime(reading_most=100), one)
    assert (found["reading"], found[OTHER]) == (100, 700)


def test_behind_a_shuffle_nothing_is_reading() -> None:
    first, last = StageTime(3, 0, 200, 400, 40), StageTime(4, 200, 800, 600, 0, True)
    found = parts(PlanTime(True, 100, 60, 300, 1), first, last)
    # Of the first stage, two tasks side by side: 100 + 40 ms of 400 are not reading.
    assert found == {"planning": 10, "reading": 130, "user_code": 110, "state": 300, "commit": 205, "other": 260}


def test_stages_of_an_epoch_without_rows_read_a_shuffle_without_rows() -> None:
    found = parts(PlanTime(True, state=100), StageTime(3, 0, 200, 200), StageTime(4, 200, 800, 600))
    assert (found["reading"], found["state"]) == (200, 100)


def test_between_the_jobs_of_a_function_runs_the_function() -> None:
    found = parts(PlanTime(), StageTime(0, 0, 800, 800), in_function=True)
    assert (found["user_code"], found[COMMIT]) == (200, 5)


@pytest.mark.parametrize(("execution", "share"), [(1_000, 1), (2_000, 0.5), (None, 1)])
def test_an_epoch_near_the_one_that_was_looked_at_has_its_proportions(execution: int | None, share: float) -> None:
    sample = Sample(3, 400.0, user_code=300.0)
    assert divided(SPENT, sample, execution)["user_code"] == 300 * share


def test_jobs_that_overlap_count_once() -> None:
    assert attributed(0, [(0, 10), (5, 20), (30, 40)], [], PlanTime()).jobs == 30
