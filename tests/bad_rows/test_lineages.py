"""Which rows count after any sequence of epochs, savepoints and restores."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from spark_ext.bad_rows.lineages import Ancestry, Cut, condition

steps = st.lists(
    st.one_of(
        st.sampled_from([("epoch", 0), ("other", 0), ("save", 0)]), st.tuples(st.just("restore"), st.integers(0, 9))
    )
)


@given(steps)
def test_what_counts_is_what_the_savepoint_had(given_steps: list[tuple[str, int]]) -> None:
    """Each epoch of a run makes a row, or another source of the query has made it.

    A savepoint remembers the rows, and a restore has to find exactly these.
    """
    ancestry, lineage, newest = Ancestry(), 1, -1
    present: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    saved: list[tuple[Cut | None, int, frozenset[tuple[int, int]]]] = []
    offset_lineage = 1
    for step, number in given_steps:
        if step == "epoch":
            newest, offset_lineage = newest + 1, lineage
            present.add((lineage, newest))
            written.add((lineage, newest))
        elif step == "other":
            newest += 1
        elif step == "save":
            saved.append((Cut(offset_lineage, newest) if newest >= 0 else None, lineage, frozenset(present)))
        elif saved:
            found_cut, then, rows = saved[number % len(saved)]
            ancestry = Ancestry.from_json(ancestry.to_json())
            cut = None if found_cut is None else ancestry.placed("s", found_cut, then)
            cuts = ancestry.counting("s", cut)
            found = {row for row in written for one in cuts if row[0] == one.lineage and row[1] <= one.epoch}
            assert found == rows
            lineage += 1
            ancestry = ancestry.continued("s", lineage, cut)
            newest, present = (-1 if cut is None else cut.epoch), set(rows)
            offset_lineage = lineage if found_cut is None else found_cut.lineage


def test_sources_have_lineages_of_their_own() -> None:
    ancestry = Ancestry().continued("a", 2, Cut(1, 5)).continued("b", 3, None)
    assert ancestry.counting("a", Cut(2, 7)) == (Cut(2, 7), Cut(1, 5))
    assert ancestry.counting("b", Cut(2, 7)) == (Cut(2, 7),)


def test_a_restore_that_was_interrupted_leaves_a_lineage_that_nobody_continues() -> None:
    ancestry = Ancestry().continued("a", 2, Cut(1, 5)).continued("a", 3, Cut(1, 9))
    assert ancestry.counting("a", Cut(3, 10)) == (Cut(3, 10), Cut(1, 9))


def test_the_condition() -> None:
    assert condition(()) == "false"
    assert condition((Cut(2, 7), Cut(1, 5))) == "(lineage = 2 and epoch <= 7) or (lineage = 1 and epoch <= 5)"


def test_a_source_that_has_planned_nothing_since_a_restore_is_in_its_lineage_all_the_same() -> None:
    """Lineage 1 had rows up to epoch 9; lineage 2 continues from 5, and only other sources of the query have read."""
    ancestry = Ancestry().continued("a", 2, Cut(1, 5))
    assert ancestry.placed("a", Cut(1, 8), newest=2) == Cut(2, 8)
    assert ancestry.placed("a", Cut(1, 8), newest=1) == Cut(1, 8), "a savepoint from before the restore"
    assert ancestry.placed("a", Cut(3, 8), newest=3) == Cut(3, 8), "after a reset"
    assert ancestry.placed("b", Cut(1, 8), newest=2) == Cut(1, 8)
