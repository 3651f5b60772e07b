"""What queries do, finer than their life cycle, by what Spark says: one session, one job looked at from many sides."""

import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow, ExecutionStateRow, IncidentRow, JobRow
from spark_ext.model.execution import REQUESTED
from spark_ext.model.lifecycle import State
from spark_ext.views.downtime import downtime
from spark_ext.views.timeline import timeline
from tests.stalls.healthy import taken_slots
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def waits_for(gate: Path) -> Any:
    """A function that returns its argument once a file exists."""

    @F.udf("long")
    def wait(value: int) -> int:
        while not gate.exists():
            time.sleep(0.05)
        return value

    return wait


def states(ledger: Ledger, operator: str) -> list[ExecutionStateRow]:
    found = ledger.table(ExecutionStateRow).rows([("operator", "=", operator)])
    return sorted(found, key=lambda row: (row.incarnation, row.since))


@pytest.mark.slow(25, "starts a job twice, with a query of another job in its way")
def test_states_of_a_job_from_its_first_start_to_its_second(lab: JobHarness, tmp_path: Path) -> None:
    spark, gate = lab.spark, tmp_path / "gate"
    counted = lab.source(counts="1,1,1,1,1,1", live="true", rate=20).groupBy("channel").count()
    slow: Column = waits_for(gate)(F.col("count"))

    def start() -> sx.Job:
        job = sx.Job(spark, "lab", state=tmp_path / "state")
        writer = counted.select("channel", slow.alias("n")).writeStream.format("noop").outputMode("update")
        return job.add("q", writer).start()

    # L8: an epoch is planned, and has no slot.
    with taken_slots(spark, tmp_path / "slots"):
        job = start()
        until(lambda: job.state is State.SCHEDULING, "the epoch waits for a slot")
        assert "all 2 are taken by other queries and jobs" in job.snapshot().query("q").reason
        gate.touch()
    until(lambda: job.state is State.RUNNING, "the job runs")
    # A pause is neither progress nor downtime.
    job.control.pause(wait=60)
    until(lambda: job.state is State.PAUSED, "the job is paused")
    job.control.resume(wait=60)
    until(lambda: job.state is State.RUNNING, "the job runs again")
    job.stop()
    # The second start continues from state.
    gate.unlink()
    job = start()
    until(lambda: job.state is State.RESTORING, "the first epoch loads its state", 60)
    gate.touch()
    until(lambda: job.state is State.RUNNING, "the job runs")
    job.stop()

    ledger = Ledger(job.state_directory)
    words = [(row.incarnation, row.state) for row in states(ledger, "q")]
    assert words == [
        *[(1, name) for name in ("DEPLOYING", "SCHEDULING", "RUNNING", "PAUSED", "RUNNING", "CANCELED")],
        *[(2, name) for name in ("DEPLOYING", "RESTORING", "RUNNING", "CANCELED")],
    ]
    assert [(row.incarnation, row.state) for row in states(ledger, "")][-4:] == words[-4:]
    # The wait is downtime of its own, which is the system's; the starts, which were asked for, are none.
    incidents = ledger.table(IncidentRow).rows()
    waited = next(row for row in incidents if row.type == "scheduling")
    assert waited.labels == {"type": "SYSTEM", "origin": "spark"}
    rows = [vars(row) for row in incidents]
    tables = ([vars(row) for row in ledger.table(kind).rows()] for kind in (ExecutionStateRow, JobRow, EpochRow))
    found = downtime(timeline(*tables), rows, datetime.now(timezone.utc))
    assert {name: set(by_state) for name, by_state in found.by_incident().items()} == {
        waited.incident_id: {"SCHEDULING", "SCHEDULING of q"}
    }
    assert [piece.state for piece in found.pieces if piece.down] == ["SCHEDULING"]


@pytest.mark.slow(8, "starts a query three times")
def test_l3_a_wait_for_slots_and_a_request_in_a_recovery(lab: JobHarness, tmp_path: Path) -> None:
    """The query fails, waits for slots that somebody else has taken, and is restarted on request afterwards."""
    flag, failed = tmp_path / "flag", tmp_path / "failed"

    @F.udf("long")
    def fails_once(n: int) -> int:
        if flag.exists() and not failed.exists():
            failed.touch()
            raise ConnectionRefusedError(111, "Connection refused")
        return n

    rows = lab.source(counts="1", live="true", rate=20)
    job = sx.Job(lab.spark, "lab", state=tmp_path / "state")
    job.add("q", rows.withColumn("m", fails_once("n")).writeStream.format("noop")).start()
    until(lambda: job.state is State.RUNNING, "the job runs")
    flag.touch()
    until(failed.exists, "the query has failed")
    with taken_slots(lab.spark, tmp_path / "slots"):
        until(lambda: job.state is State.SCHEDULING, "its next attempt waits for a slot", 60)
        shown = job.snapshot().query("q")
    until(lambda: job.state is State.RUNNING, "the job runs again")
    job.control.restart(wait=60)
    until(lambda: job.state is State.RUNNING, "the job runs again")
    job.stop()

    ledger = Ledger(job.state_directory)
    incidents = [vars(row) for row in ledger.table(IncidentRow).rows()]
    kinds = {row["incident_id"]: row["labels"]["type"] for row in incidents}
    tables = ([vars(row) for row in ledger.table(kind).rows()] for kind in (ExecutionStateRow, JobRow, EpochRow))
    found = downtime(timeline(*tables), incidents, datetime.now(timezone.utc))
    spent = {
        kinds[name]: {state for state in by_state if " of " not in state}
        for name, by_state in found.by_incident().items()
    }
    assert spent["SYSTEM"] == {"SCHEDULING"} and "RESTARTING" in spent["NETWORK"] <= {"RESTARTING", "DEPLOYING"}
    assert "all 2 are taken by other queries and jobs" in shown.reason
    assert {piece.incident for piece in found.pieces if piece.down} <= kinds.keys(), "none is unknown"
    (asked,) = [row for row in states(ledger, "") if row.reason.startswith(REQUESTED)]
    assert asked.state == "RESTARTING" and asked.incident is None
    (piece,) = [piece for piece in found.pieces if piece.since == asked.since]
    assert piece.seconds > 0 and not piece.down


def test_without_the_monitor_states_are_those_of_the_life_cycle(lab: JobHarness) -> None:
    job = lab.job(lab.source(counts="5"), monitor_interval=0)
    before = {thread.name for thread in threading.enumerate()}
    job.start()
    assert not [name for name in {thread.name for thread in threading.enumerate()} - before if "monitor" in name]
    job.await_termination(60)
    assert [row.state for row in states(Ledger(job.state_directory), "q")] == ["RUNNING", "FINISHING", "FINISHED"]
