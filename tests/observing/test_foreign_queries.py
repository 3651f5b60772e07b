"""Queries of others: which is which, the state in which they are together, and their epochs, whatever is dropped."""

import json
import os
import re
import uuid
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ext.ledger.identity import Incarnation, job_row
from spark_ext.listeners.observer import WATCHING
from spark_ext.model.execution import Shown
from spark_ext.model.lifecycle import State
from spark_ext.observing.foreign_query import ObservedEpochs, missed, newest
from spark_ext.observing.identity import LONGEST, Known, Memory, assigned, plain
from spark_ext.observing.observation import observed_execution
from spark_ext.options import UID
from spark_ext.queries.history import FIGURES_WITHIN
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import Clock

A, B, C = (str(uuid.UUID(int=number << 96)) for number in (10, 11, 12))
ONE = Known().having(A, "prices")
CALLED: dict[str, tuple[str, str, Known, dict[str, str], tuple[str, bool]]] = {
    "by its name": (A, "prices", Known(), {}, ("prices", False)),
    "without one by its id": (A, "", Known(), {}, (A, False)),
    "a checkpoint that comes back": (A, "prices", ONE, {}, ("prices", False)),
    "under another name": (A, "renamed", ONE, {}, ("prices", False)),
    "without a name": (A, "", ONE, {}, ("prices", False)),
    "another checkpoint under a name that is free": (B, "prices", ONE, {}, ("prices", True)),
    "the first one after that": (A, "prices", ONE.having(B, "prices"), {}, ("prices", True)),
    "two of one name at a time": (B, "prices", ONE, {"prices": A}, (f"prices~{B[:8]}", False)),
    "and back again": (B, "prices", ONE.having(B, f"prices~{B[:8]}"), {}, (f"prices~{B[:8]}", False)),
}


@pytest.mark.parametrize("case", CALLED)
def test_which_query_is_which(case: str) -> None:
    query_id, name, known, live, found = CALLED[case]
    assert assigned(query_id, name, known, live) == found


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
            uid, begins = assigned(query_id, name, known, live)
            assert live.get(uid) is None
            assert begins == (before.get(uid, query_id) != query_id)
            known = known.having(query_id, uid)
            live[uid] = query_id
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


RUNNING, FAILED = Shown(State.RUNNING), Shown(State.FAILED, "KeyError", incident="i")
DEGRADED = "degraded: 'c' is SCHEDULING, 'b' is FAILED"
TOGETHER: dict[str, tuple[dict[str, Shown], Shown]] = {
    "none yet": ({}, Shown(State.CREATED, "no query has been started")),
    "one that is deploying alone": ({"a": Shown(State.DEPLOYING)}, Shown(State.DEPLOYING)),
    "the least advanced": (
        {"a": RUNNING, "b": Shown(State.SCHEDULING, "no slot")},
        Shown(State.RUNNING, "degraded: 'b' is SCHEDULING"),
    ),
    "failed, until somebody starts it": ({"a": RUNNING, "b": FAILED}, Shown(State.RUNNING, "degraded: 'b' is FAILED")),
    "both": ({"a": RUNNING, "b": FAILED, "c": Shown(State.SCHEDULING)}, Shown(State.RUNNING, DEGRADED)),
    "failed alone": (
        {"a": Shown(State.CANCELED), "b": FAILED},
        Shown(State.FAILED, "query 'b' has failed, and no query is running", incident="i"),
    ),
    "ended": ({"a": Shown(State.CANCELED), "b": Shown(State.FINISHED)}, Shown(State.RUNNING, "no query is running")),
}


@pytest.mark.parametrize(("queries", "together"), TOGETHER.values(), ids=TOGETHER)
def test_the_state_of_an_observer(queries: dict[str, Shown], together: Shown) -> None:
    assert replace(observed_execution([*queries.items()]), since=None) == together


def test_the_page_has_every_setting_that_an_observer_has() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observer.md").read_text()
    table = page.partition("## Settings")[2].partition("## ")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert named == set(WATCHING)


SHARED = {"query": "q", "query_id": "id", "lineage": 1, "incarnation": 1}
BEGAN = 1_000_000.0


