"""Who may commit: marks of starts, and states that are older than their target."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import FencedError, StateError
from spark_ext.model.commits import Claim, FenceMark

marks = st.builds(FenceMark, st.integers(1, 4), st.integers(1, 4))


@given(marks, marks)
def test_of_two_starts_at_most_one_may_commit_after_a_claim(one: FenceMark, other: FenceMark) -> None:
    allowed = one == other or one.incarnation > other.incarnation
    with nullcontext() if allowed else pytest.raises(FencedError, match="incarnation"):
        one.check(other, "sink 'out'")


def test_without_a_mark_of_a_start_nothing_is_fenced() -> None:
    FenceMark(0).check(FenceMark(7, 3), "sink 'out'")
    FenceMark(1, 2).check(None, "sink 'out'")
    FenceMark(2, 5).check(FenceMark(2), "sink 'out'")


@given(st.integers(-1, 5), st.integers(0, 5))
def test_a_target_that_is_ahead_of_the_state_is_refused(planned: int, held: int) -> None:
    claim = Claim("out", "job", "id", 3, 1, query_id="q", planned=planned)
    with nullcontext() if held <= planned else pytest.raises(StateError, match="ahead of this state"):
        claim.check_state({"q": held}, None, "sink 'out'")


def test_a_target_with_epochs_of_a_query_that_is_gone_is_refused() -> None:
    claim = Claim("out", "job", "id", 3, 1, query_id=None, planned=-1)
    with pytest.raises(StateError, match="checkpoint"):
        claim.check_state({"earlier": 4}, None, "sink 'out'")
    claim.check_state({}, None, "sink 'out'")
