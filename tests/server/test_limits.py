"""Token buckets and places for waiting requests."""

from spark_ext.server.limits import Buckets, Slots, retry_after


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    buckets = Buckets(rate=10, burst=3)
    assert [buckets.take("a", 100) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 100) == 0.1
    assert buckets.take("b", 100) == 0
    assert round(buckets.take("a", 100.05), 3) == 0.05
    assert buckets.take("a", 100.15) == 0
    assert buckets.take("a", 100.15) > 0
    # A refused request costs nothing, and after any quiet time there is one burst.
    assert [buckets.take("a", 999) for _ in range(4)][:3] == [0, 0, 0]


def test_only_so_many_buckets_are_kept() -> None:
    buckets = Buckets(rate=1, burst=1, most=2)
    for key in ("a", "b", "c"):
        assert buckets.take(key, 0) == 0
    assert buckets.take("c", 0) > 0
    assert buckets.take("a", 0) == 0


def test_slots_are_limited_for_all_and_for_each() -> None:
    slots = Slots(most=3, each=2)
    assert [slots.take("a") for _ in range(3)] == [True, True, False]
    assert [slots.take("b") for _ in range(2)] == [True, False]
    slots.give("a")
    with slots.taken("b") as taken:
        assert taken
    with slots.taken("c") as taken:
        assert taken
        with slots.taken("a") as another:
            assert not another
    assert slots.take("a")


def test_the_header_has_whole_seconds() -> None:
    assert [retry_after(seconds) for seconds in (0.0, 0.2, 1.0, 1.1)] == ["1", "1", "1", "2"]
