"""Incidents without a job and without a ledger, as an observer of foreign queries uses them; from many threads."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from spark_ext.incidents.book import RecordedOccurrence
from spark_ext.incidents.reporter import Incidents
from spark_ext.incidents.types import IncidentChange
from tests.incidents.made import OPEN, RESOLVED, at, registry


def test_it_works_without_a_job_and_without_a_ledger() -> None:
    noted: list[tuple[RecordedOccurrence, Any]] = []
    changes: list[IncidentChange] = []
    ids = iter(["a", "b", "c"])
    incidents = Incidents(
        registry(), on_noted=lambda one, evidence: noted.append((one, evidence)), on_changed=changes.extend,
        clock=lambda: at(1), new_id=lambda: next(ids),
    )  # fmt: skip
    first = incidents.report("query 'plain'", "late", "row 1", "none", evidence={"x": 1}, labels={"team": "a"})
    assert incidents.report("query 'plain'", "late", "row 2", "none", labels={"team": "a"}) == first == "a"
    assert incidents.report("query 'plain'", "late", "row 2", "none") == "c", "other labels"
    assert [evidence for _, evidence in noted] == [{"x": 1}, None]
    assert noted[0][0].incident.query == "plain"
    incidents.committed("plain", 4)
    assert [(one.incident.incident_id, one.old, one.new, one.count) for one in changes] == [
        ("a", None, OPEN, 1), ("a", OPEN, OPEN, 2), ("c", None, OPEN, 1), ("a", OPEN, RESOLVED, 2),
        ("c", OPEN, RESOLVED, 1),
    ]  # fmt: skip
    assert changes[-1].cause == "query 'plain' has committed epoch 4"
    incidents.close(0)


def test_what_is_reported_is_resolved_by_whoever_reported_it() -> None:
    incidents = Incidents(registry())
    found = incidents.report("job 'shop'", "told", "it is late", "none")
    incidents.committed("q", 1)
    incidents.all_ended()
    assert len(incidents.open("")) == 1
    assert incidents.resolve(found, "in time again")
    assert not incidents.resolve(found, "once more") and not incidents.resolve("unknown", "")
    assert not incidents.open()


def test_threads_lose_no_occurrence_and_changes_are_in_order() -> None:
    changes: list[IncidentChange] = []
    lock = threading.Lock()

    def take(given: Sequence[IncidentChange]) -> None:
        with lock:
            changes.extend(given)

    incidents = Incidents(registry(), on_changed=take)

    def report() -> None:
        for _ in range(200):
            incidents.report("job 'shop'", "late", "rows are late", "none")

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    incidents.count(everything=True)
    assert [one.count for one in changes] == sorted(one.count for one in changes)
    assert changes[-1].count == 800 and len({one.incident.incident_id for one in changes}) == 1


def test_no_extra_or_thread_is_needed_without_listeners() -> None:
    code = """
import json, sys, threading
from spark_ext.incidents.reporter import Incidents
incidents = Incidents()
incidents.report("query 'q'", "failure", "it failed", "none")
incidents.committed("q", 1)
incidents.close(1)
print(json.dumps({"modules": sorted(sys.modules), "threads": threading.active_count()}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["threads"] == 1
    loaded = set(found["modules"])
    assert not loaded & {"pyspark", "pandas", "pyarrow", "deltalake", "httpx", "prometheus_client", "smtplib"}
