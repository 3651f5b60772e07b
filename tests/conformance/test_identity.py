"""Conformance, "Identity over time": a job that has changed continues exactly, or is refused before it starts."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.errors import ConfigurationError, JobFailedError, SparkExtError, StateError
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow, IncidentRow
from spark_ext.sinks.runtime.position import remembered
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from tests.support.jobs import JobHarness, expected
from tests.support.ledgers import checkpoints, flagged
from tests.support.waiting import until

COUNTS: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 20}


def half_read(lab: JobHarness, gate: Path, **job: Any) -> None:
    first = lab.job(lab.source(**COUNTS, gate=gate), **job).start()
    query = str(job.get("query", "q"))
    until(lambda: SparkLog(str(lab.checkpoint(query))).newest_commit() is not None, "the first epoch to be committed")
    first.stop()


def renamed(lab: JobHarness, frame: Any, *, query: str = "r", sink: str = "q-out", **words: Any) -> Job:
    """The job of `half_read`, whose query has another name: all its operators are as they were."""
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    writer = frame.writeStream.format("folder").option("uid", sink).option("path", str(lab.folder / "out"))
    return made.add(query, writer.option("log", lab.log), **words)


@pytest.mark.core
@pytest.mark.slow(14, "four runs of one state, each of which has to end")
def test_i1_a_renamed_query_is_refused_until_the_user_says_so(lab: JobHarness) -> None:
    gate = lab.folder / "gate"
    half_read(lab, gate)
    gate.touch()
    frame = lab.source(**COUNTS, gate=gate)
    with pytest.raises(StateError, match="operator 'in' and 1 more is in query 'r'") as refusal:
        renamed(lab, frame).start()
    assert "renamed_from='q'" in refusal.value.do and "job.reset('q', cascade=True)" in refusal.value.do
    with pytest.raises(ConfigurationError, match="'p', which this job never had; its queries so far: 'q'"):
        renamed(lab, frame, renamed_from="p").start()
    result = renamed(lab, frame, renamed_from="q").run(progress=False)
    assert result.finished and result.query("r").epochs == 4
    assert lab.numbers() == expected(100)
    assert not lab.checkpoint("q").exists() and lab.checkpoint("r").exists()
    reads = len(lab.events("read"))
    with pytest.raises(StateError, match="query 'r' is no longer in the job"):
        renamed(lab, frame, query="s").start()
    assert renamed(lab, frame, query="s", renamed_from="r").run(progress=False).query("s").finished_before
    assert renamed(lab, frame, query="s", renamed_from="r").run(progress=False).query("s").finished_before, "a no-op"
    # The old name is free: a query of its own begins anew under it.
    both = renamed(lab, frame, query="s")
    other = lab.source("other", counts="10").writeStream.format("folder").option("path", str(lab.folder / "other"))
    both.add("q", other.option("uid", "other-out"))
    assert both.run(progress=False).finished
    assert lab.numbers("other") == expected(10)
    assert len(lab.events("read")) == reads + 1
    assert lab.numbers() == expected(100)


def test_i1_a_rename_cut_short_is_finished_by_the_next_start(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = lab.folder / "gate"
    half_read(lab, gate)
    gate.touch()
    frame = lab.source(**COUNTS, gate=gate)
    monkeypatch.setenv("SPARK_EXT_FAILPOINTS", "query.renamed=raise")
    with pytest.raises(SparkExtError, match=r"fail point query\.renamed"):
        renamed(lab, frame, renamed_from="q").start()
    monkeypatch.delenv("SPARK_EXT_FAILPOINTS")
    assert lab.checkpoint("q").exists()
    assert renamed(lab, frame).run(progress=False).finished, "also when the words are gone again"
    assert lab.numbers() == expected(100)


def moved(lab: JobHarness, *, to_b: bool) -> Job:
    """Source `x` of 60 rows, of which the first query finishes a channel of 20, and `y`, which takes its place."""
    gate = lab.folder / "gate"
    x = lab.source("x", counts="20,40", readers=1, max_rows_per_epoch=20, gate=gate)
    y = lab.source("y", counts="40", gate=gate)
    made = lab.job(y if to_b else x, query="a", out="a")
    if to_b:
        lab.add(made, x, query="b", out="b")
    return made


@pytest.mark.core
def test_i2_a_source_that_moves_to_another_query_is_refused(lab: JobHarness) -> None:
    first = moved(lab, to_b=False).start()
    until(lambda: flagged(lab.ledger, "a", "x") == 1, "a channel of x to finish")
    first.stop()
    before = lab.numbers("a")
    with pytest.raises(StateError, match="source 'x' belongs to query 'a', and is now in query 'b'") as refusal:
        moved(lab, to_b=True).start()
    assert "another uid in 'b'" in refusal.value.do and "job.reset('a', cascade=True)" in refusal.value.do
    assert lab.numbers("a") == before and lab.numbers("b") == []
    (lab.folder / "gate").touch()
    first.reset("a")
    assert moved(lab, to_b=True).run(progress=False).finished
    assert lab.numbers("b") == expected(20, 40), "after the reset x is free, and begins anew in b"
    other = lab.job(lab.source("z", counts="5"), query="c", out="c")
    lab.add(other, lab.source("w", counts="5"), query="a", out="a")
    writer = lab.source("v", counts="5").writeStream.format("folder").option("path", str(lab.folder / "b"))
    with pytest.raises(StateError, match="its operator 'b-out' is in query 'd'"):
        other.add("d", writer.option("uid", "b-out")).start()


def files(lab: JobHarness, path: Path, *, sink: str = "out", out: str = "out", **words: Any) -> Job:
    read = lab.spark.readStream.schema("n bigint").format("files").option("uid", "in").option("path", str(path))
    frame = read.option("max_rows_per_epoch", 10).option("readers", 1).load()
    writer = frame.writeStream.format("delta_2pc").option("uid", sink).option("path", str(lab.folder / out))
    return sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer, **words)


def numbers(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pandas()["n"])


def two_folders(lab: JobHarness) -> tuple[Path, Path]:
    """Folders with files of the same names: 0 to 39, and 100 to 139."""
    places = lab.folder / "one", lab.folder / "two"
    for start, place in zip((0, 100), places, strict=True):
        place.mkdir()
        for part in range(4):
            low = start + 10 * part
            pq.write_table(pa.table({"n": pa.array(range(low, low + 10), pa.int64())}), place / f"{part}.parquet")
    return places


@pytest.mark.core
@pytest.mark.slow(10, "a failed run with its restarts, and the one that continues it")
def test_i6_what_an_operator_reads_or_writes_identifies_it(lab: JobHarness) -> None:
    one, two = two_folders(lab)
    (one / "3.parquet").write_text("no Parquet")
    with pytest.raises(JobFailedError):
        files(lab, one).run(progress=False)
    assert numbers(lab.folder / "out") == list(range(30))
    with pytest.raises(
        ConfigurationError, match=f"option 'path' of source 'in' was '{one}', and is '{two}'"
    ) as refusal:
        files(lab, two).start()
    assert "accept=('in.path',)" in refusal.value.do
    with pytest.raises(ConfigurationError, match=r"option 'path' of sink 'out' was .* would be missing in the new one"):
        files(lab, one, out="elsewhere").start()
    with pytest.raises(ConfigurationError, match="option 'uid' of sink 'out' was 'out', and is 'other'"):
        files(lab, one, sink="other").start()
    assert numbers(lab.folder / "out") == list(range(30)) and not (lab.folder / "elsewhere").exists()
    # The same data in another place: accepted by name, and continued there.
    for part in range(4):
        (two / f"{part}.parquet").unlink()
    for part in range(3):
        shutil.copy2(one / f"{part}.parquet", two / f"{part}.parquet")
    pq.write_table(pa.table({"n": pa.array(range(30, 40), pa.int64())}), two / "3.parquet")
    assert files(lab, two, accept=("in.path",)).run(progress=False).finished
    assert numbers(lab.folder / "out") == list(range(40))
    noted = [row.what for row in lab.ledger.table(IncidentRow).rows([("type", "=", "definition")])]
    assert sum(what.startswith("option 'path' of source 'in' was") for what in noted) == 1


@pytest.mark.core
def test_i8_a_changed_finished_query_says_so_in_one_line(lab: JobHarness, caplog: pytest.LogCaptureFixture) -> None:
    assert lab.run(lab.source(counts="10")).finished

    def lines(job: Job) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="spark_ext.job"):
            assert job.run(progress=False).query("q").finished_before
        return [record.getMessage() for record in caplog.records if "has changed since" in record.getMessage()]

    frame = lab.source(counts="10")
    assert lines(lab.job(frame)) == []
    assert lines(lab.job(lab.source(counts="10", max_rows_per_epoch=5))) == [], "how it is read has not mattered"
    (line,) = lines(lab.job(frame.selectExpr("*", "n + 1 AS m")))
    assert "column 'm' is new" in line and "job.reset('q', cascade=True)" in line
    (line,) = lines(lab.job(frame.union(lab.source("more", counts="5"))))
    assert "source 'more' was not in this query before" in line
    (line,) = lines(lab.job(lab.source(counts="10,10")))
    assert "option 'counts' of source 'in' was '10', and is '10,10'" in line
    (line,) = lines(renamed(lab, frame, query="q", sink="another"))
    assert "option 'uid' of sink 'q-out' was 'q-out', and is 'another'" in line
    assert lab.numbers() == expected(10)


@pytest.mark.slow(11, "five starts of one state")
def test_i8_a_job_whose_unfinished_query_is_gone_is_not_finished(lab: JobHarness) -> None:
    gate = lab.folder / "gate"
    half_read(lab, gate)
    gate.touch()
    ledger = Ledger(str(lab.folder / "state"))
    (limit,) = ControlLog(ledger).accept([Request("rate_limit", "source:in", {"rows_per_epoch": 1000})])
    assert isinstance(limit, Accepted)

    def without() -> Job:
        return lab.job(lab.source("b", counts="10"), query="b", out="b")

    with pytest.raises(StateError, match="query 'q' has not finished, and is no longer in the job") as refusal:
        without().start()
    assert "job.remove('q')" in refusal.value.do
    with pytest.raises(ConfigurationError, match="remove names the query 'p', which this job never had"):
        without().remove("p").start()
    assert without().remove("q").run(progress=False).finished
    (said,) = [row for row in ledger.table(IncidentRow).rows() if row.type == "control"]
    assert said.what == "control events for source:in are in force nowhere: the job has no source:in"
    assert without().run(progress=False).finished, "it is remembered"
    both = lab.job(lab.source(**COUNTS, gate=gate))
    lab.add(both, lab.source("b", counts="10"), query="b", out="b")
    assert both.run(progress=False).finished
    assert lab.numbers() == expected(100), "added again, it continues where it was"


@pytest.mark.core
def test_i8_a_source_added_to_an_unfinished_query_is_refused(lab: JobHarness) -> None:
    gate = lab.folder / "gate"
    half_read(lab, gate)
    frame = lab.source(**COUNTS, gate=gate)
    with pytest.raises(ConfigurationError, match="source 'more' was not in this query before, and the query has not"):
        lab.job(frame.union(lab.source("more", counts="5"))).start()
    with pytest.raises(ConfigurationError, match=r"source '(in|new)' (is|was) not in this query"):
        lab.job(lab.source("new", **COUNTS, gate=gate)).start()


@pytest.mark.core
def test_i9_a_missing_checkpoint_is_refused_whatever_came_last(lab: JobHarness) -> None:
    frame = lab.source(counts="20,100", readers=2, max_rows_per_epoch=40, gate=lab.folder / "gate")
    first = lab.job(frame, checkpoint_interval="50 ms").start()
    ledger = Ledger(str(lab.folder / "state"))
    until(lambda: flagged(ledger, "q", "in") == 1, "a flag")
    until(lambda: any(cut.metadata["queries"]["q"]["epoch"] == 0 for cut in checkpoints(ledger)), "a checkpoint")
    first.stop()
    before = lab.numbers()
    shutil.rmtree(lab.checkpoint())
    shutil.copytree(lab.folder / "state", lab.folder / "kept")
    for witness in ("epochs", "finished", "checkpoints"):
        shutil.rmtree(lab.folder / "state")
        shutil.copytree(lab.folder / "kept", lab.folder / "state")
        for table in {"epochs", "finished", "checkpoints"} - {witness}:
            DeltaTable(lab.folder / "state" / "ledger" / table).delete()
        with pytest.raises(StateError, match="this query is missing: the ledger has committed epochs up to 0"):
            lab.job(frame).start()
    assert lab.numbers() == before


def into_table(lab: JobHarness, uid: str = "q-out") -> Job:
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    frame = lab.source(**COUNTS, gate=lab.folder / "gate")
    return made.add("q", frame.writeStream.format("delta_2pc").option("uid", uid).option("path", str(table(lab))))


def table(lab: JobHarness) -> Path:
    return lab.folder / "table"


def ids(lab: JobHarness) -> list[int]:
    return sorted(DeltaTable(table(lab)).to_pyarrow_table().column("n").to_pylist())


def first_read(lab: JobHarness) -> None:
    job = into_table(lab).start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    job.stop()
    (lab.folder / "gate").touch()


def refused(job: Job, match: str) -> SparkExtError:
    with pytest.raises(SparkExtError, match=match) as failure:
        job.run(progress=False)
    return failure.value


@pytest.mark.core
def test_i3_a_job_survives_the_cleaning_of_its_temporary_folder(lab: JobHarness) -> None:
    job = into_table(lab).start()
    until(lambda: SparkLog(str(lab.checkpoint())).newest_commit() is not None, "the first epoch to be committed")
    place = registry.folder_of(lab.spark, job.state_directory)
    shutil.rmtree(place)
    (lab.folder / "gate").touch()
    assert job.await_termination(120).finished
    assert ids(lab) == list(range(100))
    fences = DeltaTable(table(lab))
    ledger = Ledger(str(lab.folder / "state"))
    started = ledger.jobs()[0]
    assert (fences.transaction_version("fence:q-out"), fences.transaction_version("start:q-out")) == (
        1,
        started.start_id,
    )
    assert all(len(row.offsets) and row.offsets[0]["lineage"] == 1 for row in ledger.table(EpochRow).rows())


@pytest.mark.slow(14, "four starts of a job, and the session's first query")
def test_i4_state_put_back_from_a_backup_is_refused(lab: JobHarness) -> None:
    first_read(lab)
    shutil.copytree(lab.folder / "state", lab.folder / "backup")
    assert into_table(lab).run(progress=False).finished
    shutil.rmtree(lab.folder / "state")
    (lab.folder / "backup").rename(lab.folder / "state")
    refused(into_table(lab), "incarnation 2 of the job has been started twice")
    refused(into_table(lab), "the target is ahead of this state: it holds epoch 4, and the newest .* planned is 0")
    assert ids(lab) == list(range(100))


def test_i7_a_table_deleted_under_a_stopped_job_demands_a_reset(lab: JobHarness) -> None:
    first_read(lab)
    assert remembered(str(lab.checkpoint())) is not None
    shutil.rmtree(table(lab))
    assert "job.reset(" in str(refused(into_table(lab), "not the target that was claimed"))
    assert not table(lab).exists()
    into_table(lab).reset("q", "its table was deleted by mistake")
    assert into_table(lab).run(progress=False).finished
    assert ids(lab) == list(range(100))
