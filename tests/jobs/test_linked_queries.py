"""Jobs whose queries are linked by exchanges: what reaches whom, once, over starts, stops, failures and changes."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.entries import Entry, EntryKind
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import CheckpointRow, ExecutionStateRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.storage import LocalFolder
from tests.support import validators
from tests.support.jobs import JobHarness, expected, numbers
from tests.support.refusals import delta_numbers
from tests.support.waiting import until

COUNTS = "40,25"


class Diamond:
    """in -> (pass) -> x -> (double) -> y; x and y -> (join), into the folder `out`."""

    def __init__(self, lab: JobHarness, limit: int = 25, **given: Any) -> None:
        self.lab = lab
        self.job: Job = sx.Job(lab.spark, "diamond", state=lab.folder / "state")
        source = {"counts": COUNTS, "max_rows_per_epoch": 30, **given.pop("source", {})}
        x = self.job.exchange("x", partitions=3, key="n", **given)
        y = self.job.exchange("y", partitions=2, **given)
        self.job.add("pass", x.write(lab.source("in", **source)))
        self.job.add("double", y.write(x.read("to-double").withColumn("n", F.col("n") + 1000)))
        lab.add(self.job, x.read("x-in", max_rows_per_epoch=limit).union(y.read("y-in")), query="both", out="out")


def both(*counts: int) -> list[tuple[str, int]]:
    """The rows that a diamond writes for these counts."""
    rows = expected(*counts)
    return sorted([*rows, *((channel, n + 1000) for channel, n in rows)])


def entries(state: Path, name: str) -> list[Entry]:
    """The entries of an exchange that are not released, in order."""
    log = ArrowMaster(LocalFolder(state / "exchanges" / name), name).log
    log.look()
    return [entry for number in log.numbers() if (entry := log.entry(number)) is not None]


@pytest.mark.slow(20, "starts the workers of three linked queries, twice")
@pytest.mark.without_validators(validators.end_of_input_once_and_last, validators.hooks_in_order, reason="it is reset")
def test_a_diamond_ends_with_each_row_once_and_is_reset_as_one(lab: JobHarness) -> None:
    """One job from all sides: rows, order of the end, what is registered when, what is released, and further runs."""
    job = Diamond(lab, keep="1 hour").job
    assert job.run(progress=False).state is State.FINISHED
    assert lab.numbers() == both(40, 25)
    state = lab.folder / "state"
    log = entries(state, "x")
    kinds = [entry.kind for entry in log]
    assert kinds.count(EntryKind.SEAL) == 1 and kinds[-1] is EntryKind.SEAL
    first = kinds.index(EntryKind.EPOCH)
    readers = {entry.consumer: entry.query for entry in log[:first] if entry.kind is EntryKind.REGISTER}
    assert readers == {"to-double": "double", "x-in": "both"}, "before the first epoch of the producer"
    assert sum(entry.row_count for entry in log) == 65
    ended = {
        row.operator: row.since
        for row in Ledger(job.state_directory).table(ExecutionStateRow).rows([("state", "=", "FINISHED")])
    }
    assert ended["pass"] < ended["double"] < ended["both"], "in the order of the flow"
    named = {segment.name for entry in log for segment in entry.segments}
    assert named == {path.name for path in (state / "exchanges" / "x" / "data").iterdir()}
    again = Diamond(lab).job
    with pytest.raises(ConfigurationError, match="would read it again: double, both"):
        again.reset("pass")
    nothing = again.run(progress=False)
    assert nothing.state is State.FINISHED and nothing.rows == 0 and nothing.epochs == 0, "nothing was changed"
    assert entries(state, "x") == log, "a start with nothing to do writes nothing"
    again.reset("pass", "once more", cascade=True)
    assert Diamond(lab).job.run(progress=False).state is State.FINISHED
    assert lab.numbers() == sorted(both(40, 25) * 2), "beside the earlier output"


@pytest.mark.slow(15, "starts three linked queries three times")
def test_after_a_restart_each_row_is_there_once_and_all_released(lab: JobHarness) -> None:
    """A stop in the middle, then a failure of the producer's reader for good, then a run to the end."""
    gate = lab.folder / "gate"
    first = Diamond(lab, source={"gate": str(gate)}).job
    first.start()
    until(lambda: len(lab.numbers()) >= 20, "the first epoch has passed both ways")
    assert first.stop().state is State.CANCELED
    assert not any(entry.kind is EntryKind.SEAL for entry in entries(lab.folder / "state", "x"))
    # The state directory may be moved: an exchange is known by its name.
    gate.touch()
    (lab.folder / "state").rename(lab.folder / "elsewhere")
    (lab.folder / "elsewhere").rename(lab.folder / "state")
    failing = Diamond(lab, source={"gate": str(gate), "fail_at": 35}).job
    with pytest.raises(JobFailedError, match="row 35 cannot be read"):
        failing.run(progress=False)
    assert Diamond(lab).job.run(progress=False).state is State.FINISHED
    assert lab.numbers() == both(40, 25)
    for name in ("x", "y"):
        assert list((lab.folder / "state" / "exchanges" / name / "data").iterdir()) == []
        assert not any(entry.kind is EntryKind.EPOCH for entry in entries(lab.folder / "state", name))


