"""Queries that are not stuck, and look as if they were: idle, slow, paused, throttled, skewed, waiting for a slot."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from tests.stalls import operators
from tests.support.waiting import until

Source = Callable[..., DataFrame]


def _burn(milliseconds: float, every: int = 1) -> Any:
    @F.udf("long")
    def burns(n: int) -> int:
        end = time.process_time() + (milliseconds / 1000 if n % every == every - 1 else 0.0)
        while time.process_time() < end:
            pass
        return n

    return burns("n")


def _naps(milliseconds: float) -> Any:
    @F.udf("long")
    def naps(n: int) -> int:
        time.sleep(milliseconds / 1000)
        return n

    return naps("n")


def _noop(frame: DataFrame) -> Any:
    return frame.writeStream.format("noop")


def _idle_with_state(source: Source, folder: Path) -> Any:
    counted = sx.with_watermark(source(rate=20, gate=folder / "never"), "ts", "1 second").groupBy("ts").count()
    return _noop(counted).outputMode("append")


def _skewed(source: Source, folder: Path) -> Any:
    burned = F.when(F.col("n") % 2 == 0, _burn(80)).otherwise(F.col("n"))
    return _noop(source(rate=100, limit=200).withColumn("m", burned).repartition(2, F.lit(1)))


def _computes_in_java(source: Source, folder: Path) -> Any:
    many = source(rate=50, limit=50).withColumn("k", F.explode(F.sequence(F.lit(1), F.lit(400_000))))
    return _noop(many.where(F.sha2(F.concat("k", "n"), 512) == "x"))


def _foreach_batch(source: Source, folder: Path) -> Any:
    def writes(frame: DataFrame, epoch: int) -> None:
        for _ in range(30):
            frame.sparkSession.range(1000).count()
            time.sleep(0.3)

    return source(rate=20).writeStream.foreachBatch(writes)


def _long_epochs(source: Source, folder: Path) -> Any:
    return source(rate=20).writeStream.foreachBatch(lambda frame, epoch: time.sleep(3.0))


def _restarts(source: Source, folder: Path) -> Any:
    flag = folder / "failed"

    @F.udf("long")
    def fails_once(n: int) -> int:
        if n > 100 and not flag.exists():
            flag.touch()
            raise ConnectionError("once")
        return n

    return _noop(source(rate=40).withColumn("m", fails_once("n")))


def _at(rate: int) -> Callable[[Source, Path], Any]:
    return lambda source, folder: _noop(source(rate=rate))


CASES: dict[str, Callable[[Source, Path], Any]] = {
    "idle": lambda source, folder: _noop(source(rate=20, gate=folder / "never")),  # after the first epoch
    "idle with state": _idle_with_state,
    "paused": _at(20),
    "computes for 20 s an epoch": lambda source, _: _noop(source(rate=300, limit=300).withColumn("m", _burn(60))),
    "sleeps 40 ms a row": lambda source, _: _noop(source(rate=300, limit=400).withColumn("m", _naps(40))),
    "skewed": _skewed,
    "throttled": _at(20),
    "one row a second": _at(1),
    "larger epochs": lambda source, _: _noop(source(rate=30).withColumn("m", _naps(16))),
    "no slot": _at(20),
    "computes in Java": _computes_in_java,
    "many small jobs in foreachBatch": _foreach_batch,
    "epochs of 3 s": _long_epochs,
    "bursts": lambda source, _: _noop(source(rate=100).withColumn("m", _burn(4_000, every=500))),
    "restarts": _restarts,
}
"""What a query writes, given a source and a folder."""


def _held(job: sx.Job, source: Source, folder: Path, most: int) -> None:
    # One partition: a reader that took all slots would be what the producer waits for.
    held = job.exchange("held", partitions=1, max_in_flight=100)
    job.add("q", held.write(source(rate=200, limit=50)))
    read = held.read(f"{folder.name}-held", max_rows_per_epoch=most)
    job.add("slow", _noop(read.mapInArrow(operators.sleeps_for_each_row, read.schema)))


HELD: dict[str, Callable[[sx.Job, Source, Path], None]] = {
    "held by a slower reader": lambda job, source, folder: _held(job, source, folder, 25),
    "held by long epochs": lambda job, source, folder: _held(job, source, folder, 250),
}
"""Jobs of two queries, of which `q` waits for the other one, which is slow in a line of its own."""

INTERVALS = {"throttled": "8 s"}  # of jobs that start their epochs more seldom than the others
LIGHT = (
    "idle", "idle with state", "paused", "throttled", "one row a second", "epochs of 3 s", "larger epochs", "restarts",
)  # fmt: skip
"""Those that leave slots and processors to others, and may run beside each other."""


@contextmanager
def _paused(spark: SparkSession, job: sx.Job, folder: Path) -> Iterator[None]:
    job.control.pause(wait=60)
    yield


@contextmanager
def _limited(spark: SparkSession, job: sx.Job, folder: Path) -> Iterator[None]:
    job.control.rate_limit(f"source:{folder.name}", 1, wait=60)
    yield


@contextmanager
def _enlarged(spark: SparkSession, job: sx.Job, folder: Path) -> Iterator[None]:
    """After the pause an epoch has a hundred times as many rows, and takes half a minute or more."""
    by = time.monotonic() + 120
    while job.snapshot().query("q").epochs < 15 and time.monotonic() < by:
        time.sleep(0.2)
    job.control.pause(wait=60)
    time.sleep(80.0)
    job.control.resume()
    yield


@contextmanager
def taken_slots(spark: SparkSession, gate: Path) -> Iterator[None]:
    """All slots of a session are taken by another Spark job, as long as the block runs."""
    place, context = str(gate), spark.sparkContext

    def hold(_: int) -> None:
        import time
        from pathlib import Path

        while not Path(place).exists():
            time.sleep(0.05)

    slots = context.parallelize(range(context.defaultParallelism), context.defaultParallelism)
    held = threading.Thread(target=slots.foreach, args=(hold,), daemon=True)
    held.start()
    until(lambda: len(context.statusTracker().getActiveJobsIds()) > 0, "the other job runs")
    try:
        yield
    finally:
        gate.touch()
        held.join(60)


def _without_slots(spark: SparkSession, job: sx.Job, folder: Path) -> AbstractContextManager[None]:
    return taken_slots(spark, folder / "gate")


DURING: dict[str, Callable[[SparkSession, sx.Job, Path], AbstractContextManager[None]]] = {
    "paused": _paused, "one row a second": _limited, "larger epochs": _enlarged, "no slot": _without_slots,
}  # fmt: skip
"""What is done to the job while it runs."""
