"""From Parquet files into a Delta table: `files` and `delta_2pc` against Spark's file stream and its own Delta sink.

Both sides read the same 10 M rows in one epoch. The time is that of the whole epoch, including the listing of the
directory and the commit, but not the start of the query.
"""

from __future__ import annotations

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import counted, session, workplace
from benchmarks.files_throughput import epoch, write

ROUNDS = 5
FILES = 16
ROWS = 625_000
"""Rows per file; 10 M in total."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    rates: dict[str, list[float]] = {"files": [], "spark": []}
    cpu: dict[str, list[float]] = {"files": [], "spark": []}
    with session("files_to_delta") as spark, workplace() as folder:
        write(folder / "data", FILES, ROWS)
        for _, counts in counted(rounds):
            for side in rates:
                with workplace() as aside:
                    durations = epoch(spark, side, folder / "data", aside, FILES * ROWS, into="delta")
                if counts:
                    rates[side].append(FILES * ROWS / durations["triggerExecution"] / 1000)
                    cpu[side].append(durations["cpu"] / 1000)
    ours, spark_own = (Sample.of(values, "M rows/s") for values in rates.values())
    return [
        Figure(
            "files_to_delta",
            "files_to_delta",
            f"rows per second from {FILES * ROWS:,} rows of Parquet into a Delta table: files, delta_2pc / Spark's own",
            ours.median / spark_own.median,
            Aim(">=", 1.5),
            {"files into delta_2pc": ours, "Spark's file stream into its Delta sink": spark_own},
            {
                "rows": FILES * ROWS,
                "files": FILES,
                "CPU time of a query": {side: Sample.of(values, "s").to_json() for side, values in cpu.items()},
            },
        )
    ]
