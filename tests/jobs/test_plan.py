"""A plan of a start: what it says is what the start then does, and nothing is written for it."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobRunningError, StateError
from spark_ext.jobs.job import Job
from spark_ext.jobs.starting.recorded_past import refuse_half_rescaled
from spark_ext.ledger import Ledger
from spark_ext.ledger.memory import JobMemory
from tests.support.folders import unchanged
from tests.support.jobs import JobHarness, stopped


def generated(lab: JobHarness, uid: str, **options: str) -> DataFrame:
    reader = lab.spark.readStream.format("datagen").options(uid=uid, max_rows_per_epoch=400, **options)
    return reader.load().select("channel", "seq")


def linked(lab: JobHarness, *, counts: str = "300,200", out: str = "out") -> Job:
    """A query that writes an exchange, one that reads it, and one that waits for that."""
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    x = job.exchange("x", partitions=2)
    job.add("a", x.write(generated(lab, "a-in", rows_of=counts)))
    job.add("b", x.read("b-in").writeStream.format("delta_2pc").options(uid="b-out", path=str(lab.folder / out)))
    last = generated(lab, "c-in", rows_of="10").writeStream.format("delta_2pc")
    return job.add("c", lambda: last.options(uid="c-out", path=str(lab.folder / "last")), after="b")


@pytest.mark.slow(20, "runs linked queries to their end")
def test_a_plan_says_what_the_start_then_does(lab: JobHarness) -> None:
    """Before the first start, between two, and when all has finished."""
    with unchanged(lab.folder / "state", lab.folder / "out"):
        plan = linked(lab).plan()
    assert plan.accepted and plan.incarnation == 1 and not (lab.folder / "state").exists()
    assert {query.uid: query.action for query in plan.queries} == {"a": "begins", "b": "begins", "c": "waits"}
    a, b, _ = plan.queries
    assert [(one.uid, one.new, one.running, one.rows) for one in a.sources] == [("a-in", 2, 0, 500)]
    assert b.creates and dict(b.writes)["path"] == str(lab.folder / "out") and plan.exchanges == {"x": True}
    shown = str(plan)
    assert "start 1 would be accepted" in shown and "exchange 'x': is created" in shown
    assert "a-in (datagen): 2 new channels, 0 running, 500 rows to read" in shown and "which is created" in shown
    assert json.loads(json.dumps(plan.to_json()))["queries"][0]["sources"][0]["rows"] == 500

    job = linked(lab, counts="300,200,400")
    assert job.run(progress=False).query("a").rows == 900
    with unchanged(lab.folder / "state", lab.folder / "out"):
        plan = linked(lab, counts="300,200,400").plan()
    assert plan.accepted and plan.incarnation == 2 and plan.exchanges == {"x": False}
    assert [query.action for query in plan.queries] == ["finished"] * 3 and not plan.queries[1].creates
    assert plan.queries[0].epoch is not None and plan.queries[0].sources == ()


def test_what_is_left_is_what_the_next_start_reads(lab: JobHarness) -> None:
    """Of channels that have finished, are running, and have not begun."""

    def job() -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="300 ms")
        rows = generated(lab, "in", rows_of="1000,1000,100", readers="2")
        return made.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(lab.folder / "out")))

    stopped(job())
    with unchanged(lab.folder):
        plan = job().plan()
    assert plan.accepted and [query.action for query in plan.queries] == ["continues"]
    (source,) = plan.queries[0].sources
    assert source.new is not None and 0 < source.new + source.running <= 3
    assert source.rows is not None and 0 < source.rows < 2100
    assert job().run(progress=False).rows == source.rows


def test_all_objections_are_listed_and_a_running_job_is_one(lab: JobHarness, spark: SparkSession) -> None:
    def job(path: str, **more: str) -> Job:
        made = sx.Job(spark, "lab", state=lab.folder / "state")
        for name in ("a", "b"):
            rows = lab.source(f"{name}-in", counts="5", live="true", rate=5)
            writer = rows.select("channel", "n").writeStream.format("delta_2pc").option("uid", f"{name}-out")
            made.add(name, writer.options(path=str(lab.folder / f"{name}-{path}"), **more))
        return made

    running = job("out").start()
    try:
        plan = job("out").plan()
        assert [type(one) for one in plan.refusals] == [JobRunningError] and "is running" in str(plan)
        plan = job("moved").plan()
        assert [type(one) for one in plan.refusals] == [JobRunningError, ConfigurationError, ConfigurationError]
        assert [change for query in plan.queries for change in query.changes] and not plan.accepted
        assert [f"query '{name}'" in one.operator for name, one in zip("ab", plan.refusals[1:], strict=True)] == [
            True
        ] * 2
    finally:
        running.stop()
    assert job("out").plan().accepted


def test_a_plan_of_a_job_without_queries_or_of_another_job_is_refused(lab: JobHarness) -> None:
    with pytest.raises(ConfigurationError, match="the job has no query"):
        sx.Job(lab.spark, "lab", state=lab.folder / "state").plan()
    assert lab.run(lab.source(counts="5")).finished
    other = sx.Job(lab.spark, "other", state=lab.folder / "state")
    lab.add(other, lab.source(counts="5"), query="q", out="out")
    (refusal,) = other.plan().refusals
    assert "belongs to job 'lab'" in refusal.what


@pytest.mark.parametrize("sink", ["delta_2pc", "files_2pc"])
def test_the_target_of_another_job_is_an_objection(lab: JobHarness, sink: str) -> None:
    """As when the state directory is mistyped, or is not there, as in CI."""

    def job(state: str) -> Job:
        rows = lab.source(counts="5").select("channel", "n").writeStream.format(sink)
        made = sx.Job(lab.spark, "lab", state=lab.folder / state)
        return made.add("q", rows.options(uid="q-out", path=str(lab.folder / "out")))

    assert job("state").run(progress=False).finished
    with unchanged(lab.folder / "state", lab.folder / "out"):
        plan = job("stat").plan()
    (refusal,) = plan.refusals
    assert "holds epochs that another job wrote under the sink uid 'q-out'" in refusal.what
    assert not (lab.folder / "stat").exists() and "start 1 would be refused" in str(plan)
    assert job("state").plan().accepted


def test_an_interrupted_rescale_is_left_to_the_start(tmp_path: Path) -> None:
    """It is refused by the name of its query, and nothing is completed."""
    for name in ("checkpoint.rescaled-20240506T000000000000", "checkpoint.until-20240506T000000000000"):
        (tmp_path / "queries" / "q" / name).mkdir(parents=True)
    memory = JobMemory.read(Ledger(str(tmp_path)))
    with unchanged(tmp_path), pytest.raises(StateError, match="a rescale of this query was interrupted") as refused:
        refuse_half_rescaled("lab", str(tmp_path), memory, ["p", "q"])
    assert refused.value.operator == "job 'lab', query 'q'"
    refuse_half_rescaled("lab", str(tmp_path), memory, ["p"])
