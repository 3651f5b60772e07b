"""Queries that are not stuck, and look as if they were: idle, slow, paused, throttled, skewed, waiting for a slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import spark_ext as sx

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Healthy = Callable[["SparkSession", sx.Job, "Callable[..., DataFrame]", Path], Any]
"""Adds a query to a job, and returns a context in which it runs, or None."""


def _burn(milliseconds: float) -> Any:
    @F.udf("long")
    def burns(n: int) -> int:
        end = time.process_time() + milliseconds / 1000
        while time.process_time() < end:
            pass
        return n

    return burns


def _naps(milliseconds: float) -> Any:
    @F.udf("long")
    def naps(n: int) -> int:
        time.sleep(milliseconds / 1000)
        return n

    return naps


def _noop(frame: DataFrame) -> Any:
    return frame.writeStream.format("noop")


def _idle(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    # Nothing comes after the first epoch.
    job.add("q", _noop(source(rate=20, gate=folder / "never")))


def _idle_with_state(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    counted = sx.with_watermark(source(rate=20, gate=folder / "never"), "ts", "1 second").groupBy("ts").count()
    job.add("q", _noop(counted).outputMode("append"))


def _paused(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    job.add("q", _noop(source(rate=20)))

    @contextmanager
    def during() -> Iterator[None]:
        job.control.pause(wait=60)
        yield

    return during()


def _computes(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    # Some 20 s an epoch: 300 rows of 60 ms.
    job.add("q", _noop(source(rate=300, limit=300).withColumn("m", _burn(60)("n"))))


def _sleeps_a_little(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    job.add("q", _noop(source(rate=300, limit=400).withColumn("m", _naps(40)("n"))))


def _skewed(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    rows = source(rate=100, limit=200).withColumn(
        "m", F.when(F.col("n") % 2 == 0, _burn(80)("n")).otherwise(F.col("n"))
    )
    job.add("q", _noop(rows.repartition(2, F.lit(1))))


def _throttled(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    job.add("q", _noop(source(rate=20)))


def _few_rows(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    job.add("q", _noop(source(rate=1)))

    @contextmanager
    def during() -> Iterator[None]:
        job.control.rate_limit(f"source:{folder.name}", 1, wait=60)
        yield

    return during()


def _larger_epochs(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    # After the pause an epoch has a hundred times as many rows, and takes half a minute or more.
    job.add("q", _noop(source(rate=30).withColumn("m", _naps(16)("n"))))

    @contextmanager
    def during() -> Iterator[None]:
        by = time.monotonic() + 120
        while job.snapshot().query("q").epochs < 15 and time.monotonic() < by:
            time.sleep(0.2)
        job.control.pause(wait=60)
        time.sleep(80.0)
        job.control.resume()
        yield

    return during()


def _no_slot(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    job.add("q", _noop(source(rate=20)))
    gate = str(folder / "gate")

    @contextmanager
    def during() -> Iterator[None]:
        def hold(_: int) -> None:
            import time
            from pathlib import Path

            while not Path(gate).exists():
                time.sleep(0.1)

        slots = spark.sparkContext.defaultParallelism
        held = threading.Thread(
            target=lambda: spark.sparkContext.parallelize(range(slots), slots).foreach(hold), daemon=True
        )
        held.start()
        try:
            yield
        finally:
            Path(gate).touch()
            held.join(60)

    return during()


def _computes_in_java(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    many = source(rate=50, limit=50).withColumn("k", F.explode(F.sequence(F.lit(1), F.lit(400_000))))
    job.add("q", _noop(many.where(F.sha2(F.concat("k", "n"), 512) == "x")))


def _foreach_batch(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    def writes(frame: DataFrame, epoch: int) -> None:
        for _ in range(30):
            frame.sparkSession.range(1000).count()
            time.sleep(0.3)

    job.add("q", source(rate=20).writeStream.foreachBatch(writes))


def _long_epochs(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    def writes(frame: DataFrame, epoch: int) -> None:
        time.sleep(3.0)

    job.add("q", source(rate=20).writeStream.foreachBatch(writes))


def _bursts(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    @F.udf("long")
    def burns_at_times(n: int) -> int:
        end = time.process_time() + (4.0 if n % 500 == 499 else 0.0)
        while time.process_time() < end:
            pass
        return n

    job.add("q", _noop(source(rate=100).withColumn("m", burns_at_times("n"))))


def _restarts(spark: SparkSession, job: sx.Job, source: Any, folder: Path) -> Any:
    flag = folder / "failed"

    @F.udf("long")
    def fails_once(n: int) -> int:
        if n > 100 and not flag.exists():
            flag.touch()
            raise ConnectionError("once")
        return n

    job.add("q", _noop(source(rate=40).withColumn("m", fails_once("n"))))


INTERVALS = {"throttled": "8 s"}
"""Of jobs that start their epochs more seldom than the others."""

LIGHT = (
    "idle",
    "idle with state",
    "paused",
    "throttled",
    "one row a second",
    "epochs of 3 s",
    "larger epochs",
    "restarts",
)
"""Those that leave slots and processors to others, and may run beside each other."""

CASES: dict[str, Healthy] = {
    "idle": _idle,
    "idle with state": _idle_with_state,
    "paused": _paused,
    "computes for 20 s an epoch": _computes,
    "sleeps 40 ms a row": _sleeps_a_little,
    "skewed": _skewed,
    "throttled": _throttled,
    "one row a second": _few_rows,
    "larger epochs": _larger_epochs,
    "no slot": _no_slot,
    "computes in Java": _computes_in_java,
    "many small jobs in foreachBatch": _foreach_batch,
    "epochs of 3 s": _long_epochs,
    "bursts": _bursts,
    "restarts": _restarts,
}
