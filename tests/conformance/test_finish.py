"""Conformance, "Finish": how a job comes to its end. One test per line, named after it."""

from collections import Counter
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.errors import JobFailedError
from spark_ext.jobs.job import Job
from spark_ext.jobs.result import JobResult
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow, FinishedRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, Finish
from spark_ext.model.lifecycle import State
from tests.support.jobs import JobHarness, expected
from tests.support.killable import LATER
from tests.support.versions import needs_delta
from tests.support.waiting import until

STAGE: Final[dict[str, Any]] = {"format": "datagen", "rows": 40, "channels": 2}


@pytest.mark.core
def test_f1_f4_f7_f10_a_job_runs_to_its_end_and_then_again(lab: JobHarness) -> None:
    """With intervals of an hour, as the final checkpoint comes at once."""

    def run() -> JobResult:
        return lab.run(lab.source(counts="50,70"), interval="1 hour", checkpoint_interval="1 hour")

    first, history = run(), lab.history()
    assert first.finished and first.query("q").finished
    assert [row.status for row in history.finals("q")] == ["COMPLETED", "FLAGGED", "ACKNOWLEDGED", "CLOSED"]
    assert lab.numbers() == expected(50, 70)
    assert sorted(row.kind for row in history.finished) == ["channel", "channel", "query", "source"]
    # The acknowledgement of the very last rows, which Spark never gives, comes after they are visible.
    (acknowledged,) = history.of("in", "committed")
    assert acknowledged["final"] and acknowledged["positions"] == {"0": 50, "1": 70}
    order = [event["event"] for event in history.events]
    assert order.index("commit") < order.index("committed") < order.index("close")
    second = run()
    assert second.finished and second.query("q").finished_before and second.rows == 0
    assert (tuple(lab.events()), lab.history().checkpoints) == (history.events, history.checkpoints)


@pytest.mark.core
@pytest.mark.slow(20, "two runs of a query with six sources")
def test_r3_f7_f10_a_source_beside_a_live_one(lab: JobHarness) -> None:
    """Under a watermark of its own, under that of the live one, an exchange, stages, and without any of that."""
    gate = lab.folder / "gate"
    ending = ("in", "plain", "with", "x-in", "mix")

    def job() -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="50 ms")
        x = made.exchange("x", partitions=2)
        made.add("a", x.write(lab.source("a-in", counts="30")))
        held = lab.source("in", counts="50,70", max_rows_per_epoch=80, gate=gate)
        own = sx.with_watermark(held.selectExpr("channel", "n", LATER), "ts", "1 minute")
        shared = lab.source("with", counts="20").union(lab.source("live", counts="1", live="true", rate=100))
        stages = {f"{name}.{key}": value for name in ("one", "two") for key, value in STAGE.items()}
        mix = lab.spark.readStream.format("hybrid").options(uid="mix", stages="one,two", **stages).load()
        rows = [
            own.dropDuplicatesWithinWatermark(["channel", "n"]), sx.with_watermark(shared, "ts", "1 minute"),
            lab.source("plain", counts="10"), x.read("x-in"),
        ]  # fmt: skip
        frames = [*(frame.select("channel", "n") for frame in rows), mix.selectExpr("'mix' channel", "id n")]
        lab.add(made, reduce(DataFrame.union, frames), query="q", out="out")
        return made

    def flags(kind: str) -> Counter[str]:
        rows = lab.ledger.table(FinishedRow).rows([("query", "=", "q"), ("kind", "=", kind)])
        return Counter(row.source for row in rows)

    first = job().start()
    others = Counter(ending) - Counter(["in"])
    until(lambda: flags("closed") == others or first.done, "the ends of the other sources")
    assert lab.events("end_of_input") and not [one for one in lab.events("end_of_input") if one["uid"] == "in"]
    gate.touch()
    until(lambda: flags("closed") == Counter(ending) or first.done, "the end of the source that was held")
    ended = {source.uid: source.finished for source in first.snapshot().query("q").sources}
    assert flags("source") == Counter(ending) and ended == {**dict.fromkeys(ending, True), "live": False}
    committed = first.snapshot().query("q").last_epoch or 0
    until(lambda: (first.snapshot().query("q").last_epoch or 0) > committed + 3 or first.done, "further epochs")
    assert first.stop().state is State.CANCELED
    before = [one for one in lab.events() if one["uid"] in ending]
    own = [one for one in before if one["uid"] == "in" and one["event"] != "read"]
    assert [one["event"] for one in own][-3:] == ["end_of_input", "committed", "close"]
    assert own[-2]["final"] and own[-2]["positions"] == {"0": 50, "1": 70}
    second = job().start()
    until(lambda: second.snapshot().query("q").epochs > 3 or second.done, "epochs after a restart")
    taken = [("checkpoint_id", "=", second.checkpoint(60)), ("status", "=", "COMPLETED")]
    (row,) = lab.ledger.table(CheckpointRow).rows(taken)
    sources = CheckpointMetadata.from_json(row.metadata).queries["q"].sources
    assert {sources[uid].finish for uid in ending} == {Finish.ON_RESTORE}
    assert second.drain(timeout=300).finished
    assert [one for one in lab.events() if one["uid"] in ending] == before
    assert [one["event"] for one in lab.events() if one["uid"] == "live"][-3:] == ["end_of_input", "committed", "close"]
    assert flags("source") == Counter([*ending, "live"]) and flags("closed") == Counter(ending)
    counts = Counter(channel for channel, _ in lab.numbers())
    assert counts["mix"] == 2 * STAGE["rows"] and counts["1"] == 70


