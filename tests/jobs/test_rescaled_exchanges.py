"""Exchanges with other partitions and another key: what is in flight is redistributed, in place and on a restore."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.exchange.consumers import front_of
from spark_ext.exchange.kinds import parts
from spark_ext.exchange.positions import as_read_by, rows_after
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import broken
from tests.support.waiting import until

COUNTS = (200, 200, 200)


def job(lab: JobHarness, partitions: int, *key: str, most: int | None = 30, lost: int = -1, kind: str = "arrow") -> Job:
    """Two consumers of different speed; entries are larger than their epochs."""
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state", restart_attempts=0)
    exchange = made.exchange("x", partitions=partitions, key=key, kind=kind)
    rows = lab.source(counts=",".join(map(str, COUNTS)), max_rows_per_epoch=150)
    made.add("p", exchange.write(rows.withColumn("parity", F.col("n") % 2)))
    for name, speed in (("a", 1), ("b", 2)):
        limits = {} if most is None else {"max_rows_per_epoch": most * speed}
        lab.add(made, exchange.read(f"{name}-in", **limits), query=name, out=name, sink_lost_epoch=lost)
    return made


def run_for_a_while(lab: JobHarness, made: Job) -> None:
    """Until both consumers have read some rows, and neither has read all."""
    made.start()
    before = {name: made.snapshot().query(name).rows for name in "ab"}
    until(lambda: all(made.snapshot().query(name).rows > before[name] for name in "ab"), "both have read")
    made.stop()
    assert all(len(lab.numbers(name)) < sum(COUNTS) for name in "ab")


def check(lab: JobHarness) -> None:
    """Each consumer has each row once; rows of a channel and parity are in order."""
    for name in "ab":
        rows = lab.rows(name)
        assert sorted((row["channel"], row["n"]) for row in rows) == expected(*COUNTS)
        for key in {(row["channel"], row["parity"]) for row in rows}:
            numbers = [row["n"] for row in rows if (row["channel"], row["parity"]) == key]
            assert numbers == sorted(numbers), (name, key)


def shape(state: Path) -> tuple[int, tuple[str, ...]]:
    about = parts("arrow", str(state / "exchanges" / "x"), "test").master.describe()
    assert about is not None
    return about.partitions, about.key


def in_flight(lab: JobHarness) -> dict[str, int]:
    """Rows that each consumer has still to read."""
    master = parts("arrow", str(lab.folder / "state" / "exchanges" / "x"), "test").master
    about, found = master.describe(), {}
    assert about is not None
    for name in "ab":
        log, uid = SparkLog(str(lab.checkpoint(name))), f"{name}-in"
        logged = log.offsets(log.commits()[-1])
        assert logged is not None
        front = front_of(logged, uid, about.partitions)
        assert front is not None
        found[name] = sum(rows_after(as_read_by(master.log.entry, uid), master.log.look(), front))
    return found


@pytest.mark.core
@pytest.mark.slow(20, "rescales a job three times, once after a crash, and restores another one")
def test_x10_in_place_from_4_to_8_to_3_with_another_key_and_as_another_job(lab: JobHarness) -> None:
    state = lab.folder / "state"
    four = job(lab, 4, "channel")
    run_for_a_while(lab, four)
    with pytest.raises(ConfigurationError, match="partitions of the exchange is 4, but the job now specifies 8"):
        job(lab, 8, "channel").run(progress=False)
    four.rescale("exchange:x", 8)
    assert shape(state) == (8, ("channel",))
    left, read = in_flight(lab), {name: len(lab.numbers(name)) for name in "ab"}
    assert min(left.values()) > 0 and left["a"] + read["a"] == left["b"] + read["b"]
    assert not (state / "rescaling").exists()
    eight = job(lab, 8, "channel")
    run_for_a_while(lab, eight)
    eight.savepoint(lab.folder / "savepoint")
    written = {name: lab.numbers(name) for name in "ab"}
    broken(FailPoint.RESTORE_EXCHANGES, lambda: eight.rescale("exchange:x", 3, key=["channel", "parity"]))
    with pytest.raises(StateError, match="has begun and is not complete"):
        job(lab, 3, "channel", "parity").run(progress=False)
    job(lab, 8, "channel").rescale("exchange:x", 3, key=["channel", "parity"])
    three = job(lab, 3, "channel", "parity", most=None)
    three.rescale("exchange:x", 3)  # which changes nothing any more
    assert shape(state) == (3, ("channel", "parity"))
    assert three.run(progress=False).finished
    check(lab)
    # From the savepoint, as another job whose sinks write elsewhere, and without a key.
    (lab.folder / "other").mkdir()
    other = JobHarness(lab.spark, lab.folder / "other")
    job(other, 5).restore(lab.folder / "savepoint")
    assert shape(other.folder / "state") == (5, ())
    assert job(other, 5, most=None).run(progress=False).finished
    for name in "ab":
        rest = other.numbers(name)
        assert rest and len(rest) == len(set(rest)), "each once"
        # What the savepoint's job had written of an epoch in doubt is written by this job as well, which has it anew.
        assert {*rest, *written[name]} == set(expected(*COUNTS)) and len(rest) < sum(COUNTS)
    events = [row for row in lab.ledger.jobs() if row.event == "rescaled"]
    assert [row.reason for row in events] == [
        "exchange 'x': 8 partitions, key channel", "exchange 'x': 3 partitions, key channel, parity"
    ]  # fmt: skip


@pytest.mark.slow(10, "rescales a job and resets it twice")
def test_a_consumer_that_begins_again_does_not_pass_over_rows(lab: JobHarness) -> None:
    """Of an exchange whose first entry it had read in part: the rows are there, marked as read by it."""
    run_for_a_while(lab, job(lab, 2, "channel", most=20, kind="delta"))
    changed = job(lab, 2, "channel", most=20, kind="delta")
    changed.rescale("exchange:x", 3)
    changed.reset("a")
    with pytest.raises(StateError, match=r"source 'a-in' begins again, and had read .* rows of exchange 'x'"):
        job(lab, 3, "channel", kind="delta").run(progress=False)
    shutil.rmtree(lab.folder / "a")
    shutil.rmtree(lab.folder / "b")
    again = job(lab, 3, "channel", most=None, kind="delta")
    again.reset("p", cascade=True)
    assert again.run(progress=False).finished, "as the advice says"
    check(lab)


@pytest.mark.slow(10, "completes epochs before a rescale")
def test_what_cannot_be_rescaled_is_refused(lab: JobHarness) -> None:
    """An epoch in doubt, of a sink that gives nothing back, is completed first where the job can be started."""
    failed = job(lab, 4, "channel", lost=2)
    with pytest.raises(JobFailedError, match="between the sink's commit and Spark's"):
        failed.run(progress=False)
    about = lab.folder / "state" / "exchanges" / "x" / "exchange.json"
    before = about.read_bytes()
    with pytest.raises(ConfigurationError, match="it has: 'exchange:x'"):
        failed.rescale("exchange:y", 8)
    with pytest.raises(ConfigurationError, match="cannot have 0 partitions"):
        failed.rescale("exchange:x", 0)
    with pytest.raises(ConfigurationError, match="a key was given for the state of a query"):
        failed.rescale("a", 2, key="channel")
    with pytest.raises(StateError, match="is planned and not committed"):
        job(lab, 8, "channel").rescale("exchange:x", 8)
    with pytest.raises(ConfigurationError, match="new key has the column 'm', which the rows in flight do not have"):
        job(lab, 4, "channel").rescale("exchange:x", 4, key="m")
    assert about.read_bytes() == before
    job(lab, 4, "channel").rescale("exchange:x", 8)  # as the advice says
    assert job(lab, 8, "channel", most=None).run(progress=False).finished
    check(lab)
