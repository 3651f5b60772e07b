"""A job with a savepoint taken half-way, prepared once per test process and put back before each test that needs it.

Generated rows -> `rows` -> exchange x -> `unique` (first rows of each key, by state) -> the Delta table `unique`. Of
the 80 rows of two channels the last 40 have the keys of the first: one too many, or missing, shows what the state knew.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.jobs.job import Job
from tests.support import attached
from tests.support.folders import folder_snapshot
from tests.support.jobs import expected, numbers, register
from tests.support.refusals import delta_numbers
from tests.support.waiting import until

ALL = expected(40, 40)  # the content of the table when the job has finished


def held(frame: DataFrame, gate: Path, at: int, column: str = "n") -> DataFrame:
    """The same rows; while a file does not exist, a task that meets a number from `at` on waits for it."""
    place = str(gate)

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        for batch in batches:
            while any(n >= at for n in batch[column].to_pylist()) and not Path(place).exists():
                time.sleep(0.01)
            yield batch

    return frame.mapInArrow(waits, frame.schema)


def watermarked(frame: DataFrame) -> DataFrame:
    """Rows with a watermark under which none is late: at first Spark takes those of 1970-01-01 00:00 for late."""
    return sx.with_watermark(frame.withColumn("ts", F.col("ts") + F.expr("INTERVAL 1 DAY")), "ts", "1 day")


def first_rows(frame: DataFrame, *keys: str) -> DataFrame:
    """The first row of each key, known from state."""
    return watermarked(frame).dropDuplicatesWithinWatermark(list(keys))


def of_snapshot(file: Path) -> bool:
    """Whether a file is of a snapshot of state: Spark's maintenance writes them when it likes, also after the query."""
    return file.parent.name == "SSTs" or ".zip" in file.name


@dataclass(frozen=True)
class Chain:
    """The job over a folder, in which its state directory and output are."""

    spark: SparkSession
    folder: Path

    @property
    def savepoint(self) -> Path:
        """Taken when the source had read 30 rows of each channel, and `unique` some of them."""
        return self.folder / "savepoint"

    def source(self, uid: str = "in", counts: str = "80,80") -> DataFrame:
        """Rows with a key `k`; only the first 60 while the file `gate` does not exist."""
        frame = numbers(self.spark, uid, counts=counts, max_rows_per_epoch=60, gate=self.folder / "gate")
        return frame.select("channel", "n", (F.col("n") % 40).alias("k"), "ts")

    def unique(self, rows: DataFrame) -> DataFrame:
        rows = held(rows, self.folder / "release", 25)
        return first_rows(rows, "channel", "k").select("channel", F.col("k").alias("n"))

    def table(self, frame: DataFrame, uid: str = "unique", out: str = "out") -> Any:
        return frame.writeStream.format("delta_2pc").option("uid", uid).option("path", str(self.folder / out / uid))

    def empty(self, state: str = "state", **settings: Any) -> Job:
        return sx.Job(self.spark, "chain", state=self.folder / state, **settings)

    def job(self, state: str = "state", out: str = "out", **settings: Any) -> Job:
        job = self.empty(state, **settings)
        x = job.exchange("x", partitions=4, key="k")
        job.add("rows", x.write(self.source()))
        return job.add("unique", self.table(self.unique(x.read("x-in", max_rows_per_epoch=20)), out=out))

    def written(self, out: str = "out") -> list[tuple[str, int]]:
        """The rows in the table, sorted; a repeated row appears twice."""
        place = self.folder / out / "unique"
        return delta_numbers(place) if DeltaTable.is_deltatable(str(place)) else []

    def content(self) -> dict[str, str]:
        """Every file in the folder but the ledger's and snapshots of state, and a hash of its content."""
        ledger = self.folder / "state" / "ledger"
        files = [
            file
            for file in self.folder.rglob("*")
            if file.is_file() and ledger not in file.parents and not of_snapshot(file)
        ]
        return {str(file.relative_to(self.folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def prepare(chain: Chain) -> None:
    """Take the savepoint while `unique` stands still in the middle of what is in flight; run the job to its end."""
    job = chain.job().start()
    until(lambda: job.snapshot().queries[1].rows > 0 or job.done, "the first epoch of `unique`")
    job.savepoint(chain.savepoint)
    (chain.folder / "gate").touch()
    (chain.folder / "release").touch()
    assert job.await_termination(300).finished
    assert chain.written() == ALL


@pytest.fixture(scope="session")
def prepared(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The job when it has finished, with its savepoint; and what puts everything back to that."""
    register(spark_of_process)
    chain = Chain(spark_of_process, tmp_path_factory.mktemp("chain") / "job")
    chain.folder.mkdir()
    prepare(chain)
    yield chain, folder_snapshot(chain.folder)
    shutil.rmtree(chain.folder)


@pytest.fixture
def chain(prepared: Any, spark: SparkSession) -> Chain:
    """The finished job, as it was prepared, and its savepoint."""
    found, put_back = prepared
    put_back()
    return found


def act(gateway: attached.Gateway, folder: Path, action: str, savepoint: Path) -> None:
    """Restore, rescale or save the job, in a process of its own that is killed at a fail point."""
    spark = attached.session(gateway)
    register(spark)
    chain = Chain(spark, folder)
    if action == "restore":
        chain.job().restore(chain.savepoint, state_partitions={"unique": 3})
    elif action == "rescale":
        chain.job().rescale("unique", 3)
    else:
        chain.job().savepoint(savepoint)
