"""Histories of jobs: an upsert whose key changes before the end, and a savepoint of a job that follows a table."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import SparkExtError
from spark_ext.jobs.job import Job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.jobs.changes import NEVER
from tests.support.waiting import until


def test_an_unfinished_upsert_does_not_start_with_another_key(spark: SparkSession, tmp_path: Path) -> None:
    """Refused by the name of the option, whether or not an epoch is planned; with the former key it is exact."""
    log = SparkLog(str(tmp_path / "state" / "queries" / "q" / "checkpoint"))

    def job(key: str = "id", **settings: Any) -> Job:
        rows = spark.readStream.format("datagen").options(uid="rows", rows="200", max_rows_per_epoch="100").load()
        rows = rows.selectExpr("id % 70 AS id", "id % 7 AS part", "id AS at", "value")
        rule = {"mode": "upsert", "key": key, "newest_by": "at"}
        made = sx.Job(spark, "upserts", state=tmp_path / "state", **settings)
        return made.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=f"{tmp_path}/t", **rule))

    running = job(interval=NEVER).start()
    until(lambda: log.newest_commit() == 0, "the first epoch")
    running.stop()
    version, other = DeltaTable(tmp_path / "t").version(), job("id,part")
    for in_doubt in (False, True):
        if in_doubt:  # as a kill between the sink's commit and Spark's leaves it
            for file in (tmp_path / "state" / "queries" / "q" / "checkpoint" / "commits").iterdir():
                file.unlink()
            for name in ("epochs", "finished", "checkpoints"):
                DeltaTable(tmp_path / "state" / "ledger" / name).delete("query = 'q' OR query = ''")
        with pytest.raises(SparkExtError, match="option 'key' of sink 'out' was 'id', and is 'id,part'"):
            other.start()
        assert DeltaTable(tmp_path / "t").version() == version, "nothing of it was started"
    assert job().run(progress=False).finished
    found = DeltaTable(tmp_path / "t").to_pandas().sort_values("id")
    assert dict(zip(found["id"], found["at"], strict=True)) == {at % 70: at for at in range(200)} and len(found) == 70


def append(table: Path, *ids: int) -> None:
    write_deltalake(table, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def settled(folder: Path) -> bool:
    """Whether Spark has committed what its query has planned: the sink commits before, and a savepoint is of both."""
    log = SparkLog(str(folder / "state" / "queries" / "q" / "checkpoint"))
    return log.newest_commit() == max(log.numbers("offsets"), default=None)


def following(spark: SparkSession, folder: Path) -> Job:
    given = {"uid": "in", "path": str(folder / "in"), "follow": "true", "poll_interval": "100"}
    rows = spark.readStream.format("delta_snapshot").options(**given).load()
    made = sx.Job(spark, "follow", state=folder / "state")
    return made.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "out")))


@pytest.mark.slow(30, "starts a job four times")
def test_a_job_that_follows_a_table_goes_back_to_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """The versions after the savepoint are read again, and no row is in the target twice."""
    job, table, out = partial(following, spark, tmp_path), tmp_path / "in", tmp_path / "out"
    append(table, *range(10))

    def written() -> Counter[int]:
        return Counter(DeltaTable(out).to_pandas()["id"].tolist()) if out.exists() else Counter()

    def once(last: int) -> Counter[int]:
        return Counter(range(last))

    running = job().start()
    until(lambda: len(written()) == 10, "the table as it was")
    append(table, 10, 11)
    until(lambda: len(written()) == 12 and settled(tmp_path), "a version")
    running.stop(savepoint=tmp_path / "savepoint")
    assert written() == once(12)
    running = job().start()
    append(table, 12, 13)
    append(table, 14)
    until(lambda: len(written()) == 15, "two more versions")
    running.stop()
    assert written() == once(15)
    job().restore(tmp_path / "savepoint")
    assert written() == once(12), "the target is put back"
    append(table, 15)
    running = job().start()
    until(lambda: len(written()) == 16, "all versions since the savepoint")
    append(table, 16)
    until(lambda: len(written()) == 17, "and later ones")
    running.stop()
    assert written() == once(17)
    append(table, 17)
    job().restore(tmp_path / "savepoint")
    running = job().start()
    until(lambda: len(written()) == 18, "once more")
    running.stop()
    assert written() == once(18)


def test_the_savepoint_of_another_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A table in the place of the one that was followed has other versions."""
    job, table, out = partial(following, spark, tmp_path), tmp_path / "in", tmp_path / "out"
    append(table, 1)
    running = job().start()
    until(lambda: out.exists() and len(DeltaTable(out).to_pandas()) == 1 and settled(tmp_path), "a row")
    running.stop(savepoint=tmp_path / "savepoint")
    table.rename(tmp_path / "former")
    append(table, 7)
    with pytest.raises(SparkExtError, match="is not the table that this source has begun with"):
        job().restore(tmp_path / "savepoint").run(progress=False)
    assert DeltaTable(out).to_pandas()["id"].tolist() == [1]
