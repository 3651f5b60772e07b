"""Bad input: a clear error that names the operator and says what to do; a good run afterwards ends, and is exact."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError, FencedError, StateError, UnsupportedTableError
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger, start_incarnation
from tests.support.cheap_jvm import forking
from tests.support.jobs import JobHarness, expected
from tests.support.processes import Tree
from tests.support.refusals import delta_job, delta_numbers, first_epoch, refused
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


def files(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("files").option("uid", "files").option("path", str(path)).options(**options).load()


def write_file(path: Path, rows: int, n: Callable[[int], Any] = int) -> None:
    """Rows (channel, n), the channel named after the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"channel": [path.stem] * rows, "n": [n(row) for row in range(rows)]}), path)


def held(column: str, after: int, gate: Path) -> Column:
    """True for each row; a row from `after` on waits for the gate, and with it its epoch."""

    def passed(n: int) -> bool:
        import time
        from pathlib import Path

        limit = time.monotonic() + 60
        while n >= after and not Path(place).exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return True

    place = str(gate)
    return F.udf(passed, "boolean").asNondeterministic()(column)


def test_a_uid_that_is_missing_or_stands_for_two(lab: JobHarness) -> None:
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    rows = lab.spark.readStream.format("numbers").load()
    with refused(ConfigurationError, "numbers (no uid)", "'uid' is missing", '.option("uid"'):
        job.add("q", rows.writeStream.format("folder").options(uid="q-out", path=str(lab.folder / "out")))
    writer = lab.source(counts="10").writeStream.format("folder").option("path", str(lab.folder / "out"))
    with refused(ConfigurationError, "folder (no uid)", "'uid' is missing", '.option("uid"'):
        job.add("q", writer)
    # A uid of a source and a sink, and of two queries. Within a plan and over two queries' sources: conformance, R12.
    with refused(ConfigurationError, "query 'q'", "uid 'q-out' stands for 2 operators (folder, numbers)"):
        job.add("q", lab.source("q-out", counts="10").writeStream.format("folder").options(uid="q-out", path="nowhere"))
    assert not (lab.folder / "state").exists()
    job.add("q", writer.option("uid", "q-out"))
    with refused(ConfigurationError, "job 'lab'", "has a query 'q' already"):
        lab.add(job, lab.source("other", counts="10"), query="q", out="other")
    assert job.run(progress=False).finished
    assert lab.numbers() == expected(10)


@pytest.mark.slow(25, "runs a job six times")
def test_a_job_refuses_other_inferred_columns_than_those_it_began_with(lab: JobHarness) -> None:
    """They come after the kept ones were deleted, and other files were there by then; put back, the job continues.

    A column that comes later is refused until the option says that it may be added, also if another job has added it.
    """
    place, kept = lab.folder / "files", lab.folder / "schema.json"
    place.mkdir()
    (place / "a.csv").write_text("channel,n\na,1\n")

    def run(**more: str) -> None:
        files = lab.spark.readStream.format("files").options(uid="files", path=str(place), header="true", watch="true")
        frame = files.options(infer="true", schema_location=str(kept), **more).load()
        lab.job(frame.selectExpr("channel", "cast(n as bigint) n")).run(until="now", progress=False)

    run()
    content = kept.read_text()
    kept.unlink()
    (place / "a.csv").write_text("channel,n\na,01\n")
    with refused(ConfigurationError, "q", "option 'schema' of source 'files' was '`channel` string, `n` bigint'"):
        run()
    (place / "b.csv").write_text("channel,n\nb,2\n")
    kept.write_text(content)
    run()
    assert lab.numbers() == [("a", 1), ("b", 2)]
    (place / "c.csv").write_text("channel,n,m\nc,3,x\n")
    with refused(DataError, "file 'c.csv'", "columns m are not among", "schema_evolution=add_columns"):
        run()
    lab.spark.readStream.format("files").options(
        uid="other", path=str(place), header="true", infer="true", schema_location=str(kept),
        schema_evolution="add_columns",
    ).load()  # fmt: skip
    with refused(ConfigurationError, "q", "option 'schema.m' of source 'files' was not set, and is 'string'"):
        run()
    run(schema_evolution="add_columns")
    assert lab.numbers() == [("a", 1), ("b", 2), ("c", 3)]


