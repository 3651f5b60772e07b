"""`sx.control.config()` in the tasks of a running job: its first call in an epoch, and each further one.

A function in `mapInArrow` measures both in its worker, in every task, while keys are set several times a second. An
epoch with a new configuration has a stamp that no process has read yet; the others have one that is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._control import JOB
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import checkpoint_of, session, until, workplace
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 2
EPOCHS = 200
WARM = 10
BATCHES, CALLS = 21, 100
"""Further calls in a task: the median of some batches of calls, which a preemption does not change."""
EVERY = 5  # epochs between two changes, about
KEYS = 20
CALL_US, EPOCH_MS = 1.0, 1.0


def run(rounds: int = ROUNDS) -> Figures:
    found: list[dict[str, float]] = []
    with session("control_config") as spark:
        for _ in range(rounds):
            found += _measured(spark)
    call = Sample.of([one["call"] for one in found], "us")
    bare = Sample.of([one["bare"] for one in found], "us")
    first = Sample.of([one["first"] / 1000 for one in found], "ms")
    changed = Sample.of([one["first"] / 1000 for one in found if one["changed"]], "ms")
    known = Sample.of([one["first"] / 1000 for one in found if not one["changed"]], "ms")
    notes = {"tasks": len(found), "keys": KEYS, "further calls in a task": BATCHES * CALLS}
    yield Figure(
        "control_config_call", f"a further call of config() in a task / {CALL_US:g} us", call.median / CALL_US,
        Aim("<=", 1), {"config()": call, "a call of a function that does nothing": bare},
        {**notes, "p99, us": round(call.percentile(99), 3)},
    )  # fmt: skip
    yield Figure(
        "control_config_epoch", f"the first call of config() of a process in an epoch / {EPOCH_MS:g} ms",
        first.median / EPOCH_MS, Aim("<=", 1),
        {"all": first, "configuration changed": changed, "as in the epoch before": known},
        {**notes, "p99, ms": round(first.percentile(99), 3)},
    )  # fmt: skip


def _measured(spark: SparkSession) -> list[dict[str, float]]:
    """What each task has measured: us."""
    batches, calls = BATCHES, CALLS

    def measure(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def nothing() -> None:
            pass

        def us_each(function: Callable[[], object], count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                function()
            return (time.perf_counter() - begin) * 1e6 / count

        config = sx.control.config
        values = [us_each(config, 1)]
        values += [median(us_each(function, calls) for _ in range(batches)) for function in (config, nothing)]
        values.append(float(config().get("key0", -1)))
        for _ in given:
            pass
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in zip(("first", "call", "bare", "value"), values, strict=True)}
        )

    with workplace() as folder:
        reader = spark.readStream.format("datagen").options(uid="in", channels=2, max_rows_per_epoch=1000)
        rows = reader.load().mapInArrow(measure, "first double, call double, bare double, value double")
        rows = rows.selectExpr("*", "current_timestamp() AS at")
        writer = rows.writeStream.format("delta_2pc").options(uid="out", path=str(folder / "table"))
        job = sx.Job(spark, JOB, state=folder / "state").add("q", writer).start()
        log = SparkLog(str(checkpoint_of(folder / "state")))
        for key in range(KEYS):
            job.control.set(f"key{key}", key)
        begin = (log.newest_commit() or 0) + WARM
        for number in range(EPOCHS // EVERY):
            until(lambda: (log.newest_commit() or 0) >= begin + number * EVERY, "enough epochs are committed", job)  # noqa: B023
            job.control.set("key0", number)
        job.stop(60)
        return _tasks(folder / "table")


def _tasks(table: Path) -> list[dict[str, float]]:
    """The measurements of all tasks but the first; `changed`: whether the epoch is the first with its configuration."""
    rows = sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=lambda row: row["at"])
    first: dict[float, object] = {}
    for row in rows:
        first.setdefault(row["value"], row["at"])
    kept = [row for row in rows if row["at"] > rows[0]["at"]]
    return [
        {name: row[name] for name in ("first", "call", "bare")} | {"changed": row["at"] == first[row["value"]]}
        for row in kept[2 * WARM :]
    ]
