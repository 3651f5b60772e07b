"""Whether a job is well is a pure function of what its ledger and its heartbeat say."""

from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.incidents.registry import AlertRule
from spark_ext.incidents.types import Severity
from spark_ext.views.check import Health, JobFacts, Limits, ProblemKind, health, line
from tests.incidents.made import at

LIMITS = Limits(max_silence=60_000, window=timedelta(seconds=1000))
RULE = AlertRule(rule="availability below 90 % over 1000 s")


def job(event: str, seconds: float, number: int = 1, reason: str = "") -> dict[str, Any]:
    own = {"job": "shop", "job_id": "id", "driver_pid": 4711, "host": "node7", "lineage": 1}
    return {**own, "event": event, "at": at(seconds), "incarnation": number, "reason": reason}


def state(name: str, seconds: float, number: int = 1) -> dict[str, Any]:
    return {"operator": "", "state": name, "since": at(seconds), "incarnation": number, "reason": ""}


def incident(id_: str, seconds: float, type_: str = "failure", **fields: Any) -> dict[str, Any]:
    return {
        "incident_id": id_, "at": at(seconds), "last": at(seconds), "type": type_, "evidence": None,
        "operator": "job 'shop', query 'load'", "what": "it broke\nand more", "labels": {"type": "NETWORK"},
        "severity": "ERROR", "state": "OPEN", "fingerprint": "f", **fields,
    }  # fmt: skip


def found(
    *rows: dict[str, Any], now: float = 1000, states: tuple[dict[str, Any], ...] = (),
    incidents: tuple[dict[str, Any], ...] = (), limits: Limits = LIMITS, beat: float | None = None,
    alive: bool | None = None,
) -> Health:  # fmt: skip
    newest = max(row["incarnation"] for row in rows)
    facts = JobFacts(
        jobs=rows, states=states or (state("RUNNING", 1),), occurrences=incidents, incidents=incidents, alive=alive,
        beats={} if beat is None else {newest: at(beat)},
    )  # fmt: skip
    return health(facts, limits, at(now))


def kinds(one: Health) -> list[ProblemKind]:
    return [finding.kind for finding in one.findings]


def test_a_job_that_runs_and_beats_is_well() -> None:
    one = found(job("started", 0), beat=995)
    assert one.well and one.runs and one.state == "RUNNING" and one.last_alive == at(995)
    begins = "ok  shop  RUNNING, last alive 5 s ago, available for 100.0000% of"
    assert line(one, at(1000), LIMITS, "1000 s") == f"{begins} 1000 s" and one.since == at(0)
    young = found(job("started", 970), states=(state("RUNNING", 971),), beat=995)
    assert line(young, at(1000), LIMITS, "1000 s") == f"{begins} 30 s" and young.since == at(970)


@pytest.mark.parametrize(
    ("beat", "alive", "lost"),
    [
        (941, None, False),
        (939, None, True),  # on another machine: by the heartbeat alone
        (939, True, True),  # its process is there, and it has stopped doing anything
        (995, False, True),  # on this machine: its process is gone
        (None, None, False),  # it writes no heartbeat, and nobody can say
        (None, True, False),
        (None, False, True),
    ],
)
def test_a_driver_is_lost_if_it_is_gone_or_silent(beat: float | None, alive: bool | None, lost: bool) -> None:
    one = found(job("started", 0), beat=beat, alive=alive)
    assert (kinds(one) == [ProblemKind.LOST], one.state == "DOWN", one.runs is False) == (lost, lost, lost)


def test_nothing_is_known_of_a_remote_driver_without_heartbeat() -> None:
    one = found(job("started", 0))
    assert one.well and one.runs is None and "writes no heartbeat, available" in line(one, at(1000), LIMITS, "1 h")
    assert found(job("started", 0), alive=True).runs is True


def test_time_since_a_drivers_loss_is_downtime_with_its_labels() -> None:
    wanted: list[dict[str, tuple[str, ...]]] = [{}, {"type": ("SYSTEM",)}, {"type": ("NETWORK",)}]
    rules = tuple(AlertRule(rule=RULE.rule, labels=labels) for labels in wanted)
    limits = Limits(max_silence=60_000, rules=rules, window=timedelta(seconds=1000))
    one = found(job("started", 0), beat=800, limits=limits)
    assert one.availability == pytest.approx(0.8)
    assert [measured.found.low for measured in one.measured] == [True, True, False]
    assert kinds(one) == [ProblemKind.LOST, ProblemKind.UNAVAILABLE, ProblemKind.UNAVAILABLE]
    lost = one.findings[0]
    assert (lost.type, lost.severity, lost.labels["type"]) == ("driver_lost", Severity.ERROR, "SYSTEM")
    assert "no heartbeat since 2026-01-01 00:13:20 UTC (3 min), process 4711 on node7" in lost.what


