"""From Parquet files into a Delta table: `files` and `delta_2pc` against Spark's file stream and its own Delta sink.

Both sides read the same 10 M rows in one epoch. The time is that of the whole epoch, including the listing of the
directory and the commit, but not the start of the query.
"""

from __future__ import annotations

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import session, workplace
from benchmarks.files_throughput import FILES, ROWS, epoch, write

ROUNDS = 5


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    rates: dict[str, list[float]] = {"files": [], "spark": []}
    cpu: dict[str, list[float]] = {"files": [], "spark": []}
    with session("files_to_delta") as spark, workplace() as folder:
        write(folder / "data")
        for round_ in range(rounds + 1):
            for side in rates:
                with workplace() as aside:
                    durations = epoch(spark, side, folder / "data", aside, "delta")
                if round_:  # the first round compiles
                    rates[side].append(FILES * ROWS / durations["triggerExecution"] / 1000)
                    cpu[side].append(durations["cpu"] / 1000)
    ours, spark_own = (Sample.of(values, "M rows/s") for values in rates.values())
    return [
        Figure(
            "files_to_delta",
            "files_to_delta",
            "rows per second from 10 M rows of Parquet into a Delta table: files and delta_2pc / Spark's own",
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
