"""Values of metrics, and the limit on how many of them there are."""

from bisect import bisect_left

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.metrics import catalogue as m
from spark_ext.metrics.book import Book, Bound, Change, Sample, folded


def test_further_queries_are_counted_as_one_and_warned_of_once() -> None:
    said: list[str] = []
    book = Book(Bound("j", 3, said.append))
    for number in range(10):
        book.apply(Change(m.EPOCHS, ("j", f"q{number}"), 2))
        book.apply(Change(m.EPOCHS, ("j", "q0")))
    assert {sample.labels[1]: sample.value for sample in book.samples()} == {"q0": 12, "q1": 2, "q2": 2, m.OTHER: 14}
    assert len(said) == 1 and "spark_ext_epochs_total" in said[0] and "_other" in said[0]


def test_values_of_closed_labels_stay_apart_beyond_the_limit() -> None:
    book = Book(Bound("j", 1, lambda _: None))
    for query in ("a", "b", "c"):
        for kind in ("USER_CODE", "NETWORK"):
            book.apply(Change(m.FAILURES, ("j", query, kind, "user")))
    values = {sample.labels[1:3]: sample.value for sample in book.samples()}
    assert values == {("a", "USER_CODE"): 1, ("a", "NETWORK"): 1, (m.OTHER, "USER_CODE"): 2, (m.OTHER, "NETWORK"): 2}


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 5)), max_size=40), st.integers(1, 4))
def test_nothing_is_lost_to_the_limit_and_it_holds(changes: list[tuple[str, int]], limit: int) -> None:
    book = Book(Bound("j", limit, lambda _: None))
    for query, value in changes:
        book.apply(Change(m.INPUT_ROWS, ("j", query), value))
    samples = book.samples()
    assert len(samples) <= limit + 1
    assert sum(sample.value for sample in samples) == sum(value for _, value in changes)


@given(st.lists(st.floats(0, 1e4)))
def test_a_histogram_has_each_observation_in_its_bucket(values: list[float]) -> None:
    book = Book(Bound("j"))
    for value in values:
        book.apply(Change(m.EPOCH_DURATION, ("j", "q"), value))
    if not values:
        assert book.samples() == []
        return
    (sample,) = book.samples()
    assert sample.distribution is not None and sample.value == len(values)
    cumulated = [count for _, count in sample.distribution.cumulated(m.EPOCH_DURATION)]
    bounds = [*m.EPOCH_DURATION.buckets, float("inf")]
    assert cumulated == [sum(value <= bound for value in values) for bound in bounds]
    assert abs(sample.distribution.sum - sum(values)) <= 1e-6 * sum(values)
    assert bisect_left(bounds, bounds[0]) == 0, "a bound belongs to its bucket"


def test_gauges_that_share_labels_are_folded_as_metrics_demand() -> None:
    bound = Bound("j", 1, lambda _: None)
    queries = ("a", "b", "c")
    samples = [Sample(m.STATE_ROWS, ("j", query), value) for query, value in zip(queries, (1, 5, 3), strict=True)]
    samples += [Sample(m.WATERMARK_DELAY, ("j", query), value) for query, value in zip(queries, (1, 5, 3), strict=True)]
    found = {(sample.metric.name, sample.labels[1]): sample.value for sample in folded(samples, bound)}
    assert found == {
        ("spark_ext_state_rows", "a"): 1, ("spark_ext_state_rows", m.OTHER): 8,
        ("spark_ext_watermark_delay_seconds", "a"): 1, ("spark_ext_watermark_delay_seconds", m.OTHER): 5,
    }  # fmt: skip