def test_a_job_that_has_failed_is_down_until_somebody_starts_it() -> None:
    limits = Limits(max_silence=60_000, rules=(RULE,), window=timedelta(seconds=1000))
    rows = job("started", 0), job("ended", 700, reason="FAILED")
    states = state("RUNNING", 1), state("FAILED", 699)
    one = found(*rows, states=states, incidents=(incident("i" * 32, 699),), limits=limits)
    assert kinds(one) == [ProblemKind.FAILED, ProblemKind.UNAVAILABLE] and one.state == "FAILED" and not one.runs
    assert (one.findings[0].incident_id, one.findings[0].recorded) == ("i" * 32, True)
    assert one.findings[0].what == "the job has FAILED, 5 min ago: it broke"
    assert one.availability == pytest.approx(0.7, abs=0.01)

    assert kinds(found(*rows, job("started", 900, 2), states=(*states, state("RUNNING", 901, 2)), beat=999)) == []


@pytest.mark.parametrize("reason", ["FINISHED", "CANCELED"])
def test_a_job_that_has_finished_or_was_stopped_is_well(reason: str) -> None:
    rows = job("started", 0), job("ended", 700, reason=reason)
    one = found(*rows, states=(state("RUNNING", 1), state(reason, 699)), beat=1, alive=False)
    assert one.well and one.availability == (None if reason == "FINISHED" else 1) and one.last_alive is None
    refused = job("started", 800, 2), job("ended", 801, 2, "the start was refused")
    assert found(*rows, *refused).well, "it stays stopped"


def test_a_start_that_was_refused_leaves_a_failed_job_down() -> None:
    rows = job("started", 0), job("ended", 100, reason="FAILED")
    one = found(*rows, job("started", 200, 2), job("ended", 201, 2, "the start was refused"))
    assert kinds(one) == [ProblemKind.FAILED] and "was refused its last start" in one.findings[0].what
    assert not one.findings[0].recorded and one.state == "FAILED"


def test_open_incidents_of_the_severity_are_found_each_once() -> None:
    incidents = (
        incident("a" * 32, 10), incident("b" * 32, 20, severity="CRITICAL"),
        incident("c" * 32, 30, severity="WARNING"), incident("d" * 32, 40, state="RESOLVED"),
        incident("e" * 32, 50, state=None),
    )  # fmt: skip
    one = found(job("started", 0), beat=999, incidents=incidents)
    assert [finding.incident_id[0] for finding in one.findings] == ["a", "b"]
    assert one.findings[0].what == "aaaaaaaa ERROR failure, job 'shop', query 'load': it broke"
    stricter = Limits(max_silence=60_000, severity=Severity.WARNING)
    assert len(found(job("started", 0), beat=999, incidents=incidents, limits=stricter).findings) == 3


def test_an_alert_that_the_driver_has_opened_is_the_same_finding() -> None:
    limits = Limits(max_silence=60_000, rules=(RULE,))
    known = incident("u" * 32, 900, "unavailability", severity="CRITICAL", fingerprint=RULE.fingerprint)
    one = found(job("started", 0), beat=500, incidents=(known,), limits=limits)
    kept = [(finding.kind, finding.recorded) for finding in one.findings]
    assert kept == [(ProblemKind.LOST, False), (ProblemKind.UNAVAILABLE, True)]
    assert one.findings[1].incident_id == "u" * 32


@given(st.floats(0, 10_000), st.floats(0, 10_000), st.floats(0, 10_000), st.floats(0.01, 1))
def test_the_longer_a_job_is_down_the_less_it_was_available(up: float, first: float, more: float, share: float) -> None:
    rule = AlertRule(rule=f"availability below {share:.6f} over 5000 s")
    limits = Limits(max_silence=0, rules=(rule,), window=timedelta(seconds=5000))
    early, late = (found(job("started", 0), now=up + off + 1, beat=up, limits=limits) for off in (first, first + more))
    assert early.availability is not None and late.availability is not None
    assert late.availability <= early.availability + 1e-9
    assert {finding.incident_id for finding in early.findings} <= {finding.incident_id for finding in late.findings}
    assert early.availability == pytest.approx(early.measured[0].found.share)