def report(epoch: int) -> Hint:
    return Hint("progress", "id", "run", epoch, 10 * epoch, 5, 0)


def commit(folder: Path, epoch: int, at: float = BEGAN + 1) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    offsets = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), str(epoch)])
    (folder / "offsets" / str(epoch)).write_text(offsets)
    (folder / "commits" / str(epoch)).write_text("v1\n{}")
    os.utime(folder / "commits" / str(epoch), (at + epoch, at + epoch))


def given_rows(epochs: ObservedEpochs) -> list[tuple[int, int | None]]:
    return [(row.epoch, row.input_rows) for row in epochs.rows(SHARED)]


def test_which_commits_are_still_to_be_recorded() -> None:
    commits = [(5, 10.0), (6, 11.0), (7, 20.0), (8, 21.0)]
    assert missed(commits, 15.0, None, None) == [7, 8], "of a query that was never seen: those of this run"
    assert missed(commits, 30.0, None, 6) == [6, 7, 8], "which Spark's first report may date back further"
    assert missed(commits, 15.0, 5, None) == [6, 7, 8], "of one that was seen: all since"
    assert missed(commits, 15.0, 8, None) == []


def test_a_report_or_the_checkpoint_says_what_is_committed() -> None:
    assert [newest(3, -1, None), newest(3, 5, None), newest(3, -1, 6), newest(3, 5, 4)] == [3, 5, 6, 5]


@given(dropped=st.sets(st.integers(0, 9)), looks=st.sets(st.integers(0, 9)), readable=st.booleans())
def test_dropped_reports_change_no_figure(dropped: set[int], looks: set[int], readable: bool) -> None:
    clock = Clock()
    with TemporaryDirectory() as name:
        folder = Path(name)
        epochs = ObservedEpochs(clock)
        epochs.begin(str(folder) if readable else "nowhere://here", BEGAN, None, None)
        found = []
        for epoch in range(10):
            commit(folder, epoch)
            if epoch not in dropped:
                epochs.report(report(epoch))
            if epoch in looks:
                epochs.poll()
                found += given_rows(epochs)
        # What Spark is asked for at last: the reports after the newest one.
        clock.now += 2
        if not epochs.readable or epochs.history.overdue():
            for epoch in range(epochs.history.reported_upto + 1, 10):
                epochs.report(report(epoch))
        epochs.poll()
        clock.now += FIGURES_WITHIN + 1
        found += given_rows(epochs)
        first = 0 if readable else min([*(set(range(10)) - dropped), 0 if len(dropped) == 10 else 9])
        assert [epoch for epoch, _ in found] == list(range(first, 10))
        assert all(rows in (None, 10 * epoch) for epoch, rows in found)
        # A report that was dropped before a later one came is not asked for again.
        assert {epoch for epoch, rows in found if rows is None} <= dropped


def test_epochs_that_ran_unobserved_are_recorded_without_figures(tmp_path: Path) -> None:
    for epoch in range(4):
        commit(tmp_path, epoch, BEGAN - 100)
    epochs = ObservedEpochs(Clock())
    epochs.begin(str(tmp_path), BEGAN, 1, None)
    assert given_rows(epochs) == [(2, None), (3, None)]
    commit(tmp_path, 4)
    epochs.report(report(4))
    assert epochs.poll() and given_rows(epochs) == [(4, 40)]
    commit(tmp_path, 5)
    epochs.poll()
    (row,) = epochs.rows(SHARED, everything=True)
    assert row.committed_at.timestamp() == BEGAN + 1 + 5 and row.offsets == [5]


def test_a_checkpoint_that_cannot_be_read_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = ObservedEpochs(Clock())
    epochs.begin(str(tmp_path), BEGAN, None, None)
    commit(tmp_path, 0)
    assert epochs.poll() and epochs.committed == 0

    def away(epoch: int) -> bool:
        raise OSError("away")

    assert epochs._log is not None
    monkeypatch.setattr(epochs._log, "is_committed", away)
    assert not epochs.poll()
    epochs.report(report(1))
    assert epochs.poll() and epochs.committed == 1
