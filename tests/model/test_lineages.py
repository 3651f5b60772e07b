"""Lineages and names of queries, what a lineage takes over from its parent, and what a job restores by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.model.lineages import FIRST, LineageEvent, Lineages, Restored, Span, checkpoint_to_restore, counted


def reset(query: str, lineage: int, incarnation: int = 1) -> LineageEvent:
    return LineageEvent(query, lineage, incarnation)


def renamed(new: str, old: str, lineage: int, newest: int, incarnation: int = 1) -> tuple[LineageEvent, LineageEvent]:
    """As the ledger has it: the new name keeps the lineage, the old one gets a new one."""
    return LineageEvent(new, lineage, incarnation, old), reset(old, newest + 1, incarnation)


def test_without_events_a_query_has_its_own_name_and_no_lineage() -> None:
    assert Lineages().of("q") is None
    assert Lineages().newest == FIRST
    assert Lineages().names("q", FIRST) == ("q",)
    assert Lineages().spans("q") == (Span("q", 0),)


def test_a_reset_of_the_job_is_one_of_each_query() -> None:
    lineages = Lineages((reset("q", 2), reset("", 3)))
    assert (lineages.of("q"), lineages.of("r"), lineages.newest) == (3, 3, 3)


def test_renames_keep_a_lineage_until_a_reset_ends_it() -> None:
    lineages = Lineages(renamed("new", "old", 1, 1, incarnation=4))
    assert (lineages.of("new"), lineages.of("old")) == (1, 2)
    assert lineages.names("new", 1) == ("new", "old")
    assert lineages.names("old", 2) == ("old",)
    assert lineages.spans("new") == (Span("new", 4), Span("old", 0, 4))
    assert lineages.spans("old") == (Span("old", 4),)
    assert lineages.renamed("new", "old") and not lineages.renamed("old", "new")
    (now, before) = lineages.spans("new")
    assert now.holds("new", 4) and not now.holds("new", 3) and not now.holds("old", 5)
    assert before.holds("old", 3) and not before.holds("old", 4)
    lineages = Lineages((*renamed("b", "a", 1, 1, 2), *renamed("c", "b", 1, 2, 3), *renamed("a", "c", 1, 3, 4)))
    assert lineages.of("a") == 1
    assert lineages.names("a", 1) == ("a", "c", "b")
    assert lineages.spans("a") == (Span("a", 4), Span("c", 3, 4), Span("b", 2, 3), Span("a", 0, 2))
    assert (lineages.of("b"), lineages.of("c")) == (3, 4)
    lineages = Lineages((*renamed("b", "a", 1, 1, 2), reset("b", 3, 3)))
    assert lineages.names("b", 3) == ("b",)
    assert lineages.spans("b") == (Span("b", 3),)
    assert not lineages.renamed("b", "a")


names = st.sampled_from("abcdef")


@given(st.lists(st.one_of(st.tuples(st.just("reset"), names), st.tuples(names, names)), max_size=8))
def test_no_row_belongs_to_two_queries(steps: list[tuple[str, str]]) -> None:
    """Whatever is reset and renamed: of any two queries no name in the lineage of one is one of the other's."""
    events: list[LineageEvent] = []
    used = set("abcd")
    for incarnation, (what, name) in enumerate(steps, 2):
        lineages = Lineages(tuple(events))
        if what == "reset":
            events.append(reset(name, lineages.newest + 1, incarnation))
        elif what != name:
            # The new name was never used, or is a former one of this query.
            lineage = lineages.of(name) or FIRST
            if what in used and what not in lineages.names(name, lineage):
                continue
            used |= {what, name}
            events += renamed(what, name, lineage, lineages.newest, incarnation)
    lineages = Lineages(tuple(events))
    rows = [
        (name, lineages.of(query) or FIRST)
        for query in "abcdef"
        for name in lineages.names(query, lineages.of(query) or FIRST)
    ]
    assert len(rows) == len(set(rows))


def restored(lineage: int, parent: int, **cut: int) -> LineageEvent:
    return LineageEvent("q", lineage, 1, parent=parent, cut=cut)


