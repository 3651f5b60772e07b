"""Conformance: what is restored from a chosen checkpoint, and what becomes of rows in flight."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.checkpoints.savepoint import MANIFEST, read_savepoint, seal
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.jobs.job import Job
from spark_ext.ledger.schema import CheckpointRow, FinishedRow
from spark_ext.model.checkpoint_metadata import VERSION, CheckpointMetadata
from spark_ext.model.lifecycle import State
from spark_ext.spark.logs.epoch_files import state_partitions
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support import validators
from tests.support.jobs import JobHarness, expected, numbers
from tests.support.killable import kill, recovered, running
from tests.support.ledgers import flagged
from tests.support.refusals import delta_job, delta_numbers, first_epoch, refused
from tests.support.saved import Chain, first_rows, held, watermarked
from tests.support.waiting import until


@pytest.mark.core
def test_r4_r5_a_finished_query_needs_its_place_and_its_past(chain: Chain) -> None:
    """R5: one that has finished and is not in the job, R4: one that had not, upstream of one that had."""
    ended = chain.folder / "ended"
    chain.job().savepoint(ended)
    before = chain.content()

    def job(**removed: bool) -> tuple[Job, Any]:
        made = chain.empty("other")
        return made, made.exchange("x", partitions=4, key="k", schema=chain.source().schema)

    missing, x = job()
    missing.add("rows", x.write(chain.source()))
    with refused(StateError, "query 'unique' is in the savepoint, where it had finished", "job.remove('unique')"):
        missing.restore(ended)
    allowed, x = job()
    allowed.add("rows", x.write(chain.source())).remove("unique")
    assert allowed.restore(ended).run(progress=False).rows == 0
    shutil.rmtree(chain.folder / "other")
    upstream, x = job()
    y = upstream.exchange("y", schema=chain.source().schema)
    upstream.add("rows", x.write(chain.source()))
    upstream.add("more", y.write(chain.source("more")))
    upstream.add("unique", chain.table(chain.unique(x.read("x-in").unionByName(y.read("y-in"))), out="other-out"))
    with refused(StateError, "query 'unique' had finished", "query 'more' upstream of it had not"):
        upstream.restore(ended)
    assert chain.content() == before
    result = chain.job("other", "other-out").restore(ended).run(progress=False)
    assert result.finished and result.rows == 0 and chain.written("other-out") == [], "it is terminal"


def another(lab: JobHarness) -> JobHarness:
    folder = lab.folder / "another"
    folder.mkdir()
    return JobHarness(lab.spark, folder)


def until_idle(lab: JobHarness, query: str) -> None:
    """Wait until Spark finds nothing to do: a stop then leaves no epoch that is planned and not committed."""
    log = SparkLog(str(lab.checkpoint(query)))

    def idle() -> bool:
        busy = any(one.status["isDataAvailable"] for one in lab.spark.streams.active)
        return not busy and log.newest_commit() == log.newest_offsets() is not None

    until(idle, f"query '{query}' to have nothing to do")


GOLDEN = Path(__file__).parents[1] / "golden"


def as_version(version: int, newest: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a checkpoint as a release wrote them that knew this version."""
    found: dict[str, Any] = json.loads(json.dumps(newest))
    if version == VERSION:
        return found
    found["version"] = version
    del found["exchanges"]
    for query in found["queries"].values():
        for offset in (*(source["offset"] for source in query["sources"].values()), *query["ends"].values()):
            if offset is not None:
                offset["version"] = 1
        for sink in query["sinks"].values():
            del sink["position"]
    return found


