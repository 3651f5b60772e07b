"""`datagen` at the level of its contract: any row depends on seed, channel and row number alone."""

from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError
from spark_ext.options import instant
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.datagen import BATCH_ROWS, DEFAULT_START, DEFAULT_START_US, SCHEMA, DataGen
from spark_ext.testing.source_kit import drive


def options(**more: object) -> dict[str, str]:
    return {"uid": "gen-test", **{name: str(value) for name, value in more.items()}}


def rows(made: DataGen, channel: str, start: int, end: int) -> pa.Table:
    return pa.Table.from_batches(made.read(Channel(channel), start, end), schema=SCHEMA)


@pytest.mark.slow(1, "several batches of generated rows, ten times")
@given(cuts=st.lists(st.integers(0, 3 * BATCH_ROWS), min_size=1, max_size=4), seed=st.integers(-5, 5))
@settings(max_examples=10, deadline=None)
def test_a_row_does_not_depend_on_where_reading_began(cuts: list[int], seed: int) -> None:
    made = DataGen(options(channels=3, seed=seed, skew=1.1, out_of_order=500))
    whole = rows(made, "2", 0, 3 * BATCH_ROWS)
    places = [0, *sorted(cuts), 3 * BATCH_ROWS]
    assert pa.concat_tables([rows(made, "2", start, end) for start, end in pairwise(places)]).equals(whole)


def test_rows_of_a_known_seed_and_the_default_start() -> None:
    assert instant(DEFAULT_START).value == DEFAULT_START_US * 1000
    # Pinned, so that a checkpoint of today replays the same rows with a later release.
    (first,) = rows(DataGen(options(seed=7, channels=2, keys=10)), "1", 5, 6).to_pylist()
    assert (first["id"], first["channel"], first["seq"]) == (11, 1, 5)
    assert (first["ts"].isoformat(), first["tag"]) == ("2024-01-01T00:00:00.005000+00:00", f"key-{first['key']}")
    assert (first["key"], first["value"]) == (8, 0.05406791399532185)


def test_seed_and_channel_change_the_rows() -> None:
    seen = {
        tuple(rows(DataGen(options(seed=seed, channels=4)), channel, 0, 5)["value"].to_pylist())
        for seed in range(3)
        for channel in "0123"
    }
    assert len(seen) == 12


def test_values_are_spread_evenly_and_keys_by_zipf() -> None:
    even = rows(DataGen(options(keys=10)), "0", 0, 100_000)
    assert set(even["key"].to_pylist()) == set(range(10))
    assert max(Counter(even["key"].to_pylist()).values()) < 10_600
    assert 0.49 < sum(even["value"].to_pylist()) / 100_000 < 0.51
    skewed = Counter(rows(DataGen(options(keys=10, skew=1)), "0", 0, 100_000)["key"].to_pylist())
    assert 1.8 < skewed[0] / skewed[1] < 2.2
    assert 9 < skewed[0] / skewed[9] < 11


def test_event_time_is_late_by_less_than_asked() -> None:
    made = DataGen(options(step_ms=10, out_of_order="1 s", start_time="2020-02-03 04:05:06"))
    times = rows(made, "0", 0, 10_000)["ts"].cast(pa.int64()).to_pylist()
    due = [1_580_702_706_000_000 + n * 10_000 for n in range(10_000)]
    late = [there - here for there, here in zip(due, times, strict=True)]
    assert min(late) >= 0
    assert 900_000 < max(late) < 1_000_000
    assert times != sorted(times)


def test_pace_follows_the_clock_from_a_start_that_is_remembered() -> None:
    now = [1_000.0]

    class Clocked(DataGen):
        clock = staticmethod(lambda: now[0])

    made = Clocked(options(rows_per_second=100, channels=2))
    made.resume([], frozenset())
    channels = list(made.discover())
    assert made.advance(channels[0], 0, Limit()).end == 0
    now[0] += 3
    assert made.advance(channels[0], 0, Limit()).end == 150
    assert made.advance(channels[1], 100, Limit(rows=20)).end == 120
    assert made.latest(channels[1]) == 150
    again = Clocked(options(rows_per_second=100, channels=2))
    again.resume([Channel("0", None, channels[0].data)], frozenset())
    now[0] += 1
    assert [again.advance(one, 150, Limit()).end for one in again.discover()] == [200, 200]


def test_an_endless_source_stops_at_what_was_there() -> None:
    made = DataGen(options())
    assert not made.bounded
    (channel,) = made.discover()
    step = made.advance(channel, 0, Limit())
    assert step.end > 0
    assert not step.finished
    assert made.advance(channel, 0, Limit(upto=5)).end == 5


def test_rows_are_spread_over_channels_and_parts_of_a_range() -> None:
    made = DataGen(options(rows=1_000_000))
    (channel,) = made.discover()
    parts = made.split(channel, 0, 1_000_000, 4)
    assert parts == [(0, 250_000), (250_000, 500_000), (500_000, 750_000), (750_000, 1_000_000)]
    made = DataGen(options(rows=10, channels=4))
    assert [channel.data["rows"] for channel in made.discover()] == [3, 3, 2, 2]


def test_some_columns_only() -> None:
    trace = drive(DataGen, options(rows=3), schema=columns("seq bigint, channel bigint"))
    assert trace.all_rows().to_pylist() == [{"seq": n, "channel": 0} for n in range(3)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rows": 1, "rows_of": "1"}, "exclude"), ({"channels": 3, "rows_of": "1,2"}, "2 numbers for 3"),
        ({"rows_of": "1,-2"}, "0 and more"), ({"rows_of": "1,x"}, "rows_of"), ({"keys": 0}, "keys"),
        ({"start_time": "noon-ish"}, "start_time"),
    ],
)  # fmt: skip
def test_options_are_refused_early(more: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataGen(options(**more))
