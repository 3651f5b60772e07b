"""A rescale after a failure: the epoch that was interrupted is completed first, and nothing else is read."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.exchange.kinds import parts
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.ledger import incarnation
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.spark.logs.epoch_files import state_partitions
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_partitions import repartition
from tests.support import validators
from tests.support.jobs import JobHarness, expected, numbers, partitions, stopped
from tests.support.refusals import broken, delta_numbers
from tests.support.versions import needs_rescale
from tests.support.waiting import until

pytestmark = needs_rescale


def distinct(lab: JobHarness, **options: Any) -> DataFrame:
    # Spark takes a row of 1970 for late: its watermark begins there.
    rows = lab.source(counts="40,40", max_rows_per_epoch=30, **options).withColumn(
        "ts", F.expr("ts + interval 1 second")
    )
    return sx.with_watermark(rows, "ts", "1 minute").dropDuplicates(["channel", "n", "ts"])


def job(lab: JobHarness, live: str = "false", gate: Path | None = None, **settings: Any) -> Job:
    options = {} if gate is None else {"gate": gate}
    return lab.job(distinct(lab, live=live, **options), **settings)


def test_an_epoch_in_doubt_is_completed_before_a_rescale(lab: JobHarness) -> None:
    """The sink has committed it, and Spark has not. Its rows are not written again under another number."""
    with pytest.raises(JobFailedError, match="between the sink's commit and Spark's"):
        job(lab, sink_lost_epoch=1, restart_attempts=0).run(progress=False)
    log = SparkLog(str(lab.checkpoint()))
    assert (log.newest_commit(), log.newest_offsets()) == (0, 1)
    written = lab.numbers()
    changed = job(lab)
    changed.rescale("q", 3)
    assert lab.numbers() == written, "the epoch is known, and no other one has run"
    # Spark has added an epoch without rows, with the new partitions.
    assert log.newest_commit() == log.newest_offsets()
    assert partitions(lab.checkpoint()) == 3
    assert changed.run(progress=False).finished
    assert lab.numbers() == expected(40, 40)
    repeated = [event for event in lab.events("commit") if event["repeat"]]
    assert [event["epoch"] for event in repeated] == [1]


@pytest.mark.without_validators(
    validators.end_of_input_once_and_last, validators.hooks_in_order, reason="after a reset all of it comes again"
)
def test_a_copy_that_was_not_put_in_its_place_never_is(lab: JobHarness) -> None:
    """The job runs on with the checkpoint that it has, to its end. After a reset all rows are read again."""
    gate = lab.folder / "gate"
    stopped(job(lab, gate=gate))
    broken(FailPoint.RESCALE_BEFORE_MOVING_ASIDE, lambda: job(lab, gate=gate).rescale("q", 3))
    gate.touch()
    assert job(lab, gate=gate).run(progress=False).finished
    assert lab.numbers() == expected(40, 40)
    shutil.rmtree(lab.folder / "out")
    job(lab, gate=gate).reset("q")
    assert job(lab, gate=gate).run(progress=False).rows == 80
    assert lab.numbers() == expected(40, 40)


def test_a_query_renamed_after_an_interrupted_rescale_continues(lab: JobHarness) -> None:
    """Its checkpoint was moved aside under the old name, where no query looks any more."""
    gate = lab.folder / "gate"
    stopped(job(lab, gate=gate))
    broken(FailPoint.RESCALE_MOVED_ASIDE, lambda: job(lab, gate=gate).rescale("q", 3))
    assert not lab.checkpoint().exists()
    gate.touch()
    renamed = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    writer = distinct(lab, gate=gate).writeStream.format("folder").option("uid", "q-out").option("log", lab.log)
    renamed.add("r", writer.option("path", str(lab.folder / "out")), renamed_from="q")
    assert renamed.run(progress=False).finished
    assert lab.numbers() == expected(40, 40)
    assert partitions(lab.checkpoint("r")) == 3


@pytest.mark.without_validators(validators.no_state_left, reason="duplicates are remembered without an end")
@pytest.mark.parametrize("linked", [False, True], ids=["table", "exchange"])
def test_an_older_driver_commits_nothing_once_the_copy_is_made(
    lab: JobHarness, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """It runs on another host, and reads on while the copy is repartitioned."""
    gate, out = lab.folder / "gate", lab.folder / "table"

    def linked_job() -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        # Without a watermark: Spark adds no epochs without rows.
        rows = numbers(lab.spark, "in", counts="60,60", max_rows_per_epoch=20, gate=gate)
        rows = rows.dropDuplicates(["channel", "n"]).select("channel", "n")
        if linked:
            exchange = made.exchange("x", partitions=2)
            made.add("q", exchange.write(rows))
            rows = exchange.read("x-in")
        table = rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(out))
        return made.add("r" if linked else "q", table)

    older = linked_job().start()
    until(lambda: older.snapshot().query("q").rows > 0, "an epoch with rows")

    def while_the_copy_is_made(*given: Any) -> int:
        gate.touch()
        until(lambda: older.done, "the older driver has found out that it is one")
        return repartition(*given)

    monkeypatch.setattr(incarnation, "_refuse_running", lambda *_: None)  # of other hosts nothing is known
    monkeypatch.setattr("spark_ext.jobs.restoring.rescale.repartition", while_the_copy_is_made)
    linked_job().rescale("q", 3)
    if linked:
        held = parts("arrow", str(lab.folder / "state" / "exchanges" / "x"), "x").master.log.look().mark
        assert held.incarnation == 2, "what the older driver may be writing is refused"
    with pytest.raises(JobFailedError, match="of the job has been started"):
        older.await_termination(10)
    assert linked_job().run(progress=False).finished
    assert delta_numbers(out) == expected(60, 60)


def test_what_is_copied_is_read_after_the_claim(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that an older driver has planned just before may be in the target: Spark repeats it."""
    gate = lab.folder / "gate"
    stopped(job(lab, gate=gate))
    log = SparkLog(str(lab.checkpoint()))
    newest = log.newest_commit()
    claim = OperatorHooks.claim

    def planned_meanwhile(hooks: OperatorHooks) -> None:
        shutil.copy(lab.checkpoint() / "offsets" / str(newest), lab.checkpoint() / "offsets" / str((newest or 0) + 1))
        claim(hooks)

    monkeypatch.setattr(OperatorHooks, "claim", planned_meanwhile)
    with pytest.raises(StateError, match=f"epoch {(newest or 0) + 1} is planned and not committed"):
        job(lab, gate=gate).rescale("q", 3)
    assert log.newest_commit() == newest and state_partitions(str(lab.checkpoint()), newest or 0) == 2
    # Nothing says where a query writes that is not in the job, and no start would complete this epoch of it.
    without = lab.job(lab.source("other-in", counts="5"), query="other", out="other").remove("q")
    with pytest.raises(StateError, match="the query is not in the job"):
        without.rescale("q", 3)