@pytest.mark.core
@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_r8_a_checkpoint_of_the_former_version_restores(lab: JobHarness, version: int) -> None:
    """A savepoint whose metadata have the form of the golden files."""

    def golden(number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((GOLDEN / f"checkpoint-v{number}.json").read_text())
        return found

    if version < VERSION:  # the newest one also has an exchange and a position
        assert as_version(version, golden(VERSION)) == golden(version)

    def job(out: str = "out", **given: Any) -> Job:
        rows = numbers(lab.spark, "in", counts="40,25", max_rows_per_epoch=20, gate=lab.folder / "gate")
        return delta_job(lab, rows, out, **given)

    first = job().start()
    first_epoch(lab)
    place = lab.folder / "savepoint"
    first.stop(savepoint=place)
    saved, file = read_savepoint(str(place)), place / "checkpoint.json"
    file.write_text(json.dumps(as_version(version, json.loads(file.read_text()))))
    (place / "manifest.json").unlink()
    seal(str(place), saved.about, sorted(saved.files))
    (lab.folder / "state").rename(lab.folder / "former")
    (lab.folder / "gate").touch()
    assert job("other").restore(place).run(progress=False).finished
    assert sorted([*delta_numbers(lab.folder / "out"), *delta_numbers(lab.folder / "other")]) == expected(40, 25)


@pytest.mark.core
@pytest.mark.without_validators(
    validators.end_of_input_once_and_last, validators.hooks_in_order, reason="a sink that ended receives rows again"
)
def test_r10_a_sink_without_rollback_needs_duplicates_accepted(lab: JobHarness) -> None:
    def job() -> Job:
        return lab.job(numbers(lab.spark, "in", counts="40,25", max_rows_per_epoch=20, gate=lab.folder / "gate"))

    place = lab.folder / "savepoint"
    first = job().start()
    first_epoch(lab)
    first.stop(savepoint=place)
    job().restore(place)
    job().restore(place)  # repeated, nothing was written either
    (lab.folder / "gate").touch()
    assert job().run(progress=False).finished, "as nothing was written since, nothing has to be taken away"
    assert lab.numbers() == expected(40, 25)
    with refused(ConfigurationError, "sink 'q-out' (folder)", "cannot be removed", "accept_duplicates=('q-out',)"):
        job().restore(place)
    assert job().run(progress=False).rows == 0, "nothing was changed"
    job().restore(place, accept_duplicates="q-out")
    assert job().run(progress=False).finished
    written = Counter(lab.numbers())
    assert sorted(written) == expected(40, 25)
    assert sum(written.values()) == 65 + 45, "what came after the savepoint, twice"


@pytest.mark.core
def test_r13_a_state_that_is_not_in_rocksdb_format_2_is_refused(lab: JobHarness) -> None:
    """By a savepoint and by a rescale; the job continues. For a restore, see the histories in `tests/jobs`."""
    lab.spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    rows = lab.source(counts="40,40", max_rows_per_epoch=20, gate=lab.folder / "gate")

    def job() -> Job:
        return lab.job(first_rows(rows, "channel", "n"))

    first = job().start()
    until(lambda: first.snapshot().query("q").rows == 20, "the first epoch")
    with refused(StateError, "query 'q'", "other than RocksDB with checkpoint format 2: format 1"):
        first.savepoint(lab.folder / "savepoint")
    assert not (lab.folder / "savepoint" / MANIFEST).exists()
    assert first.state is State.RUNNING
    until_idle(lab, "q")
    first.stop()
    with refused(StateError, "query 'q'", "other than RocksDB with checkpoint format 2: format 1"):
        job().savepoint(lab.folder / "savepoint")
    if lab.rescales:
        with refused(StateError, "query 'q'", "other than RocksDB with checkpoint format 2: format 1"):
            job().rescale("q", 3)
    (lab.folder / "gate").touch()
    assert job().run(progress=False).finished
    assert lab.numbers() == expected(40, 40)


@pytest.mark.core
def test_r14_a_retained_checkpoint_outlives_sparks_own_epochs(lab: JobHarness) -> None:
    lab.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    epochs, count = 12, 110

    def job(limit: int) -> Job:
        rows = numbers(lab.spark, "in", counts=f"{count},{count}", max_rows_per_epoch=limit)
        unique = first_rows(rows.withColumn("n", F.col("n") % (count // 2)), "channel", "n")
        return delta_job(lab, unique, retained_checkpoints=1, checkpoint_interval="1 hour")

    first = job(10).start()
    until(lambda: first.snapshot().query("q").rows > 0, "the first epoch")
    number = first.checkpoint(300)
    (taken,) = lab.ledger.table(CheckpointRow).rows([("checkpoint_id", "=", number), ("status", "=", "COMPLETED")])
    epoch = CheckpointMetadata.from_json(taken.metadata).queries["q"].epoch
    assert epoch is not None
    log = SparkLog(str(lab.checkpoint()))
    until(lambda: (log.newest_commit() or 0) >= epoch + epochs, f"{epochs} epochs")
    first.stop()
    assert log.offsets(epoch) is None, "Spark has deleted it"
    job(10).restore(number)
    assert log.newest_commit() == epoch
    assert job(100_000).run(progress=False).finished
    assert delta_numbers(lab.folder / "out") == expected(count // 2, count // 2)


@pytest.mark.core
def test_f5_a_stop_with_a_savepoint_during_the_final_checkpoint(lab: JobHarness) -> None:
    def job(place: JobHarness, needed: int) -> Job:
        return place.job(numbers(lab.spark, "in", counts="100"), sink="patient_folder", sink_finalize_after=needed)

    waits = job(lab, 10_000).start()
    until(lambda: waits.state is State.FINISHING, "the final checkpoint")
    result = waits.stop(savepoint=lab.folder / "savepoint")
    assert result.state is State.CANCELED and not result.finished
    assert not read_savepoint(str(lab.folder / "savepoint")).metadata.queries["q"].finished
    other = another(lab)
    assert job(other, 2).restore(lab.folder / "savepoint").run(progress=False).finished
    assert lab.numbers() == expected(100)
    assert other.numbers() == [], "it had read everything"


@pytest.mark.core
@pytest.mark.slow(25, "runs four linked queries three times")
def test_u2_a_chain_a_union_and_a_join_after_scaling_up_and_down(lab: JobHarness) -> None:
    """Readers of exchanges and partitions of state; the same after a restart alone. Rows of a key keep their order."""

    def job(readers: int, upto: int) -> Job:
        made = sx.Job(lab.spark, "shapes", state=lab.folder / "state")
        x, y = (made.exchange(name, partitions=4, key="channel", keep="1 hour") for name in "xy")
        gate = {"gate": lab.folder / "gate", "gate_at": f"{upto},{upto}"}
        made.add("rows", x.write(numbers(lab.spark, "in", counts="60,60", max_rows_per_epoch=40, **gate)))
        made.add("chain", y.write(x.read("chain-x", readers=readers)))
        ways = [to.read(f"union-{to.name}", readers=readers).withColumn("way", F.lit(to.name)) for to in (x, y)]
        lab.add(made, ways[0].union(ways[1]), query="union", out="union")
        one, two = (watermarked(to.read(f"join-{to.name}", readers=readers)) for to in (x, y))
        lab.add(made, one.join(two, ["channel", "n", "ts"]), query="join", out="join")
        return made

    def come(upto: int) -> bool:
        return (len(lab.numbers("union")), len(lab.numbers("join"))) == (4 * upto, 2 * upto)

    checkpoint, rescales = lab.checkpoint("join"), lab.rescales
    for readers, partitions, upto in ((2, 2, 20), (5, 3, 40)):
        part = job(readers, upto)
        if upto > 20 and rescales:
            part.rescale("join", partitions)
        elif upto > 20:
            with refused(StateError, "cannot change the number of partitions of state"):
                part.rescale("join", partitions)
        part.start()
        until(lambda upto=upto: come(upto), f"{upto} rows of each channel")  # type: ignore[misc]
        until_idle(lab, "join")
        part.stop()
    last = job(1, 60)
    if rescales:
        last.rescale("join", 1)
    assert last.run(progress=False).finished
    if rescales:
        assert state_partitions(str(checkpoint), SparkLog(str(checkpoint)).newest_commit() or 0) == 1
    assert lab.numbers("join") == expected(60, 60)
    assert lab.numbers("union") == sorted(expected(60, 60) * 2)
    for channel in "01":
        for way in ("x", "y"):
            rows = [row for row in lab.rows("union") if (row["channel"], row["way"]) == (channel, way)]
            assert [row["n"] for row in rows] == list(range(60)), "directly, and through the chain"


@pytest.mark.slow(30, "kills a driver of its own")
def test_u5_recovered_rows_come_first_and_a_rescale_reads_on(lab: JobHarness) -> None:
    """A driver is killed when b has read 2,000 of the 5,000 rows of a, and q 3,000 of 4,000.

    a has finished, and is not started. b reads 3,000, in order; a savepoint meanwhile holds what is in flight by
    reference. q, with 2 of 4 channels of 1,000 read and half of the others, reads 1,000 with 5 readers, after its state
    was given 5 partitions instead of 4.
    """
    log = SparkLog(str(lab.checkpoint()))
    ledger = lab.ledger
    with running(recovered, lab.folder) as driver:
        until(lambda: len(lab.numbers("b")) == 2000 and len(lab.numbers()) == 3000, "the rows before the kill")
        until(lambda: flagged(ledger, "q", "in") == 2, "the flags of two channels")
        until(lambda: any(row.kind == "query" for row in ledger.table(FinishedRow).rows()), "the end of a")
        until(lambda: log.newest_commit() == log.newest_offsets(), "an epoch of q that is committed")
        last = max(event["epoch"] for event in lab.events("commit") if event["uid"] == "b-out")
        until(lambda: SparkLog(str(lab.checkpoint("b"))).newest_commit() == last, "the last one of b, by Spark as well")
        kill(driver)
    done = len(lab.events("read"))

    again = recovered(lab, readers=5)
    partitions = 5 if lab.rescales else 4
    if partitions == 5:
        again.rescale("q", partitions)
    again.start()  # over Spark Connect it stops what the killed driver has left in the server
    (lab.folder / "gate").touch()
    (lab.folder / "at-2000").touch()
    until(lambda: again.snapshot().query("b").rows >= 1500, "1,500 more rows of b")
    number = again.savepoint(lab.folder / "savepoint")
    (row,) = ledger.table(CheckpointRow).rows([("checkpoint_id", "=", number)])
    assert (row.status, row.rows_in_flight) == ("COMPLETED", 1500)
    pinned = [file for file in (lab.folder / "savepoint" / "exchanges" / "x").rglob("*.arrow") if file.is_file()]
    data = {file.stat().st_ino for file in (lab.folder / "state" / "exchanges" / "x").rglob("*.arrow")}
    assert pinned and {file.stat().st_ino for file in pinned} <= data, "none is written again"
    (lab.folder / "at-3500").touch()
    assert again.await_termination(300).finished

    assert lab.numbers() == expected(1000, 1000, 1000, 1000)
    assert [row["n"] for row in lab.rows("b")] == list(range(5000))
    reads = lab.events("read")[done:]
    assert {event["uid"] for event in reads} == {"in"}
    assert sum(event["end"] - event["start"] for event in reads) == 1000
    assert state_partitions(str(lab.checkpoint()), log.newest_commit() or 0) == partitions


@pytest.mark.core
@pytest.mark.slow(20, "runs five linked queries, and one of them again")
def test_u8_an_input_that_ends_has_delivered_the_barrier(lab: JobHarness) -> None:
    """Of four inputs of 100 rows one has ended before the checkpoint, and one ends while it is under way.

    The third has delivered its barrier by then, and the last one delivers it when the others have. 400 rows, once.
    """

    def job(place: JobHarness) -> Job:
        made = sx.Job(lab.spark, "inputs", state=place.folder / "state")
        reads = []
        for number in range(4):
            gate = {"gate": lab.folder / f"gate-{number}", "gate_at": "50"} if number in (1, 2) else {}
            rows = numbers(lab.spark, f"in-{number}", counts="100", max_rows_per_epoch=50, **gate)
            rows = rows.withColumn("channel", F.lit(str(number)))
            x = made.exchange(f"x{number}", partitions=2, schema=rows.schema)
            made.add(f"p{number}", x.write(held(rows, lab.folder / "release", 50) if number == 3 else rows))
            reads.append(x.read(f"x{number}-in"))
        place.add(made, reads[0].union(reads[1]).union(reads[2]).union(reads[3]), query="all", out="out")
        return made

    first, place = job(lab), lab.folder / "savepoint"
    first.start()
    until(lambda: len(lab.numbers()) == 100 + 3 * 50, "what comes before the checkpoint")
    until(lambda: first.snapshot().query("p0").finished, "the end of the first input")
    taken: list[int] = []
    asked = threading.Thread(target=lambda: taken.append(first.savepoint(place, aligned=True)))
    asked.start()
    until(
        lambda: len(lab.ledger.table(CheckpointRow).rows([("status", "=", "TRIGGERED")])) == 1,
        "the checkpoint is under way",
    )
    (lab.folder / "gate-1").touch()
    until(lambda: first.snapshot().query("p1").finished, "the end of the second input")
    assert not taken
    (lab.folder / "release").touch()
    asked.join(300)
    assert taken and not first.snapshot().query("p2").finished
    saved = read_savepoint(str(place))
    assert saved.about.mode == "aligned" and saved.about.rows_in_flight == 0
    assert saved.metadata.exchanges["x0"].sealed and not saved.metadata.exchanges["x2"].sealed
    (lab.folder / "gate-2").touch()
    assert first.await_termination(300).finished
    assert lab.numbers() == sorted((str(number), n) for number in range(4) for n in range(100))

    epoch = saved.metadata.queries["all"].epoch
    assert epoch is not None
    before = [
        (row["channel"], row["n"])
        for file in (lab.folder / "out").glob("*.json")
        if int(file.stem.rpartition("-")[2]) <= epoch
        for row in json.loads(file.read_text())["rows"]
    ]
    other = another(lab)
    assert job(other).restore(place).run(progress=False).finished
    assert sorted([*before, *other.numbers()]) == lab.numbers()