def test_i10_what_a_restored_lineage_takes_over_ends_at_each_cut() -> None:
    events = (restored(2, 1, s=5), restored(3, 2, s=8, t=1), reset("q", 4), restored(5, 3, s=3))
    assert counted(1, "s", events) == ((1, None),)
    assert counted(2, "s", events) == ((2, None), (1, 5))
    assert counted(2, "t", events) == ((2, None), (1, 0))
    assert counted(3, "s", events) == ((3, None), (2, 8), (1, 5))
    assert counted(3, "t", events) == ((3, None), (2, 1), (1, 0))
    assert counted(4, "s", events) == ((4, None),), "a reset begins anew"
    assert counted(5, "s", events) == ((5, None), (3, 3), (2, 3), (1, 3)), "a cut before the parent's own"


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6))
def test_one_never_counts_more_of_an_ancestor_than_its_parent(cuts: list[tuple[int, int]]) -> None:
    events = [restored(lineage, min(parent, lineage - 1), s=at) for lineage, (parent, at) in enumerate(cuts, 2)]
    for event in events:
        assert event.parent is not None
        mine, parents = dict(counted(event.lineage, "s", events)), dict(counted(event.parent, "s", events))
        assert mine.keys() == {event.lineage, *parents}
        for lineage, limit in parents.items():
            kept = mine[lineage]
            assert kept is not None and kept <= event.cut["s"] and (limit is None or kept <= limit)


def test_the_present_name_of_what_had_another_one() -> None:
    known = Lineages((*renamed("b", "a", 1, 1, 2), *renamed("c", "b", 1, 2, 3), *renamed("d", "a", 2, 3, 4)))
    assert [(one.old, one.new, one.lineage) for one in known.renames] == [("a", "b", 2), ("b", "c", 3), ("a", "d", 4)]
    assert known.present_name("a", 1) == "c"
    assert (known.later_names("a", 1), known.later_names("a", 2)) == (("a", "b", "c"), ("a", "d"))
    assert known.present_name("a", 2) == "d", "another query, which has taken the name over"
    assert [known.present_name(name, 4) for name in "abcd"] == ["a", "b", "c", "d"]


AGAIN = "it has been restored from checkpoint {}, and has completed none since"
NOTHING = "no checkpoint of its present history is retained"


@pytest.mark.parametrize(
    ("retained", "lineage", "restores", "expected"),
    [
        ({}, 1, [], NOTHING),
        ({3: 1, 4: 1}, 1, [], 4),
        # Restored from 3: what was completed later in the lineage that was abandoned is not the job's past.
        ({3: 1, 4: 1}, 2, [Restored(2, 1, 3)], AGAIN.format(3)),
        ({3: 1, 4: 1, 5: 2}, 2, [Restored(2, 1, 3)], 5),
        # 3 itself is not retained any more; 2 is older.
        ({2: 1, 4: 1}, 2, [Restored(2, 1, 3)], 2),
        # Of a savepoint nobody knows which checkpoints are older.
        ({2: 1, 4: 1}, 2, [Restored(2, 1, None)], NOTHING),
        # A reset has begun a lineage of its own.
        ({2: 1}, 2, [], NOTHING),
        # Twice: 7 has been abandoned by the second restore, 4 by the first one.
        ({1: 1, 4: 1, 7: 2}, 3, [Restored(2, 1, 2), Restored(3, 2, 5)], 1),
    ],
)
def test_the_newest_one_of_the_present_history(
    retained: dict[int, int], lineage: int, restores: list[Restored], expected: int | str
) -> None:
    number, why_not = checkpoint_to_restore(retained, lineage, restores)
    assert (why_not if number is None else number) == expected


@given(st.lists(st.sampled_from(["checkpoint", "restore"]), max_size=30), st.integers(1, 4))
def test_restoring_by_itself_ends(history: list[str], keep: int) -> None:
    """Whatever comes, a job that restores itself, and fails again at once, stops after the first time."""
    retained: dict[int, int] = {}
    restores: list[Restored] = []
    lineage, last = 1, None
    for number, event in enumerate(history):
        if event == "checkpoint":
            retained = dict(sorted({**retained, number: lineage}.items())[-keep:])
            last = "checkpoint"
            continue
        found, _ = checkpoint_to_restore(retained, lineage, restores)
        assert found is None or last != "restore"
        if found is not None:
            assert found == max(retained), "nothing newer was abandoned, as it always takes the newest one"
            restores.append(Restored(lineage + 1, lineage, found))
            lineage += 1
            last = "restore"