def test_a_query_that_was_built_late_is_no_obstacle(lab: JobHarness) -> None:
    """It has begun, and whether the job still has it is known once it is built."""

    def late() -> Any:
        writer = lab.source("late-in", counts="5,1", live="true").writeStream.format("folder")
        return writer.option("uid", "late-out").option("path", str(lab.folder / "late"))

    def gated() -> Job:
        made = job(lab, live="true")
        lab.add(made, lab.source("first-in", counts="5"), query="first", out="first")
        return made.add("late", late, after="first")

    made = gated().start()
    try:
        until(lambda: len(made.snapshot().queries) == 3 and made.snapshot().query("late").rows > 0, "it has begun")
    finally:
        made.stop()
    gated().rescale("q", 3)
    assert partitions(lab.checkpoint()) == 3


def test_what_no_start_accepts_is_not_rescaled_either(lab: JobHarness) -> None:
    with pytest.raises(JobFailedError):
        job(lab, sink_lost_epoch=1, restart_attempts=0).run(progress=False)
    with pytest.raises(ConfigurationError, match="'other' was not in this query before"):
        lab.job(lab.source("other", counts="40")).rescale("q", 3)
    assert state_partitions(str(lab.checkpoint()), 1) == 2
    assert SparkLog(str(lab.checkpoint())).newest_commit() == 0
