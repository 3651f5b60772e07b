"""The source `files` against Spark's own file stream on the same Parquet files, read whole in one epoch.

The rows go to Spark's `noop`, which discards them. The time is that of the whole epoch, including the listing of the
directory, but not the start of the query.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import counted, cpu_seconds, run_epochs, session, workplace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 8
FILES = 16
ROWS = 625_000
"""Rows per file; 10 M in total."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    rates: dict[str, list[float]] = {"files": [], "spark": []}
    parts: dict[str, list[dict[str, float]]] = {"files": [], "spark": []}
    with session("files_throughput") as spark, workplace() as folder:
        size = write(folder / "data", FILES, ROWS)
        for round_, counts in counted(rounds):
            for side in rates:
                durations = epoch(spark, side, folder / "data", folder / f"{side}-{round_}", FILES * ROWS)
                if counts:
                    rates[side].append(FILES * ROWS / durations["triggerExecution"] / 1000)
                    parts[side].append(durations)
    ours, spark_own = (Sample.of(values, "M rows/s") for values in rates.values())
    return [
        Figure(
            "files_throughput",
            "files_throughput",
            f"rows per second from the same {FILES * ROWS:,} rows of Parquet: files / Spark's file stream",
            ours.median / spark_own.median,
            Aim(">=", 1.0),
            {"files": ours, "Spark's file stream": spark_own},
            {
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
    ]


def write(folder: Path, files: int, rows: int) -> int:
    """Write files of ids, times, keys, values and short texts, in row groups like those that Spark writes.

    Args:
        folder: is made.
        files: how many.
        rows: of each.

    Returns:
        Their size, bytes.
    """
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


def epoch(spark: SparkSession, side: str, data: Path, folder: Path, rows: int, into: str = "noop") -> dict[str, float]:
    """Run a query over all files, in one epoch.

    Args:
        spark: the session.
        side: `files`, or `spark` for its own file stream.
        data: the folder of the files.
        folder: of the checkpoint and the output.
        rows: of all files.
        into: `noop`, or `delta` for a table: by `delta_2pc` behind `files`, and by Spark's own sink behind its own.

    Returns:
        Spark's durations of the epoch, ms, and `cpu`, the CPU time of the whole query, ms.
    """
    frame = _files(spark, data) if side == "files" else _spark_files(spark, data)
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


def _files(spark: SparkSession, data: Path) -> DataFrame:
    return spark.readStream.format("files").option("uid", "in").option("path", str(data)).load()


def _spark_files(spark: SparkSession, data: Path) -> DataFrame:
    return spark.readStream.schema(spark.read.parquet(str(data)).schema).parquet(str(data))
