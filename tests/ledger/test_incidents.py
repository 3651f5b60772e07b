"""Incidents as rows: what is known of each from its changes, and what a new start takes over."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from deltalake import CommitProperties, DeltaTable
from hypothesis import given, settings

from spark_ext import masking
from spark_ext.incidents.types import IncidentState
from spark_ext.ledger import Ledger, LedgerWriter, incidents, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.incidents import NOTIFIED, Added, Notified, change_row, entries, heirs, remembered, standings
from spark_ext.ledger.schema import IncidentChangeRow, IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.model.lineages import LineageEvent, Lineages
from tests.incidents.made import OPEN, RESOLVED, T0, at, change
from tests.incidents.test_book import STEPS, played
from tests.queries.fakes import FakeLedger, FakeWriter


@settings(deadline=None)
@given(STEPS, st.randoms())
def test_rows_in_any_order_say_what_the_book_says(steps: list[tuple[str, str, str, str, int]], random: Any) -> None:
    book, changes, _ = played(steps)
    rows = [asdict(change_row(one, 1)) for one in changes]
    shuffled = [*rows, *rows[: len(rows) // 2]]  # some of them twice
    random.shuffle(shuffled)
    known = standings(shuffled)
    for incident_id, standing in known.items():
        entry = book.entry(incident_id)
        assert entry is not None and (standing.state, standing.count) == (entry.state, entry.count)
    assert known.keys() == {row["incident_id"] for row in rows}


def test_a_state_since_when_and_why() -> None:
    changes = [
        change("a"), change("a", OPEN, OPEN, 1, 2), change("a", RESOLVED, OPEN, 2, 2),
        change("a", OPEN, RESOLVED, 3, 3), change("a", OPEN, OPEN, 4, 4),
    ]  # fmt: skip
    rows = [asdict(change_row(one, 1)) for one in changes]
    found = standings(rows)["a"]
    assert (found.state, found.since, found.count, found.cause) == (OPEN, at(3), 4, "because")
    # A successor whose clock is behind: its changes come later all the same.
    rows.append(asdict(change_row(change("a", RESOLVED, OPEN, -50, 4), 2)))
    assert standings(rows)["a"].state is RESOLVED
    assert standings([{**rows[0], "new": "MUTED"}]) == {}, "a state of a later release"


def written(folder: Path) -> tuple[WriteBehind, Ledger]:
    ledger = Ledger(str(folder / "state"))
    incarnation = start_incarnation(ledger, "shop", takeover=True)
    forget(ledger.uri, incarnation.number)
    return WriteBehind(LedgerWriter(ledger, incarnation), "shop"), ledger


def faked() -> tuple[WriteBehind, FakeLedger]:
    ledger = FakeLedger()
    return WriteBehind(FakeWriter(ledger), "shop"), ledger  # type: ignore[arg-type]


def test_rows_have_severity_parent_and_fingerprint_and_no_secret(tmp_path: Path) -> None:
    masking.remember("hunter2-hunter2")
    behind, ledger = written(tmp_path)
    first = behind.incident("job 'shop', query 'q'", "failure", "it failed", "restart 1 in 100 ms")
    secret = "hunter2-hunter2"
    second = behind.incident("job 'shop', query 'q'", "close", secret, "none", labels={"url": secret})
    assert behind.incidents.resolve(first, "by hunter2-hunter2")
    behind.flush()
    one, other = sorted(ledger.table(IncidentRow).rows(), key=lambda row: row.at)
    assert (one.incident_id, one.severity, one.parent, other.parent) == (first, "ERROR", None, first)
    assert one.fingerprint and (other.incident_id, other.severity) == (second, "WARNING")
    changes = sorted(ledger.table(IncidentChangeRow).rows(), key=lambda row: row.at)
    assert [(row.incident_id, row.old, row.new, row.count) for row in changes] == [
        (first, "", "OPEN", 1), (second, "", "OPEN", 1), (first, "OPEN", "RESOLVED", 1),
    ]  # fmt: skip
    assert "hunter2" not in f"{one}{other}{changes}"


def test_a_storm_is_few_rows_and_the_end_has_the_exact_count() -> None:
    behind, ledger = faked()
    assert len({behind.incident("job 'shop'", "checkpoint", f"row {n} is bad", "none") for n in range(5000)}) == 1
    behind.flush()
    assert len(ledger.of(IncidentRow)) == 1 and len(ledger.of(IncidentChangeRow)) < 20
    behind.incidents.count(everything=True)
    behind.flush()
    assert ledger.of(IncidentChangeRow)[-1].count == 5000
    assert ledger.of(IncidentChangeRow)[-1].what == "row 4999 is bad"


def test_the_end_of_a_query_and_of_the_job_resolve() -> None:
    behind, ledger = faked()
    mine = behind.incident("job 'shop', query 'q'", "close", "it hangs", "none")
    other = behind.incident("job 'shop', query 'r'", "stop", "it hangs", "none")
    behind.state("q", "RUNNING")
    behind.state("q", "CANCELED")
    assert len(behind.incidents.open()) == 2
    behind.state("q", IncidentState.OPEN.value)  # whatever it is, it is not the end
    behind.state("q", "FINISHED")
    assert [entry.incident.incident_id for entry in behind.incidents.open()] == [other]
    behind.state("", "FINISHED")
    behind.flush()
    last = {row.incident_id: row for row in ledger.of(IncidentChangeRow)}
    assert (last[mine].cause, last[other].cause) == ("query 'q' has finished", "the job has finished")


def test_a_new_start_takes_over_what_is_open_or_may_recur(tmp_path: Path) -> None:
    behind, ledger = written(tmp_path)
    ids = [behind.incident("job 'shop', query 'q'", "failure", f"it failed{'!' * n}", "restart") for n in range(3)]
    behind.incidents.resolve(ids[1], "over")
    behind.incident("job 'shop', query 'q'", "failure", "it failed\nand why", "stopped")
    behind.flush()
    found, incarnations = remembered(ledger, at(10**9))
    assert {entry.incident.incident_id: (entry.state, entry.count, entry.incident.action) for entry in found} == {
        ids[0]: (OPEN, 2, "stopped"),
        ids[2]: (OPEN, 1, "restart"),
    }
    assert [entry.incident.what for entry in found] == ["it failed", "it failed!!"], "its end names what is over"
    assert incarnations == {ids[0]: 1, ids[2]: 1}
    assert {entry.incident.incident_id for entry in remembered(ledger, T0)[0]} == set(ids)


def test_what_listeners_were_notified_of_is_known_to_those_with_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified = Notified(str(tmp_path), "these")
    assert notified.states() == {}
    notified.take(change("a"))
    notified.take(change("b"))
    Notified(str(tmp_path), "these").take(change("a", RESOLVED, OPEN))
    assert Notified(str(tmp_path), "these").states() == {"b": "OPEN", "a": "RESOLVED"}
    assert Notified(str(tmp_path), "others").states() == {}
    monkeypatch.setattr(incidents, "MOST_NOTIFIED", 2)
    notified.take(change("c"))
    assert list(notified.states()) == ["b", "c"], "the newest ones"
    for damaged in ("", "[]", '{"listeners": "these"}', "{"):
        (tmp_path / NOTIFIED).write_text(damaged)
        assert Notified(str(tmp_path), "these").states() == {}


def test_rows_of_older_releases_are_not_open() -> None:
    old = {
        **{name: None for name in ("severity", "parent", "fingerprint")},
        **{"incident_id": "a", "at": T0, "incarnation": 1, "operator": "job 'j'", "type": "failure", "action": "none"},
    }
    assert entries([old], {}, T0 - timedelta(days=1)) == ([], {})
    assert remembered(Ledger("/nonexistent/state"), T0) == ([], {})


def test_whose_an_incident_is_now() -> None:
    """Query q was renamed to r in start 5, and there is a new q; s was reset in start 3; t is in the job no more."""
    lineages = Lineages((LineageEvent("s", 2, 3), LineageEvent("r", 1, 5, renamed_from="q"), LineageEvent("q", 3, 5)))
    behind, _ = faked()
    names = {"q before": ("q", 4), "q after": ("q", 6), "s before": ("s", 2), "s after": ("s", 3), "t": ("t", 1)}
    ids = {one: behind.incident(f"job 'shop', query '{of}'", "failure", one, "none") for one, (of, _) in names.items()}
    job = behind.incident("job 'shop'", "driver_lost", "lost", "none")
    incarnations = {ids[name]: number for name, (_, number) in names.items()} | {job: 1}
    found = heirs(behind.incidents.open(), incarnations, lineages, ["q", "r", "s"])
    assert found == {
        ids["q before"]: "r", ids["q after"]: "q", ids["s before"]: None, ids["s after"]: "s", ids["t"]: None,
    }  # fmt: skip


def compact(delta: DeltaTable, commit: CommitProperties) -> None:
    delta.optimize.compact(commit_properties=commit)


def test_a_follower_reads_each_row_once_also_behind_a_compaction(tmp_path: Path) -> None:
    behind, ledger = written(tmp_path)
    added = Added(Ledger(ledger.uri).table(IncidentChangeRow), "at")
    assert added.everything().num_rows == 0
    seen: list[str] = []
    for number in range(6):
        behind.incident("job 'shop'", "close", f"it hangs{'!' * number}", "none")
        behind.flush()
        if number == 3:
            ledger.table(IncidentChangeRow).change(compact, None, "compacting")
        if number % 2:
            seen += [row["incident_id"] for row in added.rows().to_pylist()]
            assert added.rows().num_rows == 0
    assert len(seen) == len(set(seen)) == 6
