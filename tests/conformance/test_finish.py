"""Conformance, "Finish": how a job comes to its end. One test per line, named after it."""

from __future__ import annotations

import time
from collections import Counter

import pytest

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.errors import JobFailedError
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.model.lifecycle import State
from spark_ext.spark.spark_log import SparkLog
from tests.support.jobs import Lab, expected
from tests.support.killable import kill, mixed, running
from tests.support.waiting import until


def test_f1_final_checkpoint_comes_at_once(lab: Lab) -> None:
    """All finished: the final checkpoint comes at once, whatever the interval: no test may run for an hour."""
    job = lab.job(lab.source(counts="1000"), interval="1 hour", checkpoint_interval="1 hour")
    assert job.run(progress=False).finished
    finals = job.ledger.checkpoints().where("kind = 'final'").orderBy("at").collect()
    assert [row["status"] for row in finals] == ["COMPLETED", "FLAGGED", "ACKNOWLEDGED", "CLOSED"]
    assert lab.numbers() == expected(1000)


def test_f3_only_a_checkpoint_that_started_after_finish_is_final(lab: Lab) -> None:
    """Periodic checkpoints come before the end and never count as final; the final one has the last epoch."""
    gate = lab.folder / "gate"
    job = lab.job(lab.source(counts="40", max_rows_per_epoch=20, gate=gate), checkpoint_interval="100 ms").start()
    until(lambda: job.ledger.checkpoints().where("kind = 'periodic'").count() > 0, "a periodic checkpoint")
    assert job.ledger.checkpoints().where("kind = 'final'").count() == 0
    assert job.ledger.finished().where("kind = 'query'").count() == 0
    gate.touch()
    result = job.await_termination(60)
    final = job.ledger.checkpoints().where("kind = 'final' and status = 'COMPLETED'").collect()
    assert [row["epoch"] for row in final] == [result.query("q").last_epoch]


def test_f3_a_later_checkpoint_may_serve(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final checkpoint cannot be recorded: nothing is finished. The next run's is, with no row read."""
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, "final.before_completed=raise")
    first = lab.job(lab.source(counts="30"))
    with pytest.raises(JobFailedError, match="a step of the final checkpoint failed"):
        first.run(progress=False)
    assert first.ledger.checkpoints().where("kind = 'final'").count() == 0
    assert first.ledger.finished().where("kind = 'query'").count() == 0
    read = lab.events("read")
    second = lab.job(lab.source(counts="30"))
    assert second.run(progress=False).finished
    final = second.ledger.checkpoints().where("kind = 'final'").orderBy("at").collect()
    assert [row["status"] for row in final] == ["COMPLETED", "FLAGGED", "ACKNOWLEDGED", "CLOSED"]
    assert {row["incarnation"] for row in final} == {2}
    assert lab.events("read") == read
    assert lab.numbers() == expected(30)


def test_f4_after_finish_only_checkpoints_and_no_rows(lab: Lab) -> None:
    """After the last data epoch nothing is read or committed; a second run reads nothing at all."""
    first = lab.job(lab.source(counts="50,70")).run(progress=False)
    assert first.finished
    before = len(lab.events("read")), len(lab.events("commit")), len(lab.events("discover"))
    second = lab.job(lab.source(counts="50,70")).run(progress=False)
    assert second.finished
    assert second.rows == 0
    assert second.query("q").finished_before
    assert (len(lab.events("read")), len(lab.events("commit")), len(lab.events("discover"))) == before
    assert lab.numbers() == expected(50, 70)


