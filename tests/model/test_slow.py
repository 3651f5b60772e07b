"""When an epoch is slow although it moves, what it is in, and how many rows it will have: pure functions."""

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.failures.labels import Origin
from spark_ext.model.execution import Look, Phase, Tasks
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.slow import (
    ALIKE,
    FLOOR,
    KNOWN,
    NEEDED,
    EpochClock,
    Usual,
    advance,
    is_slow,
    planned_rows,
    slowed_by,
)
from spark_ext.model.stacks import Sample
from tests.model.test_stalls import MINE, WAITS, WORKER, java, worker

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUNS = Look(T0, Phase.EPOCH, Tasks(running=2))
NOT_WORKING = [
    *(Look(T0, phase, None) for phase in (Phase.IDLE, Phase.PLANNING, Phase.UNKNOWN)),
    Look(T0, Phase.EPOCH, Tasks(waiting=3)),
]


@given(st.floats(0.05, 100), st.integers(1, 10_000), st.integers(1, 50), st.floats(0.1, 19))
def test_an_epoch_may_take_as_long_for_a_row_as_usual(seconds: float, rows: int, larger: int, slower: float) -> None:
    known = Usual.of([(round(1000 * seconds), rows)] * KNOWN)
    assert known is not None
    assert not is_slow(known.seconds * larger * slower, known, rows * larger, 20.0)
    # And an epoch of the usual size may not take so long.
    assert is_slow(max(FLOOR, 20.1 * known.seconds), known, rows, 20.0)


@given(st.floats(0.001, 1000), st.integers(0, 100), st.integers(0, 10**6), st.floats(1, 100), st.floats(0, 2000))
def test_only_more_time_makes_epochs_slow(usual: float, usually: int, rows: int, factor: float, seconds: float) -> None:
    known = Usual(usual, usually)
    if is_slow(seconds, known, rows + 1, factor):
        assert is_slow(seconds, known, rows, factor)
    if is_slow(seconds, known, rows, factor):
        assert is_slow(seconds + 1, known, rows, factor)
        assert seconds >= FLOOR


def test_it_can_be_switched_off_and_needs_some_epochs() -> None:
    known = Usual.of([(100, 10)] * KNOWN)
    assert is_slow(1e6, known, 10, 20) and not is_slow(1e6, known, 10, 0)
    assert Usual.of([(100, 10)] * (KNOWN - 1)) is None and not is_slow(1e6, None, 10, 20)


@given(st.lists(st.tuples(st.sampled_from([RUNS, *NOT_WORKING]), st.floats(0.1, 5)), max_size=20))
def test_only_time_between_two_looks_at_work_counts(looks: list[tuple[Look, float]]) -> None:
    clock, now, expected, before = EpochClock().after(RUNS, 0, 0.0), 0.0, 0.0, RUNS
    for look, seconds in looks:
        now += seconds
        clock = clock.after(look, 0, now)
        if look.phase is not Phase.EPOCH:
            expected = 0.0
        elif look is RUNS and before is RUNS:
            expected += seconds
        before = look
        assert clock.worked == pytest.approx(expected)


def test_another_epoch_begins_anew() -> None:
    clock = EpochClock().after(RUNS, 0, 0.0).after(RUNS, 0, 20)
    assert clock.worked == 20
    assert clock.after(RUNS, 1, 21).worked == 0


USERS = Sample((worker([*MINE, *WORKER]),))
AWAITED = Sample((worker(WAITS),), tasks=(java("org.apache.spark.api.python.R.read(R.scala:1)"),))
ANOTHERS = replace(USERS, workers=(replace(USERS.workers[0], alone=False),), tasks=AWAITED.tasks)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # It moves: by chance a sample may see it wait for its next rows.
        ([USERS, AWAITED, USERS], "USER_CODE user"),
        ([USERS, AWAITED], "USER_CODE user"),
        ([AWAITED, AWAITED, USERS], "SYSTEM spark"),
        ([Sample(silent=("1",))], "SYSTEM spark"),
        # A worker that may be another query's says nothing about this one.
        ([ANOTHERS], "SYSTEM spark"),
    ],
)
def test_what_slows_an_epoch_is_what_most_samples_say(samples: list[Sample], expected: str) -> None:
    found = slowed_by(Phase.EPOCH, samples)
    assert f"{found.type.value} {found.origin.value}" == expected
    if found.origin is Origin.USER:
        assert found.frame is not None and found.threads == USERS.workers[0].threads


def logged(*sources: Any) -> LoggedOffsets:
    return LoggedOffsets(1, {}, sources)


POSITIONS = st.lists(st.integers(0, 10**9), min_size=1, max_size=5)


@given(POSITIONS, st.data())
def test_the_advance_is_the_sum_over_all_sources_and_channels(positions: list[int], data: st.DataObject) -> None:
    by = [data.draw(st.integers(0, 1000)) for _ in positions]
    later = [at + far for at, far in zip(positions, by, strict=True)]
    before, after = (
        logged({"t": {str(n): at for n, at in enumerate(reached)}}, reached, day)
        for reached, day in ((positions, "2026-01-01"), (later, "2026-02-01"))
    )
    assert advance(before, after) == 2 * sum(by)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 2, "b": 9}), (None, {"a": 2}), ({"logOffset": 1}, {"logOffset": 2}),
        ({"reservoirVersion": 1, "index": -1}, {"reservoirVersion": 2, "index": -1}),
    ],
)  # fmt: skip
def test_offsets_that_do_not_count_rows_say_nothing(before: Any, after: Any) -> None:
    assert advance(logged(before), logged(after)) is None


@given(st.floats(0.01, 1000), st.lists(st.integers(1, 10**6), min_size=NEEDED, max_size=20), st.integers(0, 10**7))
def test_rows_in_proportion_to_advances_are_known_in_advance(rate: float, far: list[int], now: int) -> None:
    known = [(one / rate, one) for one in far]
    assert planned_rows(known, now / rate) == pytest.approx(now)
    assert planned_rows(known[: NEEDED - 1], now / rate) is None
    assert planned_rows(known, None) is None
    assert planned_rows([*known, (1.0, round(ALIKE * rate) + 2)], now / rate) is None
