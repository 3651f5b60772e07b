"""Jobs with bad rows: each row of the input is in the target or in the table of bad rows, once."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError
from spark_ext.jobs.job import Job
from spark_ext.jobs.result import JobResult
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import BadRowsRow, IncidentRow
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def dirty(lab: JobHarness, uid: str = "in", **options: Any) -> DataFrame:
    """A stream in which every tenth row is bad; collected, unless something else is said."""
    given = {"on_bad_row": "quarantine", "log": lab.log, **options}
    reader = lab.spark.readStream.format("dirty").option("uid", uid)
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


def bad(lab: JobHarness, place: Path | None = None) -> list[dict[str, Any]]:
    """The rows of the table that count."""
    table = pa.table(DeltaTable(str(place or lab.folder / "state" / "bad_rows" / "table")).scan())
    return [row for row in table.to_pylist() if row["replaced_in"] is None]


def numbers_of(rows: list[dict[str, Any]], uid: str = "in") -> list[tuple[str, int]]:
    return sorted((row["channel"], int(row["raw"].removeprefix("row "))) for row in rows if row["uid"] == uid)


def all_bad(*counts: int) -> list[tuple[str, int]]:
    return [(str(channel), n) for channel, count in enumerate(counts) for n in range(0, count, 10)]


def all_good(*counts: int) -> list[tuple[str, int]]:
    return [(str(channel), n) for channel, count in enumerate(counts) for n in range(count) if n % 10]


@pytest.mark.slow(20, "the first job of the process")
def test_two_sources_of_a_query_leave_their_bad_rows_behind(lab: JobHarness) -> None:
    (lab.folder / "files").mkdir()
    lines = [f"x{n}" if n % 7 == 0 else f"f,{n},2024-01-01" for n in range(70)]
    (lab.folder / "files" / "f.csv").write_text("\n".join(lines))
    files = lab.spark.readStream.format("files").schema("channel string, n bigint, ts timestamp")
    files = files.options(uid="files", path=str(lab.folder / "files"), on_bad_row="quarantine", max_rows_per_epoch=20)
    assert lab.run(dirty(lab, counts="50,60", max_rows_per_epoch=30).union(files.load())).finished
    assert lab.numbers() == sorted(all_good(50, 60) + [("f", n) for n in range(70) if n % 7])
    found = bad(lab)
    assert numbers_of(found) == all_bad(50, 60)
    assert sorted(int(row["raw"][1:]) for row in found if row["uid"] == "files") == list(range(0, 70, 7))
    assert {(row["job"], row["query"], row["lineage"]) for row in found} == {("lab", "q", 1)}
    ledger = Ledger(str(lab.folder / "state"))
    told = {(row.source, row.epoch): row.rows for row in ledger.table(BadRowsRow).rows()}
    counts: dict[tuple[str, int], int] = {}
    for row in found:
        counts[row["uid"], row["epoch"]] = counts.get((row["uid"], row["epoch"]), 0) + 1
    assert told == counts
    incidents = ledger.table(IncidentRow).rows([("type", "=", "bad_rows")])
    assert len(incidents) == 2 and {row.severity for row in incidents} == {"INFO"}


@pytest.mark.slow(15, "runs a job three times")
def test_a_bad_file_is_a_row_of_the_table_and_is_tried_again_when_it_has_changed(lab: JobHarness) -> None:
    place = lab.folder / "files"
    place.mkdir()
    packed = gzip.compress(b"channel,n,ts\nc,3,2024-01-01\n")
    (place / "a.csv").write_text("channel,n,ts\na,1,2024-01-01\na,x,2024-01-01\n")
    (place / "b.csv").write_text("channel,ts\nb,2024-01-01\n")
    (place / "c.csv.gz").write_bytes(packed[:-10])
    files = lab.spark.readStream.format("files").schema("channel string, n bigint, ts timestamp")
    files = files.options(uid="files", path=str(place), header="true", watch="true")
    files = files.options(on_bad_row="quarantine", on_bad_file="quarantine")

    def run(rows: list[tuple[str, int]], *aside: str) -> JobResult:
        result = lab.job(files.load()).run(until="now", progress=False)
        assert result.finished is False
        assert lab.numbers() == rows
        found = [row for row in bad(lab) if row["raw"] is None]
        assert sorted(json.loads(row["position"])["file"] for row in found) == list(aside)
        assert all(row["reason"].startswith(f"file '{json.loads(row['position'])['file']}': ") for row in found)
        return result

    first = run([("a", 1)], "b.csv", "c.csv.gz")
    assert "1 bad row put aside, 2 files put aside: b.csv, c.csv.gz" in str(first)
    run([("a", 1)], "b.csv", "c.csv.gz")
    (place / "b.csv").write_text("channel,m,ts\nb,2,2024-01-01\n")
    (place / "c.csv.gz").write_bytes(packed)
    run([("a", 1), ("c", 3)], "b.csv", "b.csv")  # the row of c.csv.gz does not count any more: it was read
    assert len(bad(lab)) == 3


def test_a_job_that_failed_on_a_bad_row_continues_by_collecting(lab: JobHarness) -> None:
    with pytest.raises(JobFailedError, match=r"a row is bad: \d+ is a multiple of 10"):
        lab.run(dirty(lab, counts="30", on_bad_row="fail"))
    elsewhere = lab.folder / "elsewhere"
    assert lab.run(dirty(lab, counts="30", bad_rows_path=elsewhere)).finished
    assert lab.numbers() == all_good(30) and numbers_of(bad(lab, elsewhere)) == all_bad(30)


@pytest.mark.parametrize(
    ("limit", "words"),
    [({"max_bad_rows": 4}, "rows are bad, which is more than max_bad_rows=4"), ({"max_bad_share": 0.05}, "10.00%")],
    ids=["number", "share"],
)
def test_a_limit_stops_the_job_behind_the_epoch(lab: JobHarness, limit: dict[str, Any], words: str) -> None:
    job = lab.job(dirty(lab, counts="200000", max_rows_per_epoch=20, **limit))
    with pytest.raises(JobFailedError) as failed:
        job.run(progress=False)
    cause = str(failed.value)
    assert words in cause and str(lab.folder / "state" / "bad_rows" / "table") in cause
    there = numbers_of(bad(lab))
    good = lab.numbers()
    assert good == all_good(len(good) * 10 // 9) and there == all_bad(len(good) * 10 // 9)


def delta(lab: JobHarness, frame: DataFrame) -> Job:
    writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(lab.folder / "out"))
    return sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer)


def good(lab: JobHarness) -> list[tuple[str, int]]:
    table = pa.table(DeltaTable(str(lab.folder / "out")).scan())
    return sorted(zip(table["channel"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_after_a_reset_both_lineages_have_their_rows(lab: JobHarness) -> None:
    """As in the output, where they are twice as well."""

    def job() -> Job:
        return delta(lab, dirty(lab, counts="30", log=""))

    assert job().run(progress=False).finished
    job().reset("q")
    assert job().run(progress=False).finished
    assert good(lab) == sorted(all_good(30) * 2) and numbers_of(bad(lab)) == sorted(all_bad(30) * 2)
    assert {row["lineage"] for row in bad(lab)} == {1, 2}


def test_a_job_without_bad_rows_has_no_folder_for_them(lab: JobHarness) -> None:
    rows = lab.spark.readStream.format("numbers").options(uid="in", counts="30", on_bad_row="quarantine").load()
    assert lab.run(rows).finished
    assert not (lab.folder / "state" / "bad_rows").exists()


def strict(lab: JobHarness, frame: DataFrame, **options: Any) -> Job:
    """Into a table that refuses nulls, which every tenth row has."""
    kinds = {"channel": "string", "n": "long", "even": "long"}
    schema = Schema([Field(name, PrimitiveType(kind), nullable=name != "even") for name, kind in kinds.items()])
    if not DeltaTable.is_deltatable(str(lab.folder / "out")):
        DeltaTable.create(str(lab.folder / "out"), schema)
    rows = frame.selectExpr("channel", "n", "if(n % 10 = 0, null, n) AS even")
    writer = rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(lab.folder / "out"))
    given = {"on_bad_row": "quarantine", **options}
    writer = writer.options(**{name: str(value) for name, value in given.items()})
    return sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer)


def numbers(lab: JobHarness, counts: str, **options: Any) -> DataFrame:
    return lab.spark.readStream.format("numbers").options(uid="in", counts=counts, **options).load()


def refused(lab: JobHarness, place: Path | None = None) -> list[tuple[str, int]]:
    rows = [json.loads(row["raw"]) for row in bad(lab, place) if (row["role"], row["uid"]) == ("sink", "out")]
    return sorted((row["channel"], row["n"]) for row in rows)


@pytest.mark.core
def test_rows_that_a_sink_refuses_go_to_the_table(lab: JobHarness) -> None:
    job = strict(lab, numbers(lab, "50,60", max_rows_per_epoch=30))
    result = job.run(progress=False)
    assert result.finished and result.query("q").bad_rows == 11
    assert good(lab) == all_good(50, 60) and refused(lab) == all_bad(50, 60)
    ledger = Ledger(job.state_directory)
    rows = ledger.table(BadRowsRow).rows()
    assert {(row.source, row.role) for row in rows} == {("out", "sink")} and sum(row.rows for row in rows) == 11
    assert all("'even' may not be null" in row["reason"] for row in bad(lab))
    told = [row.what for row in ledger.table(IncidentRow).rows([("type", "=", "bad_rows")])]
    assert told[0].startswith("sink 'out' has bad rows")


@pytest.mark.slow(15, "runs a job to its end twice")
def test_after_a_restore_the_rows_of_the_savepoint_count(lab: JobHarness) -> None:
    """Those of the source, where every twentieth is bad, and those that the sink refuses, which are as many again."""

    def job(gate: str) -> Job:
        given: dict[str, Any] = {"bad_every": 20, "max_rows_per_epoch": 20, "gate": lab.folder / gate, "gate_at": "60"}
        return strict(lab, dirty(lab, counts="100", log="", **given))

    def whole(rows: int) -> bool:
        """Whether each of the first rows is in the target or in the table, once, and no other one is."""
        assert numbers_of(bad(lab)) == [("0", n) for n in range(0, rows, 20)]
        assert refused(lab) == [("0", n) for n in range(10, rows, 20)]
        return good(lab) == all_good(rows)

    first = job("one").start()
    log = SparkLog(str(lab.checkpoint()))
    until(lambda: (log.newest_commit() or 0) >= 2, "the epochs before the gate")
    place = str(lab.folder / "savepoint")
    first.savepoint(place)
    (lab.folder / "one").touch()
    assert first.wait(300)
    assert whole(100)
    again = job("two").restore(place)
    rows = len(good(lab)) * 10 // 9
    assert 0 < rows <= 60 and whole(rows)
    (lab.folder / "two").touch()
    assert again.run(progress=False).finished
    assert whole(100)
    assert {row["lineage"] for row in bad(lab)} == {1, 2}


def test_a_sink_that_cannot_put_rows_aside_refuses_the_option(lab: JobHarness) -> None:
    """One outside of a job, and one of a kind that does not do so."""
    writer = numbers(lab, "10").writeStream.options(uid="out", path=str(lab.folder / "out"), on_bad_row="quarantine")
    with pytest.raises(ConfigurationError, match="on_bad_row=quarantine: a sink of this kind"):
        sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer.format("folder"))
    stream = writer.format("delta_2pc").option("checkpointLocation", str(lab.folder / "checkpoint"))
    with pytest.raises(Exception, match="on_bad_row=quarantine needs a job"):
        stream.start().awaitTermination(60)