def test_f6_stop_emits_no_end_of_input_and_drain_does(lab: Lab) -> None:
    """Stop: no end of input, the next run goes on. Drain: end of input, then the final checkpoint."""
    job = lab.job(lab.source(counts="1", live="true", rate=200)).start()
    until(lambda: len(lab.rows()) > 50, "rows of the live source")
    stopped = job.stop()
    assert stopped.state is State.CANCELED
    assert lab.events("end_of_input", "final_checkpoint", "close") == []
    assert job.ledger.finished().count() == 0

    again = lab.job(lab.source(counts="1", live="true", rate=200)).start()
    before = len(lab.rows())
    until(lambda: len(lab.rows()) > before, "rows after the restart")
    drained = again.drain(timeout=60)
    assert drained.finished
    assert [event["uid"] for event in lab.events("end_of_input")] == ["in", "q-out"]
    assert {row["drained"] for row in again.ledger.finished().where("kind = 'query'").collect()} == {True}
    seen = lab.numbers()
    assert seen == expected(len(seen))
    assert lab.job(lab.source(counts="1", live="true", rate=200)).run(progress=False).rows == 0

    later = lab.job(lab.source(counts="1", live="true", rate=200))
    lab.add(later, lab.source("added", counts="30"), query="added", out="added")
    assert later.run(progress=False).finished
    assert lab.numbers("added") == expected(30), "a drain that is over does not end what was added later"


def test_f7_finished_flag_is_false_before_and_true_after(lab: Lab) -> None:
    """In the ledger and in the job's result."""
    gate = lab.folder / "gate"
    job = lab.job(lab.source(counts="40", max_rows_per_epoch=20, gate=gate)).start()
    until(lambda: lab.rows(), "the first epoch")
    assert job.ledger.finished().count() == 0
    stopped = job.stop()
    assert not stopped.finished
    assert not stopped.query("q").finished
    gate.touch()
    again = lab.job(lab.source(counts="40", max_rows_per_epoch=20, gate=gate))
    result = again.run(progress=False)
    assert result.finished
    assert result.query("q").finished
    kinds = sorted(row["kind"] for row in again.ledger.finished().collect())
    assert kinds == ["channel", "query", "source"]


def test_f9_operators_that_require_finalization_are_waited_for(lab: Lab) -> None:
    """One that needs three more epochs gets exactly three, each marked final; others are not asked."""
    job = lab.job(lab.source(counts="100"), sink="patient_folder", sink_finalize_after=3)
    result = job.run(progress=False)
    assert result.finished
    commits = lab.events("commit")
    assert [event["final"] for event in commits] == [False, True, True, True]
    assert lab.events("final_checkpoint")[0]["epoch"] == commits[-1]["epoch"]
    assert lab.numbers() == expected(100)


def test_f9_past_the_time_limit_it_is_an_incident_and_the_next_start_goes_on(lab: Lab) -> None:
    """Never FINISHED nor closed; and resumed."""
    job = lab.job(
        lab.source(counts="100"), sink="patient_folder", sink_finalize_after=10_000, finalization_timeout="3 s"
    )
    with pytest.raises(JobFailedError, match="not finalized") as failure:
        job.run(progress=False)
    assert "continues to wait" in str(failure.value)
    assert lab.events("close", "final_checkpoint") == []
    assert job.ledger.finished().where("kind = 'query'").count() == 0
    assert job.ledger.incidents().where("what like '%not finalized%'").count() >= 1

    made = sum(event["final"] for event in lab.events("commit"))
    again = lab.job(lab.source(counts="100"), sink="patient_folder", sink_finalize_after=made + 2)
    assert again.run(progress=False).finished
    assert sum(event["final"] for event in lab.events("commit") if not event["repeat"]) == made + 2
    assert lab.numbers() == expected(100)


def test_f10_source_learns_that_its_last_epoch_is_committed(lab: Lab) -> None:
    """The acknowledgement of the very last rows, which Spark never gives, comes after they are visible."""
    assert lab.job(lab.source(counts="100,30", max_rows_per_epoch=50)).run(progress=False).finished
    final = [event for event in lab.events("committed") if event["final"]]
    assert len(final) == 1
    assert final[0]["positions"].items() <= {"0": 100, "1": 30}.items()
    assert final[0]["positions"]["0"] == 100
    order = [event["event"] for event in lab.events("commit", "committed", "final_checkpoint", "close")]
    assert order[-4:] == ["committed", "final_checkpoint", "close", "close"]


