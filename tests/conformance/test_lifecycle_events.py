"""Conformance, "Failures, time, progress", L12: listeners of states, and the stream of the server, tell the same."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from spark_ext.incidents.types import EventKind, LifecycleEvent
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow
from spark_ext.server.server import ControlServer
from tests.support.incident_listener import HAPPENED
from tests.support.jobs import JobHarness

FILE = """
listeners:
  - use: "tests.support.incident_listener:States"
    options: {name: l12}
  - use: "tests.support.incident_listener:Raising"
"""


def followed(server: ControlServer, number: int) -> list[dict[str, Any]]:
    url, headers = f"{server.url}/v1/jobs/lab/events", {"Authorization": f"Bearer {server.token}"}
    wanted = {"since": "2026-01-01", "kind": ["state", "source", "checkpoint", "job"]}
    found: list[dict[str, Any]] = []
    with httpx.stream("GET", url, headers=headers, params=wanted, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and "event_id" in line:
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == number:
                    break
    return found


@pytest.mark.core
def test_l12_listeners_hear_of_each_change_as_the_ledger_has_it(lab: JobHarness) -> None:
    file = Path(lab.folder) / "incidents.yaml"
    file.write_text(FILE)
    job = lab.job(
        lab.source(counts="300,20"), incidents=str(file), latency="latest", latency_interval=0, metrics=True,
        checkpoint_interval="500 ms",
    )  # fmt: skip
    assert job.run(progress=False).finished
    got = [event for event, _ in HAPPENED["l12"]]

    def of(kind: EventKind) -> list[LifecycleEvent]:
        return [event for event in got if event.kind is kind]

    ledger = Ledger(job.state_directory)
    states = sorted(ledger.table(ExecutionStateRow).rows(), key=lambda row: row.since)
    for operator in ("", "q"):
        own = [event for event in of(EventKind.STATE) if event.query == operator]
        assert [(one.new, one.at) for one in own] == [
            (row.state, row.since) for row in states if row.operator == operator
        ]
        assert [one.old for one in own] == ["CREATED", *(one.new for one in own[:-1])] and own[-1].new == "FINISHED"
    # It may finish before it is seen running.
    ran = ["RUNNING"] if any((row.operator, row.state) == ("q", "RUNNING") for row in states) else []
    assert [(one.old, one.new) for one in of(EventKind.SOURCE)] == [*pairwise([None, "OPENED", *ran, "FINISHED"])]
    steps = sorted((row.checkpoint_id, row.status) for row in ledger.table(CheckpointRow).rows())
    assert sorted((one.details["checkpoint_id"], one.new) for one in of(EventKind.CHECKPOINT)) == steps
    assert {(row.query, row.epoch) for row in ledger.table(EpochRow).rows()} == {
        (one.query, one.details["epoch"]) for one in of(EventKind.EPOCH)
    }
    assert of(EventKind.LATENCY) and all(one.details["latency_ms"] >= 0 for one in of(EventKind.LATENCY))
    assert [one.new for one in of(EventKind.JOB)] == ["started", "ended"]
    # What the listener has reported is among the job's metrics.
    metrics = job._active.metrics
    assert metrics is not None
    reported = [one for one in metrics.samples() if one.metric.name == "spark_ext_listener_counter_total"]
    assert sum(one.value for one in reported) > 0 and {one.labels[1] for one in reported} == {"events"}
    streamed = [one for one in got if one.kind not in (EventKind.LATENCY, EventKind.EPOCH)]
    with ControlServer(job.state_directory) as server:
        found = {one["event_id"]: one for one in followed(server, len(streamed))}
    assert found == {one.event_id: one.to_json() for one in streamed}