def test_a_query_behind_another_is_built_when_that_has_finished(lab: JobHarness) -> None:
    """Its table is not there before. Nothing of it counts until then; a second run reads nothing."""

    def job() -> Job:
        made = sx.Job(lab.spark, "gated", state=lab.folder / "state")
        facts = made.exchange("facts", partitions=2)
        lab.add(made, lab.source("rates", counts="50"), query="dimension", out="dimension")
        made.add("facts", facts.write(lab.source("in", counts="40,25")))
        rows = facts.read("facts-in")

        def joined() -> Any:
            assert len(lab.numbers("dimension")) == 50, "it is complete"
            table = lab.spark.createDataFrame([(n,) for _, n in lab.numbers("dimension")], "n long")
            frame = rows.join(table, "n").select("channel", "n", "ts")
            writer = frame.writeStream.format("folder").option("uid", "joined-out")
            return writer.option("path", str(lab.folder / "out"))

        return made.add("joined", joined, after="dimension")

    result = job().run(progress=False)
    assert result.state is State.FINISHED
    assert [query.uid for query in result.queries] == ["dimension", "facts", "joined"]
    assert lab.numbers() == expected(40, 25)
    assert job().run(progress=False).rows == 0


def test_a_query_behind_one_that_has_another_name_continues(lab: JobHarness) -> None:
    """The one has finished and is renamed; the other one has begun. After a start, and after a restore."""
    gate = lab.folder / "gate"

    def job(name: str = "first", old: str | None = None) -> Job:
        made = sx.Job(lab.spark, "gated", state=lab.folder / "state")
        first = numbers(lab.spark, "in", counts="5").writeStream.format("delta_2pc").option("uid", "first-out")
        made.add(name, first.option("path", str(lab.folder / "first")), renamed_from=old)
        rows = numbers(lab.spark, "late-in", counts="40,25", max_rows_per_epoch=20, gate=gate)
        late = rows.writeStream.format("delta_2pc").option("uid", "late-out").option("path", str(lab.folder / "late"))
        return made.add("late", lambda: late, after=name)

    started = job().start()
    until(lambda: len(started.snapshot().queries) == 2 and started.snapshot().query("late").rows > 0, "it has begun")
    started.stop(savepoint=lab.folder / "savepoint")
    gate.touch()
    assert job("again", "first").run(progress=False).finished
    assert delta_numbers(lab.folder / "late") == expected(40, 25)
    job("again", "first").restore(lab.folder / "savepoint")
    assert 0 < len(delta_numbers(lab.folder / "late")) < 65, "it is put back to where it was"
    assert job("again", "first").run(progress=False).finished
    assert delta_numbers(lab.folder / "late") == expected(40, 25)
    assert delta_numbers(lab.folder / "first") == expected(5)


def test_a_query_that_cannot_be_built_fails_the_job_by_name(lab: JobHarness) -> None:
    made = sx.Job(lab.spark, "gated", state=lab.folder / "state")
    lab.add(made, lab.source("in", counts="5"), query="first", out="out")

    def broken() -> Any:
        raise ValueError("no such table")

    made.add("second", broken, after="first")
    with pytest.raises(JobFailedError, match="no such table") as failure:
        made.run(progress=False)
    assert "query 'second'" in str(failure.value)
    assert lab.numbers() == expected(5), "what had finished is not lost"