def test_f13_a_failed_query_emits_no_end_of_input(lab: Lab) -> None:
    """A query stopped by an exception."""
    job = lab.job(lab.source(counts="100", max_rows_per_epoch=20, fail_at=50), restart_attempts=1)
    with pytest.raises(JobFailedError, match="row 50 cannot be read") as failure:
        job.run(progress=False)
    assert "query 'q'" in str(failure.value)
    assert lab.events("end_of_input", "final_checkpoint", "close") == []
    assert lab.numbers() == expected(40)
    assert job.ledger.finished().where("kind != 'channel'").count() == 0
    mended = lab.job(lab.source(counts="100", max_rows_per_epoch=20)).run(progress=False)
    assert mended.finished
    assert lab.numbers() == expected(100)


def test_f14_one_query_failed_for_good_fails_the_job_at_once(lab: Lab) -> None:
    """The job says so with the first failure, whatever the others do."""
    job = lab.job(lab.source("bad", counts="100", fail_at=0), query="bad", out="bad", restart_attempts=0)
    lab.add(job, lab.source("live", counts="1", live="true"), query="live", out="live")
    with pytest.raises(JobFailedError, match="row 0 cannot be read"):
        job.run(progress=False)
    assert job.state is State.FAILED
    states = {run.spec.uid: run.state for run in job.runs}
    assert states == {"bad": State.FAILED, "live": State.CANCELED}


def test_f15_a_mixed_job_goes_on_after_a_bounded_source_has_finished(lab: Lab) -> None:
    """10,000 bounded rows beside a live source; killed 20 checkpoints later: no bounded row is read again."""
    ledger = Ledger(str(lab.folder / "state"))
    log = SparkLog(str(lab.checkpoint()))

    def checkpoints() -> int:
        return len(ledger.checkpoints(""))

    with running(mixed, lab.folder) as driver:
        until(lambda: ledger.flagged("q", 1).get("bounded") == 1, "the bounded source's flag")
        then = checkpoints()
        until(lambda: checkpoints() >= then + 20, "20 checkpoints after the bounded source has finished")
        kill(driver)
    committed, planned = log.newest_commit(), log.newest_offsets()
    assert committed is not None and planned is not None
    read, written = lab.events("read"), lab.events("commit")
    assert sum(event["end"] - event["start"] for event in read if event["uid"] == "bounded") == 10_000

    again = mixed(lab).start()
    until(lambda: (log.newest_commit() or 0) >= committed + 5, "epochs after the restart")
    again.drain(timeout=60)
    assert [event for event in lab.events("read")[len(read) :] if event["uid"] == "bounded"] == []
    replayed = {event["epoch"] for event in lab.events("commit")[len(written) :] if event["epoch"] <= planned}
    assert replayed <= {committed + 1}, "at most the one epoch that was planned and not committed"
    live = len(lab.numbers()) - 10_000
    assert live > 0
    assert sorted(n for _, n in lab.numbers()) == sorted([*range(10_000), *range(live)])


def test_periodic_checkpoints_stop_with_the_job(lab: Lab) -> None:
    """After the end nothing more is written."""
    job = lab.job(lab.source(counts="10"), checkpoint_interval="50 ms")
    job.run(progress=False)
    before = job.ledger.checkpoints().count()
    time.sleep(0.3)  # several intervals: what is asserted is that nothing happens
    assert job.ledger.checkpoints().count() == before


def test_a_query_of_sparks_own_source_has_finished_when_a_further_run_finds_nothing(lab: Lab) -> None:
    """Its end is not in its offsets: under `available_now` a run that plans nothing proves it."""
    source = lab.folder / "lines"
    source.mkdir()
    (source / "a.txt").write_text("one\ntwo\n")

    def job() -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        lines = lab.spark.readStream.text(str(source))
        writer = lines.writeStream.format("folder").option("uid", "out").option("path", str(lab.folder / "out"))
        return made.add("q", writer, available_now=True)

    assert job().run(progress=False).finished
    assert sorted(row["value"] for row in lab.rows()) == ["one", "two"]
    again = job().run(progress=False)
    assert again.query("q").finished_before
    assert again.rows == 0
