"""When a producer has to wait, when it is said that it does, and when that is an incident; and who falls behind."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.behind import EPOCHS, WINDOW, Standing, Trend
from spark_ext.model.pressure import (
    DEFAULT,
    SHOWN_AFTER,
    STRAINED,
    FlightLimit,
    Hold,
    Level,
    Pressure,
    in_flight,
    strained_after,
)

HOLD = Hold("x", "slow", 103, FlightLimit(100, rows=True), 5.0)


@pytest.mark.parametrize(
    ("given_", "limit", "stored"),
    [
        (100, FlightLimit(100, rows=True), 100), ("100_000", FlightLimit(100_000, rows=True), 100_000),
        ("1 GiB", FlightLimit(1 << 30, rows=False), "1 GiB"), ("64k", FlightLimit(65536, rows=False), "64k"),
        (None, None, None), ("none", None, None),
    ],
)  # fmt: skip
def test_a_limit_is_rows_or_a_size(given_: Any, limit: FlightLimit | None, stored: Any) -> None:
    assert FlightLimit.of(given_) == limit
    assert in_flight(given_) == stored and FlightLimit.of(stored) == limit


@pytest.mark.parametrize("wrong", [0, "0", -1, "0 B", "many", "1.5 GiB", "", True])
def test_what_is_no_limit_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="neither a number of rows"):
        FlightLimit.of(wrong)


def test_by_default_a_size_bounds_an_exchange_and_not_rows() -> None:
    limit = FlightLimit.of(DEFAULT)
    assert limit is not None
    assert not limit.reached(Level(rows=10**9, bytes=limit.amount - 1))
    assert limit.reached(Level(rows=1, bytes=limit.amount))


def test_a_hold_says_who_and_how_much_and_is_read_as_noted() -> None:
    assert HOLD.what == "held back by query 'slow': 103 of 100 rows in exchange 'x'"
    assert Hold.from_json(HOLD.to_json()) == HOLD


PIECES = st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=30)


def _after(pieces: list[tuple[bool, int]]) -> Pressure:
    found, now = Pressure().after(None, 0.0), 0.0
    for number, (held, quarters) in enumerate(pieces):
        hold = Hold("x", "slow", 1, FlightLimit(1, rows=True), float(number)) if held else None
        for _ in range(quarters):
            now += 0.25
            found = found.after(hold, now)
    return found


@given(PIECES)
def test_the_strain_is_bounded_by_the_time_held(pieces: list[tuple[bool, int]]) -> None:
    found = _after(pieces)
    held = sum(quarters for one, quarters in pieces if one) / 4
    assert 0.0 <= found.strain <= found.seconds <= held
    last = pieces[-1] if pieces else (False, 0)
    stood = (last[1] - 1) / 4 if last[0] else 0.0
    assert (found.standing is not None) is (stood >= SHOWN_AFTER)


def test_many_short_holds_strain_and_even_ones_do_not() -> None:
    assert _after([(True, 16), (False, 5)] * 20).strain >= STRAINED
    assert _after([(True, 40), (False, 42)] * 50).strain < STRAINED


def test_long_epochs_of_the_consumer_are_waited_for() -> None:
    assert strained_after([], None) == 2 * STRAINED, "nothing is known of it"
    assert strained_after([4_000] * 5, None) == STRAINED
    assert strained_after([60_000] * 5, None) == 120.0
    assert strained_after([60_000] * 5, 7.0) == 7.0, "as the user has fixed it"


def _trend(lags: list[int], *, step: float = 5.0, epochs: int = 5, read: int = 1000, busy: bool = True) -> Trend:
    found = Trend()
    for number, lag in enumerate(lags):
        found = found.after(Standing(number * step, number * epochs, lag, number * read, busy))
    return found


GROWS = [number * 1000 for number in range(14)]


def test_a_busy_query_whose_lag_grows_falls_behind() -> None:
    assert _trend(GROWS).falls_behind(epoch_ms=900.0)


@pytest.mark.parametrize(
    ("trend", "epoch_ms", "why"),
    [
        (_trend(GROWS[:12]), 900.0, "not for long enough"),
        (_trend(GROWS[::-1]), 900.0, "it works off what is there"),
        (_trend([5000] * 14), 900.0, "it keeps up, with a lag"),
        (_trend([number * 50 for number in range(14)]), 900.0, "by a twentieth of what it reads"),
        (_trend([0, 40_000, 20_000, 0] * 4), 900.0, "bursts that are worked off"),
        (_trend(GROWS), 500.0, "it does not work all the time: a rate limit, or its trigger"),
        (_trend(GROWS, busy=False), 900.0, "there are free slots"),
        (_trend(GROWS, epochs=0), 900.0, "it stands still: a stall"),
    ],
)
def test_others_do_not(trend: Trend, epoch_ms: float, why: str) -> None:
    assert not trend.falls_behind(epoch_ms), why


def test_a_pause_or_an_unknown_lag_begins_it_again() -> None:
    assert _trend(GROWS).after(None) == Trend()
    assert _trend(GROWS[::-1]).recovers and not _trend(GROWS).recovers and not _trend(GROWS[:3]).recovers


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=40), st.floats(100, 2000))
def test_who_falls_behind_is_further_behind_at_the_end(lags: list[int], epoch_ms: float) -> None:
    trend = _trend(lags, epochs=EPOCHS)
    assert trend.seconds <= WINDOW + 5.0
    if trend.falls_behind(epoch_ms):
        assert trend.standings[-1].lag > trend.standings[0].lag and not trend.recovers