def test_an_unknown_option(lab: JobHarness) -> None:
    with refused(ConfigurationError, "numbers in", "unknown option 'count'; did you mean 'counts'?"):
        lab.source(count="10")
    with refused(ConfigurationError, "folder q-out", "unknown option 'fail_commit'; did you mean 'fail_commits'?"):
        lab.job(lab.source(counts="10"), sink_fail_commit=1)
    with refused(ConfigurationError, "job 'lab'", "setting 'intervall'", "interval"):
        lab.job(lab.source(counts="10"), intervall="1 s")
    with refused(ConfigurationError, "numbers in", "option 'max_rows_per_epoch'", "'many'"):
        lab.source(counts="10", max_rows_per_epoch="many")
    assert not (lab.folder / "state").exists()


def test_a_missing_path(lab: JobHarness) -> None:
    place = lab.folder / "in"
    with refused(ConfigurationError, "source 'files'", f"no file or folder '{place}'", "'path'"):
        files(lab.spark, place)
    reader = lab.spark.readStream.format("files").schema("channel string, n bigint")
    frame = reader.option("uid", "files").option("path", str(place)).load()
    job = lab.job(frame)
    with refused(ConfigurationError, "source 'files'", f"no file or folder '{place}'", "'path'"):
        job.start()
    write_file(place / "0.parquet", 10)
    assert lab.job(frame).run(progress=False).finished
    assert lab.numbers() == expected(10)


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
def test_a_parquet_file_that_is_truncated_in_the_middle_of_a_run(lab: JobHarness) -> None:
    """It is refused because it has changed and, where changed files are accepted, because it is damaged."""
    place, gate = lab.folder / "in", lab.folder / "gate"
    write_file(place / "0.parquet", 100)
    write_file(place / "1.parquet", 100)
    second = place / "1.parquet"
    whole, there = second.read_bytes(), second.stat()

    def job(changed_files: str = "refuse") -> Job:
        frame = files(lab.spark, place, max_rows_per_epoch=50, readers=1, changed_files=changed_files)
        return lab.job(frame.where(held("n", 50, gate)))

    running = job().start()
    try:
        first_epoch(lab)
        second.write_bytes(whole[: len(whole) // 2])
    finally:
        gate.touch()
    with refused(DataError, "source 'files'", "file '1.parquet'", "bytes when it was discovered"):
        running.await_termination(300)
    with refused(DataError, "source 'files'", "file '1.parquet'", "it is damaged"):
        job("accept").run(progress=False)
    assert lab.numbers() == expected(100)
    second.write_bytes(whole)
    os.utime(second, ns=(there.st_atime_ns, there.st_mtime_ns))
    assert job().run(progress=False).finished
    assert lab.numbers() == expected(100, 100)


def test_a_column_of_another_type_in_a_file(lab: JobHarness) -> None:
    place = lab.folder / "in"
    write_file(place / "0.parquet", 10)
    write_file(place / "1.parquet", 10, str)
    there = (place / "1.parquet").stat()

    def job() -> Job:
        return lab.job(files(lab.spark, place, max_rows_per_epoch=10, readers=1, changed_files="accept"))

    with refused(DataError, "source 'files'", "file '1.parquet'", "column 'n'", "string"):
        job().run(progress=False)
    assert lab.numbers() == expected(10)
    write_file(place / "1.parquet", 10)
    os.utime(place / "1.parquet", ns=(there.st_atime_ns, there.st_mtime_ns))
    assert job().run(progress=False).finished
    assert lab.numbers() == expected(10, 10)


def test_a_target_with_another_type_or_an_unsupported_feature(lab: JobHarness) -> None:
    mapped = "TBLPROPERTIES('delta.columnMapping.mode'='name')"
    lab.spark.sql(f"CREATE TABLE delta.`{lab.folder / 'mapped'}` (channel STRING, n BIGINT) USING delta {mapped}")
    lab.spark.sql(f"CREATE TABLE delta.`{lab.folder / 'out'}` (channel STRING, n STRING) USING delta")
    frame = lab.source(counts="10").select("channel", "n")
    with refused(UnsupportedTableError, "sink 'q-out'", "columnMapping", str(lab.folder / "mapped")):
        delta_job(lab, frame, out="mapped").start()
    with refused(ConfigurationError, "sink 'q-out'", "column 'n'", "string", "bigint", "cast"):
        delta_job(lab, frame).start()
    assert [DeltaTable(lab.folder / table).version() for table in ("mapped", "out")] == [0, 0]
    assert not lab.spark.streams.active
    assert delta_job(lab, frame.withColumn("n", F.col("n").cast("string"))).run(progress=False).finished
    assert delta_numbers(lab.folder / "out") == [(channel, str(n)) for channel, n in expected(10)]


DRIVER = """
import sys
from pathlib import Path

import spark_ext as sx
from tests.support.jobs import JobHarness

conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
lab = JobHarness(sx.session("first", master="local[2]", conf=conf), Path(sys.argv[1]))
lab.job(lab.source(live="true")).run(progress=False)
"""


def test_two_drivers_on_one_job(lab: JobHarness) -> None:
    with Tree([sys.executable, "-c", DRIVER, lab.folder], lab.folder / "first.log", forking(ROOT)) as first:
        until(lambda: lab.rows() or first.poll() is not None, "rows of the first driver")
        assert first.poll() is None, first.text()
        with refused(StateError, "job 'lab'", f"is running as incarnation 1 in process {first.pid}", "takeover=True"):
            lab.job(lab.source(live="true")).start()
        assert first.poll() is None, first.text()
        second = lab.job(lab.source(live="true"), takeover=True).start()
        assert first.wait(300) == 1, first.text()
        said = first.text()
        # Whichever it meets first, the ledger's fence or the target's.
        fenced = r"JobFailedError: \[JOB_FAILED\] (incarnation 2 of the job|a newer incarnation has the folder)"
        assert re.search(fenced, said), said
        assert "the newer incarnation continues" in said, said
    before = len(lab.rows())
    until(lambda: len(lab.rows()) > before or second.done, "rows of the second driver")
    assert second.drain(300).finished
    assert lab.numbers() == expected(len(lab.rows()))


def test_a_failure_of_a_driver_that_was_fenced_off_says_so(lab: JobHarness) -> None:
    """A newer driver removes what older ones are writing, which then fail with errors of files."""
    gate = lab.folder / "gate"
    source = lab.source(counts="100", max_rows_per_epoch=20, gate=gate)
    job = lab.job(source.selectExpr("channel", "CASE WHEN n < 20 THEN n ELSE raise_error('broken') END AS n")).start()
    first_epoch(lab)
    newer = start_incarnation(Ledger(str(lab.folder / "state")), "lab", takeover=True)
    gate.touch()
    # Whether it looks at the fence because the query has failed, or meets it with a row that it writes before.
    with refused(FencedError, "job 'lab'", f"incarnation {newer.number}", "let the newer"):
        job.await_termination(300)


def test_two_jobs_of_one_session_on_one_state(lab: JobHarness) -> None:
    """Of one name, and of two: a state directory belongs to one job."""
    gate = lab.folder / "gate"
    source: dict[str, Any] = {"counts": "100", "max_rows_per_epoch": 20, "gate": gate}
    first = lab.job(lab.source(**source)).start()
    first_epoch(lab)
    with refused(StateError, "job 'lab'", "is running as incarnation 1", "takeover=True"):
        lab.job(lab.source(**source)).start()
    other = sx.Job(lab.spark, "other", state=lab.folder / "state", takeover=True)
    lab.add(other, lab.source(**source), query="q", out="other")
    with refused(StateError, "job 'other'", "belongs to job 'lab'", "a state directory of its own"):
        other.run(progress=False)
    assert not (lab.folder / "other").exists()
    second = lab.job(lab.source(**source), takeover=True).start()
    with refused(FencedError, "job 'lab'", "incarnation 2"):
        first.await_termination(300)
    gate.touch()
    assert second.await_termination(300).finished
    assert lab.numbers() == expected(100)
