"""The commands that deal with a job's past, over one history: run, stop, savepoint, rescale, restore, run."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_ext.script import load_function, make_job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.scripts import scripts_undone
from tests.support.waiting import until
from tests.test_cli import printed, spark_ext

SCRIPT = """
from pathlib import Path

import spark_ext as sx

HERE = Path(__file__).parent


def job(spark, place="first"):
    rows = spark.readStream.format("files").option("uid", "rows").option("path", str(HERE / "data"))
    once = rows.option("watch", "true").load().dropDuplicates(["n"])
    out = once.writeStream.format("delta_2pc").option("uid", "out").option("path", str(HERE / place / "out"))
    return sx.Job(spark, "distinct", state=HERE / place / "state").add("q", out)


def second(spark):
    return job(spark, "second")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "distinct.py").write_text(SCRIPT)
    with scripts_undone():
        yield tmp_path / "distinct.py"


def obeyed(*arguments: str) -> str:
    done = spark_ext(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def add(folder: Path, name: str, numbers: range) -> None:
    """A new file appears at once, as a whole."""
    pq.write_table(pa.table({"n": list(numbers)}), folder / f".{name}")
    (folder / f".{name}").rename(folder / f"{name}.parquet")


def found(place: str) -> list[int]:
    table = Path(place, "out")
    return sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) if DeltaTable.is_deltatable(str(table)) else []


def run_until(spark: SparkSession, script: Path, function: str, place: str, expected: list[int]) -> None:
    job = make_job(load_function(script, function, spark=spark), spark, "the test")
    job.start()
    try:
        log = SparkLog(str(Path(place, "state/queries/q/checkpoint")))
        until(lambda: found(place) == expected and log.newest_commit() == log.newest_offsets(), "all is committed")
    finally:
        job.stop()


@pytest.mark.slow(15, "a history of five starts of one job, with a command between each two")
def test_savepoint_rescale_restore(spark: SparkSession, script: Path) -> None:
    add(script.parent / "data", "a", range(10))
    run_until(spark, script, "job", "first", list(range(10)))

    assert "is complete: kept" in obeyed("savepoint", "distinct.py", "kept")

    assert "the state of query 'q' has 3 partitions" in obeyed("rescale", "distinct.py", "q", "3")
    add(script.parent / "data", "b", range(5, 15))
    run_until(spark, script, "job", "first", list(range(15)))

    # As another job: its outputs are its own, and hold what comes after the savepoint.
    other = ("--function", "second", "--state-partitions", "q=2")
    assert "restored from kept" in obeyed("restore", "distinct.py", "kept", *other)
    run_until(spark, script, "second", "second", list(range(10, 15)))

    obeyed("restore", "distinct.py", "kept")
    assert found("first") == list(range(10)), "the output was rolled back"
    run_until(spark, script, "job", "first", list(range(15)))

    kept = [row for row in printed("checkpoints", "first/state") if row["kind"] == "savepoint"]
    rows = [(row["status"], row["lineage"], row["path"].endswith("/kept")) for row in kept]
    assert rows == [("COMPLETED", 1, True), ("COMPLETED", 2, True)], "taken in one lineage, and the begin of another"


@pytest.mark.usefixtures("spark")
def test_what_is_refused(script: Path) -> None:
    add(script.parent / "data", "a", range(10))
    for arguments, said in (
        (["savepoint", "distinct.py", "kept"], "the job has not been started"),
        (["restore", "distinct.py", "nothing"], "nothing"), (["rescale", "distinct.py", "other", "3"], "'other'"),
        (["restore", "distinct.py", "kept", "--state-partitions", "q=many"], "'many' is not a number of partitions"),
    ):  # fmt: skip
        done = spark_ext(*arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not Path("first/state/queries").exists() and not Path("first/out").exists(), "nothing was begun"