@pytest.mark.core
def test_f3_only_a_checkpoint_that_started_after_finish_is_final(lab: JobHarness) -> None:
    """Periodic checkpoints come before the end, and flag nothing; the final one has the last epoch."""
    gate = lab.folder / "gate"
    source: dict[str, Any] = {"counts": "40", "max_rows_per_epoch": 20, "gate": gate}
    half = lab.job(lab.source(**source), checkpoint_interval="100 ms").start()
    until(lambda: lab.history().checkpoints, "a periodic checkpoint")
    stopped, before = half.stop(), lab.history()
    assert not stopped.finished and not stopped.query("q").finished
    assert {row.kind for row in before.checkpoints} == {"periodic"}
    assert before.finished == ()
    gate.touch()
    result = lab.run(lab.source(**source))
    assert result.finished
    assert {row.epoch for row in lab.history().finals("q")} == {result.query("q").last_epoch}


@pytest.mark.core
def test_f3_a_later_checkpoint_may_serve(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final checkpoint cannot be recorded: nothing is finished. The next run's is, with no row read."""
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, "final.before_completed=raise")
    with pytest.raises(JobFailedError, match="a step of the final checkpoint failed"):
        lab.run(lab.source(counts="30"), restart_attempts=0)
    failed = lab.history()
    assert failed.finals("q") == [] and failed.finished_queries == ()
    assert lab.run(lab.source(counts="30")).finished
    assert {row.incarnation for row in lab.history().finals("q")} == {2}
    assert lab.events("read") == failed.of("in", "read")
    assert lab.numbers() == expected(30)


@pytest.mark.core
def test_f6_stop_emits_no_end_of_input_and_drain_does(lab: JobHarness) -> None:
    job = lab.job(lab.source(counts="1", live="true", rate=200)).start()
    until(lambda: len(lab.rows()) > 50, "rows of the live source")
    assert job.stop().state is State.CANCELED
    assert lab.events("end_of_input", "final_checkpoint", "close") == []
    assert lab.ledger.table(FinishedRow).rows() == []
    again = lab.job(lab.source(counts="1", live="true", rate=200)).start()
    before = len(lab.rows())
    until(lambda: len(lab.rows()) > before, "rows after the restart")
    assert again.drain(timeout=300).finished
    assert [event["uid"] for event in lab.events("end_of_input")] == ["in", "q-out"]
    assert {row.drained for row in lab.ledger.table(FinishedRow).rows() if row.kind == "query"} == {True}
    seen = lab.numbers()
    assert seen == expected(len(seen))
    assert lab.job(lab.source(counts="1", live="true", rate=200)).run(progress=False).rows == 0
    later = lab.job(lab.source(counts="1", live="true", rate=200))
    lab.add(later, lab.source("added", counts="30"), query="added", out="added")
    assert later.run(progress=False).finished
    assert lab.numbers("added") == expected(30), "a drain that is over does not end what was added later"


def test_f9_operators_that_require_finalization_are_waited_for(lab: JobHarness) -> None:
    """One that needs three more epochs gets exactly three, each marked final; others are not asked."""
    job = lab.job(lab.source(counts="100"), sink="patient_folder", sink_finalize_after=3)
    assert job.run(progress=False).finished
    commits = lab.events("commit")
    assert [event["final"] for event in commits] == [False, True, True, True]
    assert lab.events("final_checkpoint")[0]["epoch"] == commits[-1]["epoch"]
    assert lab.numbers() == expected(100)


