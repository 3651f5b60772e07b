"""Conformance, "Identity over time", I11 and I12: the coordinator never waits, and a stop ends a job in any state."""

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.control.job_events import request
from spark_ext.jobs.coordinator import Coordinator
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.killable import mixed, running
from tests.support.processes import Tree
from tests.support.waiting import until

SOON = 60.0
ROOT = Path(__file__).parents[2]


def live(lab: JobHarness) -> Job:
    return lab.job(lab.source("live", counts="1", live="true", rate=200), query="live", out="live")


def test_i11_nothing_in_one_query_delays_another(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: a hook of one query does not return; then a stop, which names it."""
    gate, blocked = threading.Event(), threading.Event()
    hook = OperatorHooks.end_of_input

    def block(operators: OperatorHooks) -> None:
        if operators._spec.uid == "a":
            blocked.set()
            assert gate.wait(SOON)
        hook(operators)

    monkeypatch.setattr(OperatorHooks, "end_of_input", block)
    job = live(lab)
    lab.add(job, lab.source("in", counts="10"), query="a", out="a")
    job.start()
    try:
        assert blocked.wait(SOON)
        seen = job.snapshot().query("live").epochs
        until(lambda: job.snapshot().query("live").epochs >= seen + 3, "epochs of the other query", SOON)
        assert job.snapshot().query("a").state is State.FINISHING
        begun = time.monotonic()
        result = job.stop(2.0)
        assert time.monotonic() - begun < 15
    finally:
        gate.set()
    assert result.state is State.CANCELED
    assert {query.uid: query.state for query in result.queries} == dict.fromkeys(("a", "live"), State.CANCELED)
    assert "'a step of the final checkpoint' was under way" in result.query("a").reason
    assert [row.event for row in Ledger(str(lab.folder / "state")).jobs()] == ["started", "ended"]


@pytest.mark.core
def test_i11_a_late_coordinator_takes_in_every_epoch(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has removed the epochs that it would have looked for next."""
    lab.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    gate = threading.Event()
    tick = Coordinator._tick

    def late(coordinator: Coordinator, now: float) -> None:
        assert gate.wait(SOON)
        tick(coordinator, now)

    monkeypatch.setattr(Coordinator, "_tick", late)
    job = live(lab).start()
    log = SparkLog(str(lab.checkpoint("live")))
    until(lambda: (log.newest_commit() or 0) >= 12 and not log.is_committed(0), "epochs, the first ones removed", SOON)
    gate.set()
    result = job.drain(SOON)
    assert result.finished
    recorded = sorted(row.epoch for row in lab.history().epochs)
    assert recorded == list(range(int(result.query("live").last_epoch or 0) + 1))
    assert [n for _, n in lab.numbers("live")] == list(range(len(lab.numbers("live"))))


@pytest.mark.core
def test_i12_a_stop_ends_a_job_that_waits_for_finalization(lab: JobHarness) -> None:
    """It is not started again until the time limit of finalization."""
    job = lab.job(lab.source(counts="10"), sink="patient_folder", sink_finalize_after=100_000).start()
    until(lambda: job.snapshot().query("q").state is State.FINISHING, "the wait", SOON)
    until(lambda: job.snapshot().query("q").epochs >= 3, "further epochs", SOON)
    result = job.stop(SOON)
    assert (result.state, result.query("q").state) == (State.CANCELED, State.CANCELED)
    assert not lab.spark.streams.active
    assert lab.run(lab.source(counts="10"), sink="patient_folder", sink_finalize_after=1).finished
    assert lab.numbers() == expected(10)


@pytest.mark.core
def test_i12_a_stop_during_the_start_ends_it(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, blocked = threading.Event(), threading.Event()
    claim = OperatorHooks.claim

    def block(operators: OperatorHooks, *given: Any) -> None:
        blocked.set()
        assert gate.wait(SOON)
        claim(operators, *given)

    monkeypatch.setattr(OperatorHooks, "claim", block)
    job = lab.job(lab.source(counts="10"))
    start = threading.Thread(target=job.start)
    start.start()
    assert blocked.wait(SOON)
    result = job.stop(0.5)
    start.join(SOON)
    gate.set()
    assert result.state is State.CANCELED and "'claim' was under way" in result.query("q").reason
    assert not lab.events("read") and not lab.spark.streams.active


@pytest.mark.core
def test_i12_the_ends_of_queries_with_sparks_own_sources(lab: JobHarness) -> None:
    """An empty one ends; a drain that a crash left in force ends with the planned epoch."""
    empty = lab.folder / "empty"
    empty.mkdir()
    frame = lab.spark.readStream.schema("n long").parquet(str(empty))
    job = sx.Job(lab.spark, "empty", state=lab.folder / "empty-state")
    result = job.add("q", frame.writeStream.format("noop"), available_now=True).run(progress=False)
    assert result.caught_up and result.query("q").last_epoch is None

    def rate() -> Job:
        rows = lab.spark.readStream.format("rate").option("rowsPerSecond", "20").load()
        return sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", rows.writeStream.format("noop"))

    first = rate().start()
    until(lambda: first.snapshot().query("q").epochs >= 2, "epochs", SOON)
    last = first.stop().query("q").last_epoch
    context = first._active._context
    assert context is not None and last is not None
    request(context.control, "job", "drain")  # as a driver does that dies before it has stopped the query
    log = SparkLog(str(lab.folder / "state" / "queries" / "q" / "checkpoint"))
    planned = lab.folder / "state" / "queries" / "q" / "checkpoint" / "offsets"
    if log.newest_offsets() == last:
        shutil.copy(planned / str(last), planned / str(last + 1))  # as if it had died in the middle of an epoch
    result = rate().run(progress=False)
    assert result.finished and result.query("q").last_epoch == last + 1 == log.newest_commit() == log.newest_offsets()
    third = sx.Job(lab.spark, "third", state=lab.folder / "third")
    rows = lab.spark.readStream.format("rate").option("rowsPerSecond", "20").load()
    third.add("q", rows.writeStream.format("noop")).start()
    until(lambda: third.snapshot().query("q").epochs >= 2, "epochs", SOON)
    assert third.drain(SOON).finished


@pytest.mark.slow(30, "a driver with a JVM of its own, which is killed")
@pytest.mark.skipif("config.getoption('remote')", reason="for a server that is killed, see tests/spark/test_connect.py")
def test_i12_a_jvm_that_is_killed_ends_the_job_by_name(tmp_path: Path) -> None:
    """`run()` raises no bare ConnectionRefusedError, and the end is recorded."""
    ledger = Ledger(str(tmp_path / "state"))
    with running(mixed, tmp_path) as driver:
        until(lambda: SparkLog(str(tmp_path / "state/queries/q/checkpoint")).newest_commit(), "epochs", 120)
        next(member for member in driver.members() if member.is_jvm).kill()
        assert driver.wait(SOON) == 1
        shown = driver.log.read_text()
    assert "JobFailedError: [JOB_FAILED] Spark's JVM, process " in shown and "has died" in shown
    assert [(row.event, row.reason) for row in ledger.jobs()][1:] == [("ended", "FAILED")]
    assert any("has died" in row.what for row in ledger.table(IncidentRow).rows())


STOPPED_SESSION = """
import sys, time
import spark_ext as sx
from spark_ext.errors import SparkExtError
from tests.support import cheap_jvm
folder = sys.argv[1]
def job():
    spark = cheap_jvm.session("stopped", {"spark.driver.memory": "512m"})
    rows = spark.readStream.format("rate").option("rowsPerSecond", "20").load()
    return spark, sx.Job(spark, "lab", state=folder + "/state").add("q", rows.writeStream.format("noop"))
spark, first = job()
first.start()
while not first.snapshot().query("q").epochs:
    time.sleep(0.05)
spark.stop()
spark, second = job()
second.start()
while not second.snapshot().query("q").epochs:
    time.sleep(0.05)
print("first", first.snapshot().state, "second", second.stop().state)
"""


@pytest.mark.slow(30, "a driver whose session is stopped and made again")
def test_i12_a_session_that_is_stopped_ends_its_job(tmp_path: Path) -> None:
    """The next start in this process does not find the job running."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED_SESSION)
    with Tree([sys.executable, script, tmp_path], tmp_path / "driver.log", {"PYTHONPATH": str(ROOT)}) as driver:
        code = driver.wait(180)
        shown = driver.log.read_text()
    assert code == 0, shown
    assert "second CANCELED" in shown and ("first FAILED" in shown or "first CANCELED" in shown)
    assert {row.incarnation for row in Ledger(str(tmp_path / "state")).jobs() if row.event == "ended"} == {1, 2}
