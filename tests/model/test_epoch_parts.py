"""The time of an epoch is shared out completely, and in proportion."""

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
    return attributed(7, draw(st.lists(intervals, max_size=3)), stages, plan, in_function=draw(st.booleans()))


@given(
    sample=samples(),
    spent=st.fixed_dictionaries({"planning": times, "execution": times, "log": times}),
    execution=st.none() | times,
)
def test_parts_are_all_of_the_time(sample: Sample, spent: dict[str, int], execution: int | None) -> None:
    parts = divided(spent, sample, execution)
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == sum(spent.values())
    assert min(parts.values()) >= 0


@given(samples())
def test_what_tasks_did_is_no_more_than_the_time_of_the_jobs(sample: Sample) -> None:
    assert min(sample.reading, sample.user_code, sample.state) >= 0
    assert sample.reading + sample.user_code + sample.state <= sample.jobs + 1e-6


SPENT = {"planning": 10, "execution": 1_000, "log": 5}
ONE = StageTime(0, 0, 800, 800)


@pytest.mark.parametrize(
    ("plan", "stages", "in_function", "wanted"),
    [
        # It reads and runs the user's code, in two tasks side by side: sums are twice the time by the clock.
        (PlanTime(reading_user=1_200), [StageTime(0, 0, 800, 1_600)], False, {"reading": 200, "user_code": 600}),
        # What comes after the last row is not reading where the same tasks write.
        (PlanTime(reading_most=100), [ONE], False, {"reading": 100, OTHER: 700}),
        # Behind a shuffle nothing is reading. Of the first stage, 100 + 40 ms of 400 are not.
        (
            PlanTime(True, 100, 60, 300, 1), [StageTime(3, 0, 200, 400, 40), StageTime(4, 200, 800, 600, 0, True)],
            False, {"planning": 10, "reading": 130, "user_code": 110, "state": 300, COMMIT: 205, OTHER: 260},
        ),
        # Stages of an epoch without rows read a shuffle without rows.
        (
            PlanTime(True, state=100), [StageTime(3, 0, 200, 200), StageTime(4, 200, 800, 600)], False,
            {"reading": 200, "state": 100},
        ),
        # Between the jobs of a function runs the function.
        (PlanTime(), [ONE], True, {"user_code": 200, COMMIT: 5}),
    ],
)  # fmt: skip
def test_parts_of_an_epoch(plan: PlanTime, stages: list[StageTime], in_function: bool, wanted: dict[str, int]) -> None:
    found = divided(SPENT, attributed(1, [(0, 800)], stages, plan, in_function=in_function), None)
    assert found.items() >= wanted.items()


@pytest.mark.parametrize(("execution", "share"), [(1_000, 1), (2_000, 0.5), (None, 1)])
def test_an_epoch_near_the_one_looked_at_has_its_proportions(execution: int | None, share: float) -> None:
    assert divided(SPENT, Sample(3, 400.0, user_code=300.0), execution)["user_code"] == 300 * share


def test_jobs_that_overlap_count_once() -> None:
    assert attributed(0, [(0, 10), (5, 20), (30, 40)], [], PlanTime()).jobs == 30
