"""From Parquet files into a Delta table: `files` and `delta_2pc` against Spark's file stream and its own Delta sink.

Both sides read the same 10 M rows in one epoch. The time is that of the whole epoch, including the listing of the
directory and the commit, but not the start of the query.
"""

from __future__ import annotations

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import session, workplace
from benchmarks.files_throughput import both, rates, write

ROUNDS = 5
FILES = 16
ROWS = 625_000  # rows per file; 10 M in total


def run(rounds: int = ROUNDS) -> Figures:
    with session("files_to_delta") as spark, workplace() as folder:
        write(folder / "data", FILES, ROWS)
        parts = both(spark, folder / "data", FILES * ROWS, rounds, into="delta")
    ours, spark_own = (rates(FILES * ROWS, found) for found in parts.values())
    cpu = {side: Sample.of([one["cpu"] / 1000 for one in found], "s") for side, found in parts.items()}
    yield Figure(
        "files_to_delta",
        f"rows per second from {FILES * ROWS:,} rows of Parquet into a Delta table: files, delta_2pc / Spark's own",
        ours.median / spark_own.median,
        Aim(">=", 2.0),
        {"files into delta_2pc": ours, "Spark's file stream into its Delta sink": spark_own},
        {
            "rows": FILES * ROWS,
            "files": FILES,
            "CPU time of a query": {side: sample.to_json() for side, sample in cpu.items()},
        },
    )
