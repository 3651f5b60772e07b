"""Conformance, "Failures, time, progress", L10: incidents of the user's types reach the configured listeners."""

import json
import threading
from pathlib import Path

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.incidents.registry import load
from spark_ext.ledger import Ledger
from spark_ext.ledger.incidents import Notified, standings
from spark_ext.ledger.schema import IncidentChangeRow, IncidentRow
from tests.incidents.made import OPEN, RESOLVED
from tests.listeners.endpoint import serving
from tests.support.incident_listener import GATES, GOT
from tests.support.jobs import JobHarness
from tests.support.waiting import until

SOON = 60.0
FILE = """
types:
  - {{name: late_prices, severity: WARNING, description: Prices are late., window: 1 min}}
  - {{name: manual, severity: CRITICAL, description: Somebody has to look., resolved: report}}
listeners:
  - use: "tests.support.incident_listener:Recorder"
    types: [late_prices, manual]
    options: {{name: {name}}}
  - use: webhook
    severity: ERROR
    options: {{url: "{url}", secret: hunter2-hunter2}}
"""


def configured(folder: Path, name: str, url: str = "http://127.0.0.1:9/") -> str:
    file = folder / "incidents.yaml"
    file.write_text(FILE.format(name=name, url=url))
    return str(file)


@pytest.mark.core
def test_l10_a_configured_listener_receives_a_users_own_type(lab: JobHarness) -> None:
    with serving() as endpoint:
        file = configured(lab.folder, "l10", endpoint.url)
        job = lab.job(
            lab.source("live", counts="1", live="true", rate=200), query="live", out="live", incidents=file
        ).start()
        until(lambda: job.snapshot().query("live").epochs >= 1, "an epoch", SOON)
        late = job.report_incident("late_prices", "prices are 75 min old", query="live", labels={"exchange": "XETRA"})
        manual = job.report_incident("manual", "the total differs")
        until(lambda: [one for one, _ in GOT["l10"] if one.new is RESOLVED], "the next epoch, which resolves it", SOON)
        assert job.resolve_incident(manual, "counted again") and not job.resolve_incident(manual)
        job.stop()
    got = {(one.incident.incident_id, one.new): (one, context) for one, context in GOT["l10"]}
    assert got.keys() == {(late, OPEN), (late, RESOLVED), (manual, OPEN), (manual, RESOLVED)}
    opened, context = got[late, OPEN]
    assert (opened.incident.what, opened.incident.labels) == ("prices are 75 min old", {"exchange": "XETRA"})
    assert (context.job, context.query, context.incarnation) == ("lab", "live", 1)
    assert context.epoch is not None and context.epoch >= 0
    assert "has committed epoch" in got[late, RESOLVED][0].cause
    assert got[manual, RESOLVED][0].cause == "counted again"
    sent = [json.loads(body) for _, body in endpoint.requests]
    assert [(one["incident"]["type"], one["new"]) for one in sent] == [("manual", "OPEN"), ("manual", "RESOLVED")]
    ledger = Ledger(job.state_directory)
    rows = {row.incident_id: row for row in ledger.table(IncidentRow).rows()}
    assert (rows[late].severity, rows[late].operator) == ("WARNING", "job 'lab', query 'live'")
    known = standings(ledger.table(IncidentChangeRow).read().to_pylist())
    assert {one: known[one].state for one in (late, manual)} == {late: RESOLVED, manual: RESOLVED}
    told = Notified(job.state_directory, load(file).listeners_id).states()
    assert told == {late: "RESOLVED", manual: "RESOLVED"}, "a check does not repeat it"
    assert not [thread.name for thread in threading.enumerate() if "spark-ext-incidents" in thread.name]


def test_l10_a_type_that_is_not_declared_is_refused_by_name(lab: JobHarness) -> None:
    file = configured(lab.folder, "refused")
    job = lab.job(lab.source(counts="10"), incidents=file)
    with pytest.raises(ConfigurationError, match="unknown incident type 'late_price'") as refused:
        job.report_incident("late_price", "prices are late")
    assert "declared are: late_prices, manual" in refused.value.do
    with pytest.raises(ConfigurationError, match="the job has no query 'x'"):
        job.report_incident("late_prices", "prices are late", query="x")
    with pytest.raises(StateError, match="the job does not run"):
        job.report_incident("late_prices", "prices are late", query="q")
    Path(file).write_text("types:\n  - name: late\n    severity: LOUD\n    description: x\n")
    with pytest.raises(ConfigurationError, match=r"incidents\.yaml, line 3: types\.0\.severity"):
        sx.Job(lab.spark, "lab", state=lab.folder / "other", incidents=file)


def test_a_listener_that_hangs_does_not_hold_the_end_of_a_job(lab: JobHarness) -> None:
    GATES["hangs"] = threading.Event()
    try:
        job = lab.job(
            lab.source("live", counts="1", live="true", rate=200),
            query="live",
            out="live",
            incidents=configured(lab.folder, "hangs"),
        ).start()
        until(lambda: job.snapshot().query("live").epochs >= 1, "an epoch", SOON)
        job.report_incident("late_prices", "prices are late")
        assert job.stop().query("live").state.value == "CANCELED" and GOT["hangs"] == []
        assert [row.event for row in Ledger(job.state_directory).jobs()] == ["started", "ended"]
    finally:
        GATES["hangs"].set()
