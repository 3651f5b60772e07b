"""100,000 channels, 99.9 % of them finished, against 100 channels: do finished channels cost anything?

Both sides run 100 channels, one step each per epoch. The large side has 99,900 more that ended in the first epoch, so
their flags are in the ledger. The planning time is that of an epoch without running its tasks and recording the commit;
the size is that of the offsets that Spark logs for an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, session, until, workplace
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 4
EPOCHS = 30
WARM = 5
RUNNING = 100
FINISHED = {"100 channels": 0, "100,000 channels": 99_900}
PLANNING = ("latestOffset", "getBatch", "queryPlanning", "walCommit")


def run(rounds: int = ROUNDS) -> Figures:
    empty: Callable[[], dict[str, list[float]]] = lambda: {side: [] for side in FINISHED}  # noqa: E731
    times, asked, first, sizes = empty(), empty(), empty(), empty()
    with workplace() as folder, session("channels") as spark:
        for round_ in range(rounds + 1):
            for side, finished in FINISHED.items():
                reports = _epochs(spark, folder / side, finished, first_run=round_ == 0)
                if not round_:  # the first round compiles, and lets the short channels end
                    continue
                # First comes the epoch that the stop interrupted; it is replayed without calling the source.
                first[side].append(max(report.get("latestOffset", 0) for report in reports[:WARM]))
                times[side] += [sum(report.get(part, 0) for part in PLANNING) for report in reports[WARM:]]
                asked[side] += [report["latestOffset"] for report in reports[WARM:]]
                sizes[side].append(_offset_size(folder / side))
    notes = {
        "of it the source's own part": {side: Sample.of(values, "ms").to_json() for side, values in asked.items()},
        "latestOffset after a restart, which lists the channels and reads the flags": {
            side: Sample.of(values, "ms").to_json() for side, values in first.items()
        },
    }
    yield _figure("channels_planning", "time to plan an epoch", times, "ms", notes)
    yield _figure("channels_offset", "size of the logged offsets of an epoch", sizes, "bytes", {})


def _figure(name: str, what: str, sides: dict[str, list[float]], unit: str, notes: dict[str, Any]) -> Figure:
    few, many = (Sample.of(values, unit) for values in sides.values())
    return Figure(
        name, f"{what}: 100,000 channels (99,900 finished) / 100 channels", many.median / few.median,
        Aim("<", 2), {"100 channels": few, "100,000 channels": many},
        {"running channels on both sides": RUNNING, **notes},
    )  # fmt: skip


def _epochs(spark: SparkSession, folder: Path, finished: int, *, first_run: bool) -> list[dict[str, int]]:
    frame = steps(spark, steps=1_000_000, rows=1, channels=RUNNING, short=finished)
    job = sx.Job(spark, "bench", state=folder / "state")
    job.add("q", frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table")))
    log = SparkLog(str(checkpoint_of(folder / "state")))
    begin = log.newest_commit() or 0
    job.start()
    query = next(query for query in spark.streams.active if query.name == "bench/q")
    until(lambda: (log.newest_commit() or 0) >= begin + WARM + EPOCHS, "the epochs have committed", query)
    if first_run:
        until(lambda: _confirmed(log) == finished, "the ledger has all flags, and the offsets say so", query)
    reports = [dict(report["durationMs"]) for report in query.recentProgress if report["numInputRows"]]
    job.stop()
    return reports


def _confirmed(log: SparkLog) -> int:
    logged = log.offsets(log.newest_commit() or 0)
    return -1 if logged is None else source_offsets(logged)["in"].confirmed


def _offset_size(folder: Path) -> float:
    checkpoint = checkpoint_of(folder / "state")
    newest = SparkLog(str(checkpoint)).newest_commit()
    return (checkpoint / "offsets" / str(newest)).stat().st_size
