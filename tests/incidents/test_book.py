"""Which incidents are the same, which are open, and what resolves them: laws, and one case of each rule."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.incidents.book import COUNT_EVERY, EACH_UPTO, MOST_ALIKE, MOST_RESOLVED, OTHER, Book, IncidentEntry
from spark_ext.incidents.types import IncidentChange
from tests.incidents.made import OPEN, RESOLVED, at, incident, registry

TYPES = ("late", "lone", "noted", "told", "broken")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["occurred", "committed", "finished", "all", "counts", "resolve"]), st.sampled_from(TYPES),
        st.sampled_from(["", "a", "b"]), st.sampled_from(["f", "g"]), st.integers(0, 90),
    ),
    max_size=60,
)  # fmt: skip


def played(steps: list[tuple[str, str, str, str, int]]) -> tuple[Book, list[IncidentChange], int]:
    """A book after some steps, all changes in order, and how many occurrences there were."""
    book, now, occurred = Book(registry()), 0, 0
    changes: list[IncidentChange] = []
    for number, (step, type_, query, fingerprint, wait) in enumerate(steps):
        now += wait
        if step == "occurred":
            occurred += 1
            changes += book.occurred(incident(f"i{number}", now, type_, query, fingerprint=fingerprint)).changes
        elif step == "committed":
            changes += book.committed(query, "epoch 1", at(now))
        elif step == "finished":
            changes += book.committed(query, "it has finished", at(now))
        elif step == "all":
            changes += book.finished("the job has finished", at(now))
        elif step == "counts":
            changes += book.counts(at(now))
        else:
            for entry in book.open():
                changes += book.resolve(entry.incident.incident_id, "reported", at(now))
    return book, [*changes, *book.counts(at(now), everything=True)], occurred


@settings(deadline=None)
@given(STEPS)
def test_changes_are_a_chain_that_agrees_and_loses_nothing(steps: list[tuple[str, str, str, str, int]]) -> None:
    book, changes, occurred = played(steps)
    last: dict[str, IncidentChange] = {}
    for one in changes:
        before = last.get(one.incident.incident_id)
        assert (one.old, one.count >= (before.count if before else 0)) == (before and before.new, True)
        last[one.incident.incident_id] = one
    assert {one for one, it in last.items() if it.new is OPEN} == {it.incident.incident_id for it in book.open()}
    assert sum(one.count for one in last.values()) == occurred


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=30))
def test_gaps_above_the_window_divide_equal_ones(waits: list[int]) -> None:
    book, now, ids = Book(registry()), 0, set()
    for number, wait in enumerate(waits):
        now += wait
        ids.add(book.occurred(incident(f"i{number}", now)).incident.incident_id)
    assert len(ids) == 1 + sum(wait > 60 for wait in waits[1:])


@pytest.fixture
def book() -> Book:
    return Book(registry())


def test_what_differs_is_another_incident(book: Book) -> None:
    ones = [incident("a"), incident("b", fingerprint="g"), incident("c", query="r"), incident("d", type_="broken")]
    assert [book.occurred(one).incident.incident_id for one in ones] == ["a", "b", "c", "d"]
    assert [book.occurred(incident(f"l{n}", type_="lone")).incident.incident_id for n in range(3)] == ["l0", "l1", "l2"]


def test_an_epoch_resolves_what_its_query_and_job_have_open(book: Book) -> None:
    for one in (incident("a"), incident("b", query="other"), incident("c", query=""), incident("d", type_="told")):
        book.occurred(one)
    changes = book.committed("q", "query 'q' has committed epoch 7", at(5))
    assert [one.incident.incident_id for one in changes] == ["a", "c"]
    assert {(one.old, one.new) for one in changes} == {(OPEN, RESOLVED)}
    assert {one.cause for one in changes} == {"query 'q' has committed epoch 7"}
    assert [entry.incident.incident_id for entry in book.open()] == ["d", "b"]
    assert book.committed("q", "again", at(6)) == ()


def test_it_reopens_if_it_happens_again_within_the_window(book: Book) -> None:
    book.occurred(incident("a", 0))
    book.committed("q", "epoch 1", at(1))
    again = book.occurred(incident("b", 2))
    assert again.notable and again.incident.incident_id == "a"
    (one,) = again.changes
    assert (one.old, one.new, one.count, one.cause) == (RESOLVED, OPEN, 2, "it happened again")
    book.committed("q", "epoch 2", at(3))
    assert book.occurred(incident("c", 200)).incident.incident_id == "c"


def test_information_is_resolved_at_once_and_never_open(book: Book) -> None:
    first, second = book.occurred(incident("a", 0, "noted")), book.occurred(incident("b", 1, "noted"))
    changes = [(one.old, one.new, one.count) for one in (*first.changes, *second.changes)]
    assert changes == [(None, RESOLVED, 1), (RESOLVED, RESOLVED, 2)]
    assert not book.open() and not second.notable


def test_another_action_is_told_and_a_repetition_is_only_counted() -> None:
    book = Book(registry(), [IncidentEntry(incident("a"), OPEN, 3, inherited=True)])
    assert [book.occurred(incident(str(n), n)).notable for n in (1, 2, 3)] == [True, False, False], "once in each start"
    assert book.open()[0].count == 6
    book = Book(registry())
    actions = ["restart 1", "restart 1", "restart 2", "stopped"]
    assert [book.occurred(incident(str(n), n, action=action)).notable for n, action in enumerate(actions)] == [
        True, False, True, True,
    ]  # fmt: skip


def test_great_counts_are_recorded_from_time_to_time(book: Book) -> None:
    changes = [one for n in range(1000) for one in book.occurred(incident(str(n), n / 1000)).changes]
    assert [one.count for one in changes] == list(range(1, EACH_UPTO + 1))
    assert book.uncounted and book.counts(at(2)) == ()
    (late,) = book.counts(at(2) + COUNT_EVERY)
    assert (late.count, late.counted) == (1000, True) and not book.counts(at(1000), everything=True)
    book.occurred(incident("x", 60))
    (end,) = book.committed("q", "epoch 1", at(63))
    assert (end.count, end.new) == (1001, RESOLVED) and not book.counts(at(1000), everything=True)


def test_what_happens_in_a_recovery_has_its_cause_as_parent(book: Book) -> None:
    book.occurred(incident("cause", 0, "broken"))
    assert book.occurred(incident("first", 1)).incident.parent == "cause"
    assert book.occurred(incident("second", 2, "broken", fingerprint="g")).incident.parent == "cause"
    assert book.occurred(incident("third", 3, "lone")).incident.parent == "second"
    assert book.occurred(incident("other", 3, query="r")).incident.parent is None
    assert book.occurred(incident("given", 3, "lone", parent="x")).incident.parent == "x"
    book.committed("q", "epoch 1", at(4))
    assert book.occurred(incident("after", 5, "lone")).incident.parent is None
    # One that is counted keeps the parent that it had.
    assert book.occurred(incident("again", 6)).incident.parent == "cause"


def test_a_storm_of_different_ones_is_one_beyond_a_limit(book: Book) -> None:
    found = Counter(
        book.occurred(incident(str(n), n / 1000, fingerprint=str(n))).incident.incident_id
        for n in range(MOST_ALIKE + 500)
    )
    assert len(found) == MOST_ALIKE + 1 and max(found.values()) == 500
    assert sum(entry.incident.fingerprint == OTHER for entry in book.open()) == 1
    book.committed("q", "epoch 1", at(5))
    assert book.occurred(incident("later", 500, fingerprint="new")).incident.fingerprint == "new"


def test_old_ones_that_are_resolved_are_forgotten(book: Book) -> None:
    for n in range(MOST_RESOLVED * 3):
        book.occurred(incident(str(n), n, "lone", query=f"q{n}"))
        book.committed(f"q{n}", "epoch", at(n))
    assert book.entry("0") is None
    assert book.entry(str(MOST_RESOLVED * 3 - 1)) is not None
    assert len(book._entries) <= MOST_RESOLVED + 1 and len(book._alike) <= MOST_RESOLVED + 1


def test_inherited_ones_are_open_counted_and_adopted() -> None:
    left = [
        IncidentEntry(incident("a", query="old"), OPEN, 3),
        IncidentEntry(incident("b", query="gone"), OPEN),
        IncidentEntry(incident("c"), OPEN),
    ]
    book = Book(registry(), left)
    (gone,) = book.adopt({"a": "new", "b": None, "unknown": "x"}, "it was reset", at(9))
    assert (gone.incident.incident_id, gone.new, gone.cause) == ("b", RESOLVED, "it was reset")
    assert [entry.incident.incident_id for entry in book.open("new")] == ["a"] and not book.open("old")
    (resolved,) = book.committed("new", "epoch 4", at(10))
    assert (resolved.incident.incident_id, resolved.count) == ("a", 3)
    assert book.occurred(incident("d", 11)).incident.incident_id == "c"
