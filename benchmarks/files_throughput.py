"""The source `files` against Spark's own file stream on the same Parquet files, read whole in one epoch.

The rows go to Spark's `noop`, which discards them. The time is that of the whole epoch, including the listing of the
directory, but not the start of the query. A third side hands over the same rows without decoding them, as they lie in
a file that is mapped into memory: no source in Python can be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import _operators
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import cpu_seconds, run_epochs, session, warm_up, workplace

ROUNDS = 8
SIDES = ("files", "spark")
BARE = "decoded"
FILES = 16
ROWS = 625_000  # rows per file; 10 M in total


def run(rounds: int = ROUNDS) -> Figures:
    with session("files_throughput") as spark, workplace() as folder:
        size = write(folder / "data", FILES, ROWS)
        _operators.decode(folder / "data", folder / BARE)
        parts = both(spark, folder / "data", FILES * ROWS, rounds, sides=(*SIDES, BARE))
    ours, spark_own, bare = (rates(FILES * ROWS, found) for found in parts.values())
    yield Figure(
        "files_throughput",
        f"rows per second from the same {FILES * ROWS:,} rows of Parquet: files / Spark's file stream",
        ours.median / spark_own.median,
        Aim(">=", 0.9),
        {"files": ours, "Spark's file stream": spark_own, "without decoding": bare},
        {
            "without decoding / Spark's file stream": round(bare.median / spark_own.median, 3),
            "rows": FILES * ROWS,
            "files": FILES,
            "bytes": size,
            "median ms of": {
                side: {
                    part: Sample.of([one.get(part, 0) for one in found], "ms").median
                    for part in ("latestOffset", "getBatch", "queryPlanning", "addBatch", "triggerExecution", "cpu")
                }
                for side, found in parts.items()
            },
        },
        divided=("files", "Spark's file stream"),
    )


def write(folder: Path, files: int, rows: int) -> int:
    """Write files of ids, times, keys, values and short texts, in row groups as Spark has them; returns their bytes."""
    folder.mkdir()
    random = np.random.default_rng(7)
    for number in range(files):
        ids = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
        keys = random.integers(0, 1000, rows, dtype=np.int32)
        table = pa.table(
            {
                "id": ids,
                "ts": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
                "key": keys,
                "value": random.random(rows),
                "tag": pa.array([f"key-{key}" for key in range(1000)]).take(pa.array(keys)),
            }
        )
        pq.write_table(table, folder / f"part-{number:03d}.parquet", compression="snappy")
    return sum(path.stat().st_size for path in folder.iterdir())


def both(
    spark: SparkSession, data: Path, rows: int, rounds: int, into: str = "noop", sides: Sequence[str] = SIDES
) -> dict[str, list[dict[str, float]]]:
    """The durations of `_epoch` of each side and round."""

    def run(side: str) -> dict[str, float]:
        with workplace() as folder:
            return _epoch(spark, side, data, folder, rows, into)

    warm_up(lambda: [run(side) for side in sides])
    return beside(sides, rounds, run)


def rates(rows: int, found: list[dict[str, float]]) -> Sample:
    return Sample.of([rows / durations["triggerExecution"] / 1000 for durations in found], "M rows/s")


def _epoch(spark: SparkSession, side: str, data: Path, folder: Path, rows: int, into: str) -> dict[str, float]:
    """Run a query over all files in one epoch; returns Spark's durations and `cpu`, the CPU time of the query, ms.

    The `side` is `files`, `decoded`, or `spark` for Spark's own source; with `into="delta"` each side uses its own
    Delta sink.
    """
    if side != "spark":
        path = data.with_name(BARE) if side == BARE else data
        frame = spark.readStream.format(side).option("uid", "in").option("path", str(path)).load()
    else:
        frame = spark.readStream.schema(spark.read.parquet(str(data)).schema).parquet(str(data))
    writer = frame.writeStream.format("delta_2pc" if (into, side) == ("delta", "files") else into)
    if into == "delta":
        writer = writer.option("path", str(folder / "table"))
    if side == "files":
        writer = writer.option("uid", "out")
    before = cpu_seconds()
    reports = run_epochs(writer, folder / "checkpoint", 0)
    assert reports[0]["numInputRows"] == rows
    if into == "delta":
        written = sum(pq.read_metadata(path).num_rows for path in (folder / "table").rglob("*.parquet"))
        assert written == rows, f"{side} wrote {written} rows"
    return {**reports[0]["durationMs"], "cpu": 1000 * (cpu_seconds() - before)}