def test_a_reader_that_left_is_named_until_it_is_forgotten(lab: JobHarness) -> None:
    """Rows that it has not read are kept; one that comes too late for released rows is refused by name."""

    def job(*readers: str) -> Job:
        made = sx.Job(lab.spark, "readers", state=lab.folder / "state")
        x = made.exchange("x", partitions=2)
        made.add("write", x.write(lab.source("in", counts=COUNTS, gate=str(gate), max_rows_per_epoch=20)))
        for uid in readers:
            lab.add(made, x.read(uid), query=f"read-{uid}", out=uid)
        return made

    gate = lab.folder / "gate"
    first = job("a", "b").start()
    until(lambda: len(lab.numbers("a")) == len(lab.numbers("b")) == 20, "both have read the first epoch")
    first.stop()
    gate.touch()
    second = job("a").remove("read-b")
    assert second.run(progress=False).state is State.FINISHED
    data = lab.folder / "state" / "exchanges" / "x" / "data"
    assert len(list(data.iterdir())) > 0, "for the one that has left"
    said = [row.what for row in Ledger(second.state_directory).table(IncidentRow).rows([("type", "=", "exchange")])]
    assert said == ["source 'b' of query 'read-b' reads exchange 'x' and is no longer in the job"]
    with pytest.raises(ConfigurationError, match="source 'a' is part of query 'read-a'"):
        job("a").forget("x", "a")
    with pytest.raises(ConfigurationError, match="'c' does not read the exchange; its readers are: 'a', 'b'"):
        job("a").forget("x", "c")
    job("a").forget("x", "b")
    assert job("a").run(progress=False).state is State.FINISHED
    assert list(data.iterdir()) == []
    with pytest.raises(StateError, match=r"first 65 rows of exchange 'x' have been released.*source 'c'"):
        job("a", "c").run(progress=False)


def test_x1_p7_a_new_consumer_reads_all_of_a_finished_producer(lab: JobHarness) -> None:
    """With `keep`; also when the producer is no longer in the job."""

    def job(*readers: str, producer: bool = True) -> Job:
        made = sx.Job(lab.spark, "late", state=lab.folder / "state")
        x = made.exchange("x", partitions=2, keep="1 day")
        if producer:
            made.add("write", x.write(lab.source("in", counts=COUNTS)))
        for uid in readers:
            lab.add(made, x.read(uid), query=f"read-{uid}", out=uid)
        return made

    first = job("a").start()
    first.checkpoint(60)  # the producer ends before it has seen the barrier, or just behind it
    first.await_termination()
    taken = {row.status for row in aligned(first)}
    assert taken == {"TRIGGERED", "COMPLETED"}, "P7: none is aborted because a query finishes"
    assert job("a", "b", producer=False).run(progress=False).state is State.FINISHED
    assert lab.numbers("b") == expected(40, 25)
    shutil.rmtree(lab.folder / "state" / "exchanges" / "x")
    schema = lab.source("in").schema
    gone = sx.Job(lab.spark, "late", state=lab.folder / "state")
    lab.add(gone, gone.exchange("x", schema=schema).read("c"), query="read-c", out="c")
    with pytest.raises(ConfigurationError, match="exchange 'x', which no query of the job writes"):
        gone.run(progress=False)
    made = job("a", "b", "c")
    with pytest.raises(StateError, match="exchange 'x' is gone"):
        made.run(progress=False)


def test_what_cannot_work_is_refused_before_anything_runs(lab: JobHarness) -> None:
    def made() -> Job:
        return sx.Job(lab.spark, "refused", state=lab.folder / "state")

    def refused(job: Job, match: str) -> None:
        with pytest.raises((ConfigurationError, StateError), match=match):
            job.run(progress=False)

    rows = lab.source("in", counts="5")
    one = made()
    x, y = one.exchange("x", schema=rows.schema), one.exchange("y", schema=rows.schema)
    one.add("a", x.write(y.read("y-in")))
    one.add("b", y.write(x.read("x-in")))
    refused(one, "form a cycle: 'a'.*exchange 'x'.*'b'.*exchange 'y'.*'a'")

    two = made()
    lab.add(two, two.exchange("x", schema=rows.schema).read("x-in"), query="a", out="out")
    refused(two, "reads exchange 'x', which no query of the job writes")

    three = made()
    lab.add(three, rows, query="a", out="out")
    three.add("b", lambda: rows.writeStream, after="c")
    refused(three, "after query 'c', which is not in the job")

    four = made()
    with pytest.raises(ConfigurationError, match="exchange 'x' already"):
        four.exchange("x"), four.exchange("x")
    with pytest.raises(ConfigurationError, match="columns are not known yet"):
        four.exchange("z").read("in")
    with pytest.raises(ConfigurationError, match="query 'a' writes exchange 'w' already"):
        once = four.exchange("w")
        four.add("a", once.write(rows)).add("b", once.write(rows))
    with pytest.raises(ConfigurationError, match="key column 'k' is not among"):
        four.exchange("k", key="k").write(rows)
    with pytest.raises(ConfigurationError, match="a column '__spark_ext_partition', which the exchange uses"):
        four.exchange("p", key="n").write(rows.withColumn("__SPARK_EXT_Partition", rows.n))
    with pytest.raises(ConfigurationError, match=r"available_now.*ends when the query that feeds it has finished"):
        other = four.exchange("o", schema=rows.schema)
        four.add("c", other.read("o-in").writeStream.format("folder").option("uid", "f"), available_now=True)

    outside = made()
    elsewhere = str(lab.folder / "another" / "exchanges" / "x")
    outside.add("a", rows.writeStream.format("exchange_2pc").option("uid", "x").option("path", elsewhere))
    refused(outside, "is not an exchange of this job")
    assert not (lab.folder / "state" / "exchanges").exists()


