"""Which query is which: names, ids that come back, and two of one name at a time."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

from hypothesis import example, given
from hypothesis import strategies as st

from spark_ext.ledger.identity import Incarnation, job_row
from spark_ext.observing.identity import LONGEST, Assigned, Known, Memory, assigned, plain
from spark_ext.options import UID

A, B, C = (str(uuid.UUID(int=number << 96)) for number in (10, 11, 12))


def test_a_query_has_its_name_and_without_one_its_id() -> None:
    assert assigned(A, "prices", Known(), {}) == Assigned("prices", anew=False)
    assert assigned(A, "", Known(), {}) == Assigned(A, anew=False)


def test_a_checkpoint_that_comes_back_is_the_same_query_whatever_it_is_called() -> None:
    known = Known().having(A, "prices")
    for name in ("prices", "renamed", ""):
        assert assigned(A, name, known, {}) == Assigned("prices", anew=False)


def test_another_checkpoint_under_a_name_that_is_free_begins_anew() -> None:
    known = Known().having(A, "prices")
    assert assigned(B, "prices", known, {}) == Assigned("prices", anew=True)
    # And the first one, should it come back after that.
    assert assigned(A, "prices", known.having(B, "prices"), {}) == Assigned("prices", anew=True)


def test_two_of_one_name_at_a_time_are_told_apart() -> None:
    known = Known().having(A, "prices")
    other = assigned(B, "prices", known, {"prices": A})
    assert other == Assigned(f"prices~{B[:8]}", anew=False)
    known = known.having(B, other.uid)
    assert assigned(B, "prices", known, {}).uid == other.uid, "it keeps that name when it comes back"


def test_a_name_that_is_no_uid_is_made_one() -> None:
    assert plain("shop/prices by hour").startswith("shop_prices_by_hour~")
    assert plain("shop/prices") != plain("shop_prices") == "shop_prices"


@given(st.text(min_size=1))
@example("0" * (LONGEST + 1))
@example("shop/prices")
def test_every_name_becomes_a_uid_that_no_other_name_becomes(name: str) -> None:
    found = plain(name)
    assert UID.fullmatch(found) and len(found) <= LONGEST + 10
    assert found == name or plain(found) != found, "a query that is given this uid as its name is another one"


ID = st.sampled_from([A, B, C])
NAME = st.sampled_from(["", "a", "b", f"a~{B[:8]}", A, f"a~{B}"])


@given(st.lists(st.tuples(ID, NAME, st.booleans()), max_size=30))
def test_queries_that_run_at_one_time_never_share_a_name(events: list[tuple[str, str, bool]]) -> None:
    known, live = Known(), dict[str, str]()
    for query_id, name, starts in events:
        if starts and query_id not in live.values():
            before = known.holders
            found = assigned(query_id, name, known, live)
            assert live.get(found.uid) is None
            assert found.anew == (before.get(found.uid, query_id) != query_id)
            known = known.having(query_id, found.uid)
            live[found.uid] = query_id
        else:
            live = {uid: one for uid, one in live.items() if one != query_id}


def test_the_ledger_says_which_is_which_across_starts() -> None:
    incarnation = Incarnation("nightly", "id", 1, 1)
    resets = [job_row(incarnation, "reset", datetime(2026, 1, 1, tzinfo=timezone.utc), lineage=2, query="prices")]
    epochs = [("prices", A, 1, 7), ("prices", A, 1, 8), ("prices", B, 2, 0), ("prices", B, 2, 1), (C, C, 1, 3)]
    memory = Memory.of(reversed(epochs), resets)
    assert memory.known.uids == {A: "prices", B: "prices", C: C}
    assert memory.known.holders == {"prices": B, C: C}
    assert memory.lineages == {"prices": 2, C: 1}
    assert memory.newest == {"prices": 1, C: 3}