@pytest.mark.core
def test_f9_a_time_limit_is_an_incident_and_the_next_start_runs(lab: JobHarness) -> None:
    with pytest.raises(JobFailedError, match="not finalized") as failure:
        lab.run(lab.source(counts="100"), sink="patient_folder", sink_finalize_after=10_000, finalization_timeout="1 s")
    assert "continues to wait" in str(failure.value)
    left = lab.history()
    assert left.of("q-out", "close", "final_checkpoint") == [] and left.finished_queries == ()
    assert any("not finalized" in incident.what for incident in left.incidents)
    given = sum(event["final"] for event in left.of("q-out", "commit"))
    assert lab.run(lab.source(counts="100"), sink="patient_folder", sink_finalize_after=given + 2).finished
    assert len([event for event in lab.events("commit") if event["final"] and not event["repeat"]]) == given + 2
    assert lab.numbers() == expected(100)


@pytest.mark.core
def test_f13_a_failed_query_emits_no_end_of_input(lab: JobHarness) -> None:
    source: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 20}
    with pytest.raises(JobFailedError, match="row 50 cannot be read") as failure:
        lab.run(lab.source(**source, fail_at=50), restart_attempts=1)
    assert "query 'q'" in str(failure.value)
    assert lab.events("end_of_input", "final_checkpoint", "close") == []
    assert lab.numbers() == expected(40)
    assert lab.run(lab.source(**source)).finished
    assert lab.numbers() == expected(100)


@pytest.mark.core
def test_f14_one_query_failed_for_good_fails_the_job_at_once(lab: JobHarness) -> None:
    job = lab.job(lab.source("bad", counts="100", fail_at=0), query="bad", out="bad", restart_attempts=0)
    lab.add(job, lab.source("live", counts="1", live="true"), query="live", out="live")
    with pytest.raises(JobFailedError, match="row 0 cannot be read"):
        job.run(progress=False)
    assert job.state is State.FAILED
    assert {run.spec.uid: run.state for run in job.runs} == {"bad": State.FAILED, "live": State.CANCELED}


@pytest.mark.core_for("[parquet-run]", "[delta-until now]")
@pytest.mark.parametrize("until_now", [False, True], ids=["run", "until now"])
@pytest.mark.parametrize("form", ["parquet", pytest.param("delta", marks=needs_delta)])
def test_available_now_over_a_source_of_sparks_ends_nothing(lab: JobHarness, form: str, until_now: bool) -> None:
    source = lab.folder / "in"

    def run(*arrived: int) -> JobResult:
        for number in arrived:
            rows = pa.table({"n": pa.array([number], pa.int64())})
            if form == "delta":
                write_deltalake(source, rows, mode="append")
            else:
                source.mkdir(exist_ok=True)
                pq.write_table(rows, source / f"{number}.parquet")
        reader = lab.spark.readStream.format(form)
        frame = (reader if form == "delta" else reader.schema("n bigint")).load(str(source))
        job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        writer = frame.writeStream.format("folder").options(uid="out", path=str(lab.folder / "out"))
        job.add("q", writer.trigger(availableNow=True))
        return job.run(until="now" if until_now else None, progress=False)

    for arrived, rows in (((1, 2), 2), ((3,), 1), ((), 0)):
        result = run(*arrived)
        assert (result.state, result.caught_up, result.rows) == (State.SUSPENDED, True, rows)
    assert sorted(row["n"] for row in lab.rows()) == [1, 2, 3]


def test_a_failure_between_flags_and_their_step_repeats_none(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in two tables, as does the row that says that they are written."""

    def flags() -> Counter[tuple[str, str, str]]:
        return Counter((flag.kind, flag.source, flag.channel) for flag in lab.ledger.table(FinishedRow).rows())

    # Of the rows of `checkpoints` the first is COMPLETED; before the second come the flags, in their own table.
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, "ledger.checkpoints.before=raise#2")
    with pytest.raises(JobFailedError):
        lab.run(lab.source(), checkpoint_interval="1 hour", restart_attempts=0)
    steps = JobMemory.read(lab.ledger).of("q").final
    assert steps is not None and steps.passed == {"COMPLETED"}
    before = flags()
    assert before[("query", "", "")] == 1
    monkeypatch.delenv(failpoints.VARIABLE)
    assert lab.run(lab.source()).finished and flags() == before