def test_a_changed_or_damaged_exchange_is_refused_by_name(lab: JobHarness) -> None:
    def job(*columns: str, **given: Any) -> Job:
        """`exchange-changed` in the page on changes."""
        made = sx.Job(lab.spark, "changed", state=lab.folder / "state")
        x = made.exchange("x", **{"partitions": 2, **given})
        rows = lab.source("in", counts=COUNTS, gate=str(lab.folder / "gate"), max_rows_per_epoch=20)
        made.add("write", x.write(rows.selectExpr("*", *columns)))
        lab.add(made, x.read("x-in"), query="read", out="out")
        return made

    first = job().start()
    until(lambda: len(lab.numbers()) == 20, "the first epoch has been read")
    first.stop()
    with pytest.raises(ConfigurationError, match="partitions of the exchange is 2, but the job now specifies 3"):
        job(partitions=3).run(progress=False)
    with pytest.raises(ConfigurationError, match="key of the exchange is none, but the job now specifies n"):
        job(key="n").run(progress=False)
    with pytest.raises(ConfigurationError, match="column 'm' of the exchange is missing, but the job now specifies"):
        job("n + 1 AS m").run(progress=False)
    with pytest.raises(StateError, match="it is an exchange of another kind"):
        job(kind="delta").run(progress=False)
    about = lab.folder / "state" / "exchanges" / "x" / "exchange.json"
    text = about.read_text()
    about.write_text("{}")
    with pytest.raises(StateError, match="not an exchange of this package, or it is damaged"):
        job().run(progress=False)
    about.write_text(json.dumps({**json.loads(text), "id": "another"}))
    failed = job()
    with pytest.raises(JobFailedError, match="not the one that was read"):
        failed.run(progress=False)
    about.write_text(text)
    (lab.folder / "gate").touch()
    assert job(max_in_flight=30, keep="1 s").run(progress=False).state is State.FINISHED, "these may change"
    assert lab.numbers() == expected(40, 25)
    assert job(partitions=3).run(progress=False).rows == 0, "nothing of it is started"


@pytest.mark.core
@pytest.mark.slow(15, "takes three checkpoints of three linked queries")
def test_f8_aligned_checkpoints_of_a_diamond_reflect_one_input(lab: JobHarness) -> None:
    """U1, F6, F8: the output up to each is that of the input; one that is under way at the end is completed."""
    # Its readers keep up with the source: an aligned checkpoint waits for what they have still to read.
    job = Diamond(lab, 10_000, keep="1 hour", source={"live": "true", "rate": 100, "max_rows_per_epoch": 30}).job
    job.start()
    until(lambda: len(lab.numbers()) > 0, "rows have passed both ways")
    taken = [job.checkpoint(60) for _ in range(2)]
    last = threading.Thread(target=lambda: taken.append(job.checkpoint(60)))
    last.start()
    assert job.drain().state is State.FINISHED
    last.join()
    written = sum(entry.row_count for entry in entries(lab.folder / "state", "x"))
    assert len(lab.numbers()) == 2 * written > 0, "not where the drain found them"
    rows = aligned(job)
    complete = {row.checkpoint_id: row.metadata for row in rows if row.status == "COMPLETED"}
    assert sorted(complete) == sorted(taken) and len(taken) == 3
    assert {row.status for row in rows} == {"TRIGGERED", "COMPLETED"}
    for number in sorted(taken)[:2]:
        queries = complete[number]["queries"]
        read = queries["pass"]["sources"]["in"]["offset"]
        assert read["barrier"] == number
        ends = {channel: state["at"] for channel, state in read["running"].items()}
        shown = rows_upto(lab, queries["both"]["epoch"])
        assert shown and shown == both(*(ends[str(channel)] for channel in range(2))), f"checkpoint {number}"


def aligned(job: Job) -> list[CheckpointRow]:
    return Ledger(job.state_directory).table(CheckpointRow).rows([("mode", "=", "aligned")])


def rows_upto(lab: JobHarness, epoch: int) -> list[tuple[str, int]]:
    """The rows that the sink of the diamond has written up to an epoch, sorted."""
    rows = []
    for file in (lab.folder / "out").glob("both-out-*.json"):
        if int(file.stem.rpartition("-")[2]) <= epoch:
            rows += [(row["channel"], row["n"]) for row in json.loads(file.read_text())["rows"]]
    return sorted(rows)
