"""Histories of starts, kills, renames, resets and restores: what is open is what a query still has to recover from."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from spark_ext.incidents.registry import shipped
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.incidents import standings
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import IncidentChangeRow, IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.observing.job_incidents import JobIncidents, record_lost_driver
from tests.incidents.made import OPEN
from tests.ledger.rows import definition

NAMES = ("a", "b", "c", "d")
JOB = ""


class Jobs:
    """One job over many starts, and beside it what should be open, by the plainest of models.

    A query is a number that stays the same under all its names; a reset, a restore or a removal gives a new one.
    """

    def __init__(self, folder: str) -> None:
        self.ledger = Ledger(f"{folder}/state")
        self.numbers = {"a": 1, "b": 2}
        self.next = 3
        self.failures = 0
        self.expected: dict[str, int | str] = {}  # by id of an open incident, the number of its query; "": the job's
        self.behind: WriteBehind | None = None

    def start(self, renamed: Mapping[str, str] | None = None) -> None:
        ledger = self.ledger = Ledger(self.ledger.uri)
        incarnation = start_incarnation(ledger, "shop", takeover=True)
        writer = LedgerWriter(ledger, incarnation)
        behind = WriteBehind(writer, "shop")
        incidents = JobIncidents(shipped(), [])
        before = JobMemory.read(ledger)
        incidents.inherit(ledger, behind)
        known = {entry.incident.incident_id for entry in behind.incidents.open()}
        record_lost_driver(ledger, incarnation, behind)
        lost = {entry.incident.incident_id for entry in behind.incidents.open()} - known
        for name in self.numbers:
            if name not in before.names and name not in (renamed or {}):
                writer.append(replace(definition(name), lineage=before.lineage(name), incarnation=incarnation.number))
        for new, old in (renamed or {}).items():
            writer.renamed(new, old, JobMemory.read(ledger).lineage(old))
            self.numbers[new] = self.numbers.pop(old)
        incidents.adopt(JobMemory.read(ledger), list(self.numbers), behind)
        self.behind = behind
        alive = {JOB, *self.numbers.values()}
        self.expected = {one: query for one, query in self.expected.items() if query in alive}
        self.expected.update(dict.fromkeys(lost, JOB))

    def driver(self) -> WriteBehind:
        if self.behind is None:
            self.start()
        assert self.behind is not None
        return self.behind

    def fail(self, query: str) -> None:
        self.failures += 1
        found = self.driver().incident(
            f"job 'shop', query '{query}'", "failure", "it failed", "restart", fingerprint=str(self.failures)
        )
        self.expected[found] = self.numbers[query]

    def commit(self, query: str) -> None:
        self.driver().committed(query, 1)
        resolved = (JOB, self.numbers[query])
        self.expected = {one: query for one, query in self.expected.items() if query not in resolved}

    def end(self, *, killed: bool) -> None:
        behind = self.driver()
        behind.flush()
        if killed:
            forget(self.ledger.uri, behind.incarnation.number)
        else:
            behind.end("CANCELED")
        self.behind = None

    def rename(self, old: str) -> None:
        new = next((name for name in NAMES if name not in self.numbers), None)
        if new is not None:
            self.start({new: old})

    def reset(self, query: str) -> None:
        writer = LedgerWriter(self.ledger, start_incarnation(self.ledger, "shop", takeover=True))
        writer.new_lineages([query], "reset on request")
        writer.end("reset")
        self._anew(query)

    def restore(self) -> None:
        writer = LedgerWriter(self.ledger, start_incarnation(self.ledger, "shop", takeover=True))
        newest = JobMemory.read(self.ledger).lineages.newest
        writer.restored(newest + 1, newest, "savepoint", {})
        writer.end("restored")
        for query in tuple(self.numbers):
            self._anew(query)

    def _anew(self, query: str) -> None:
        self.numbers[query] = self.next
        self.next += 1

    def open(self) -> set[str]:
        known = standings(self.ledger.table(IncidentChangeRow).read().to_pylist())
        assert known.keys() <= {row.incident_id for row in self.ledger.table(IncidentRow).rows()}
        return {one for one, standing in known.items() if standing.state is OPEN}


KINDS = ["fail", "fail", "commit", "commit", "end", "kill", "rename", "reset", "restore"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=3, max_size=14)


@pytest.mark.slow(6, "histories of up to fourteen starts, each of which fences all tables of the ledger")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_what_is_open_is_what_is_still_to_be_recovered_from(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(folder)
        jobs.start()
        for step, which in steps:
            query = sorted(jobs.numbers)[which % len(jobs.numbers)]
            if step in ("fail", "commit"):
                getattr(jobs, step)(query)
            else:
                if jobs.behind is not None:
                    jobs.end(killed=step == "kill")
                if step == "rename":
                    jobs.rename(query)
                elif step == "reset":
                    jobs.reset(query)
                elif step == "restore":
                    jobs.restore()
        if jobs.behind is None:
            jobs.start()
        jobs.end(killed=False)
        assert jobs.open() == set(jobs.expected)


def test_a_new_driver_resolves_what_was_open_under_a_new_name(tmp_path: Path) -> None:
    jobs = Jobs(str(tmp_path))
    jobs.start()
    jobs.fail("a")
    jobs.fail("b")
    jobs.end(killed=True)
    jobs.start({"c": "a"})
    behind = jobs.driver()
    (lost,) = behind.incidents.open("")
    assert lost.incident.type == "driver_lost"
    assert [entry.incident.operator for entry in behind.incidents.open("c")] == ["job 'shop', query 'a'"]
    jobs.commit("c")
    jobs.end(killed=False)
    causes = {row.cause for row in jobs.ledger.table(IncidentChangeRow).rows() if row.new == "RESOLVED"}
    assert causes == {"query 'c' has committed epoch 1"}
    assert len(jobs.open()) == 1, "that of the other query, which has committed nothing yet"


def test_what_a_reset_query_had_open_is_resolved_with_the_reason(tmp_path: Path) -> None:
    jobs = Jobs(str(tmp_path))
    jobs.start()
    jobs.fail("a")
    jobs.end(killed=False)
    jobs.reset("a")
    jobs.start()
    jobs.fail("a")
    jobs.end(killed=False)
    (resolved,) = [row for row in jobs.ledger.table(IncidentChangeRow).rows() if row.new == "RESOLVED"]
    assert resolved.cause == "its query was reset, restored or removed since: nothing continues its history"
    assert len(jobs.open()) == 1, "that of the query as it is now"
