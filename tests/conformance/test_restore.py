"""Conformance, "Restore": what a restart reads again, and what it refuses. One test per line, named after it."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from spark_ext.errors import ConfigurationError, JobFailedError
from spark_ext.jobs.job import Job
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow, FinishedRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, Finish
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.killable import beside, kill, mixed, running
from tests.support.ledgers import checkpoints, flagged
from tests.support.refusals import delta_numbers
from tests.support.waiting import until


@pytest.mark.core
def test_r1_f15_what_has_finished_is_not_read_again_after_a_kill(lab: JobHarness) -> None:
    """A finished query beside one with a finished source of 10,000 rows and a live one; killed 10 checkpoints later."""
    ledger = lab.ledger
    log = SparkLog(str(lab.checkpoint()))

    def cuts_with_a_finished() -> int:
        cuts = [CheckpointMetadata.from_json(row.metadata) for row in checkpoints(ledger)]
        return sum(cut.queries["a"].finished for cut in cuts)

    with running(mixed, lab.folder) as driver:
        until(lambda: flagged(ledger, "q", "bounded") == 1, "the flag of the bounded source beside the live one")
        until(cuts_with_a_finished, "a checkpoint after the query a has finished")
        then = len(checkpoints(ledger))
        until(lambda: len(checkpoints(ledger)) >= then + 10, "10 checkpoints after both have finished")
        kill(driver)
    committed, planned = log.newest_commit(), log.newest_offsets()
    assert committed is not None and planned is not None
    reads = {uid: [event for event in lab.events("read") if event["uid"] == uid] for uid in ("a", "bounded")}
    rows = {uid: sum(event["end"] - event["start"] for event in events) for uid, events in reads.items()}
    assert rows == {"a": 1000, "bounded": 10_000}
    written = lab.events("commit")
    again = mixed(lab).start()
    until(lambda: (log.newest_commit() or 0) >= committed + 5, "epochs after the restart")
    result = again.drain(timeout=300)
    for uid, events in reads.items():
        assert [event for event in lab.events("read") if event["uid"] == uid] == events
    assert result.query("a").finished_before
    assert result.query("a").rows == 0
    assert lab.numbers("a") == expected(1000)
    replayed = {event["epoch"] for event in lab.events("commit")[len(written) :] if event["epoch"] <= planned}
    assert replayed <= {committed + 1}, "at most the one epoch that was planned and not committed"
    live = len(lab.numbers()) - 10_000
    assert live > 0
    assert sorted(n for _, n in lab.numbers()) == sorted([*range(10_000), *range(live)])


@pytest.mark.core
def test_r2_a_source_finished_after_the_last_commit_is_reread(lab: JobHarness) -> None:
    """It finished in an epoch that the sink has committed and Spark has not: read again, once in the output."""
    source: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 60}
    first = lab.job(lab.source(**source), sink_lost_epoch=1, restart_attempts=0)
    with pytest.raises(JobFailedError, match="between the sink's commit and Spark's"):
        first.run(progress=False)
    assert lab.numbers() == expected(100)
    assert SparkLog(str(lab.checkpoint())).newest_commit() == 0
    assert lab.ledger.table(FinishedRow).rows() == []
    done = len(lab.events("read"))
    assert lab.job(lab.source(**source)).run(progress=False).finished
    assert [(event["start"], event["end"]) for event in lab.events("read")[done:]] == [(60, 100)]
    assert lab.events("commit")[-1]["repeat"]
    assert lab.numbers() == expected(100)


@pytest.mark.core
def test_r3_a_finished_operator_is_not_opened_ended_or_closed(lab: JobHarness) -> None:
    assert lab.job(lab.source(counts="10")).run(progress=False).finished
    before = lab.events("open", "end_of_input", "close", "claim", "final_checkpoint")
    assert [event["event"] for event in before].count("open") == 2
    assert lab.job(lab.source(counts="10")).run(progress=False).finished
    assert lab.events("open", "end_of_input", "close", "claim", "final_checkpoint") == before


@pytest.mark.core
@pytest.mark.slow(20, "four runs and two restores")
def test_r3_a_restore_opens_a_source_that_had_not_ended(lab: JobHarness) -> None:
    """Restored behind its end it stays closed; restored to before it reads on, and comes to its end again."""
    before, after = lab.folder / "before", lab.folder / "after"

    def closed() -> bool:
        memory = JobMemory.read(lab.ledger)
        return ("closed", "bounded") in memory.of("q").flags

    def bounded() -> list[str]:
        return [one["event"] for one in lab.events() if one["uid"] == "bounded"]

    def run_on(savepoint: Path | None = None) -> None:
        job = beside(lab).start()
        until(lambda: job.snapshot().query("q").epochs > 2 or job.done, "some epochs")
        job.stop(savepoint=savepoint)

    run_on(before)
    (lab.folder / "gate").touch()
    first = beside(lab).start()
    until(lambda: closed() or first.done, "the end of the bounded source")
    first.stop(savepoint=after)
    events = bounded()
    beside(lab).restore(after)
    assert closed()
    run_on()
    assert bounded() == events
    beside(lab).restore(before)
    assert not closed()
    again = beside(lab).start()
    until(lambda: closed() or again.done, "its end, again")
    assert again.drain(timeout=300).finished
    assert [name for name in bounded()[len(events) :] if name in ("open", "end_of_input", "close")] == [
        "open", "end_of_input", "close"
    ]  # fmt: skip
    found = delta_numbers(lab.folder / "out")
    assert [row for row in found if row[0] != "live"] == expected(900, 600)
    assert [n for channel, n in found if channel == "live"] == list(range(len(found) - 1500))


@pytest.mark.core_for("[5]")
@pytest.mark.parametrize("readers", [5, 1, 2])
def test_r6_remaining_channels_fit_any_number_of_readers(lab: JobHarness, readers: int) -> None:
    counts = "20,20,400,400"
    gate = lab.folder / "gate"
    first = lab.job(lab.source(counts=counts, readers=4, max_rows_per_epoch=80, gate=gate)).start()
    until(lambda: flagged(lab.ledger, "q", "in") == 2, "two channels to finish")
    first.stop()
    done = len(lab.events("read"))
    gate.touch()
    second = lab.job(lab.source(counts=counts, readers=readers, max_rows_per_epoch=80, gate=gate))
    assert second.run(progress=False).finished
    assert {event["channel"] for event in lab.events("read")[done:]} == {"2", "3"}
    assert lab.numbers() == expected(20, 20, 400, 400)


@pytest.mark.core
def test_r7_finished_flags_survive_without_channel_state(lab: JobHarness) -> None:
    """Once the ledger has a flag the offset holds nothing of the channel, and it is still not read again."""
    counts = "10,10,400"
    gate = lab.folder / "gate"
    first = lab.job(lab.source(counts=counts, readers=3, max_rows_per_epoch=30, gate=gate)).start()
    until(lambda: flagged(lab.ledger, "q", "in") == 2, "two channels to finish")
    gate.touch()
    log = SparkLog(str(lab.checkpoint()))
    newest = lambda: log.offsets(-1 if (commit := log.newest_commit()) is None else commit)  # noqa: E731
    until(lambda: (logged := newest()) and logged.sources[0].get("confirmed", 0) >= 2, "an offset that relies on it")
    first.stop()
    logged = newest()
    assert logged is not None
    assert "finished" not in logged.sources[0]
    done = len(lab.events("read"))
    assert lab.job(lab.source(counts=counts, readers=3, max_rows_per_epoch=30, gate=gate)).run(progress=False).finished
    assert {event["channel"] for event in lab.events("read")[done:]} <= {"2"}
    assert lab.numbers() == expected(10, 10, 400)


@pytest.mark.core
def test_r11_a_channel_finished_early_is_restored_as_finished(lab: JobHarness) -> None:
    gate = lab.folder / "gate"
    source: dict[str, Any] = {"counts": "5,400", "readers": 2, "max_rows_per_epoch": 20, "gate": gate}
    first = lab.job(lab.source(**source), checkpoint_interval="1 hour").start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    first.stop()
    assert lab.ledger.table(CheckpointRow).rows() == []
    done = len(lab.events("read"))
    gate.touch()
    assert lab.job(lab.source(**source)).run(progress=False).finished
    assert "0" not in {event["channel"] for event in lab.events("read")[done:]}
    assert lab.numbers() == expected(5, 400)


@pytest.mark.core
def test_r12_two_sources_swapped_between_runs_are_refused(lab: JobHarness) -> None:
    """Spark matches sources by position, so without the uid in the offset each would continue where the other stood."""
    gate = lab.folder / "gate"

    def streams() -> list[DataFrame]:
        return [lab.source(uid, counts="100", max_rows_per_epoch=20, gate=gate) for uid in ("left", "right")]

    left, right = streams()
    first = lab.job(left.union(right)).start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    first.stop()
    before = lab.numbers()
    left, right = streams()
    with pytest.raises(ConfigurationError, match="in the order left, right, and are in the order right, left"):
        lab.job(right.union(left)).start()
    assert lab.numbers() == before


@pytest.mark.core
def test_r12_one_uid_twice_in_a_plan_is_refused(lab: JobHarness) -> None:
    stream = lab.source("twice", counts="10")
    with pytest.raises(ConfigurationError, match="uid 'twice' stands for 2 operators"):
        lab.job(stream.union(stream))
    job = lab.job(lab.source("once", counts="10"))
    with pytest.raises(ConfigurationError, match="uid 'once' stands for 2 operators"):
        lab.add(job, lab.source("once", counts="10"), query="other", out="other")


@pytest.mark.core
def test_p8_fully_partly_and_on_restore_are_three_things(lab: JobHarness) -> None:
    """As a checkpoint records them, for the sources of a job of three queries over two runs."""
    gate = lab.folder / "gate"

    def job() -> Job:
        made = lab.job(lab.source("a", counts="10"), query="a", out="a", checkpoint_interval="100 ms")
        lab.add(made, lab.source("b", counts="10,400", readers=2, max_rows_per_epoch=30, gate=gate), query="b", out="b")
        return made

    def finishes() -> dict[str, Finish]:
        rows = checkpoints(lab.ledger)
        if not rows:
            return {}
        metadata = CheckpointMetadata.from_json(rows[-1].metadata)
        return {uid: part.finish for query in metadata.queries.values() for uid, part in query.sources.items()}

    first = job().start()
    until(lambda: finishes() == {"a": Finish.FULLY, "b": Finish.PARTLY}, "fully and partly")
    first.stop()
    second = job().start()
    gate.touch()
    until(lambda: finishes().get("a") is Finish.ON_RESTORE or second.done, "on restore")
    assert second.await_termination(300).finished
    assert finishes()["a"] is Finish.ON_RESTORE
