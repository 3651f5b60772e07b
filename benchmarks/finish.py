"""Time from the commit of the last data epoch to FINISHED, beside epochs of the same query.

An empty epoch reads no row, but is planned, run and committed by the sink like any other. The query has some in the
middle of its input, so that both times come from one run. The last windows come in two more epochs, one that carries
the end-of-input marker and one that emits them: beside these stand an empty epoch and one that emits windows, which all
with rows do. FINISHED is when the query's final checkpoint is closed and
the query has stopped; the time that `run()` then needs to return is given as a note.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._operators import steps
from benchmarks._spark import checkpoint_of, committed_at, counted, session, workplace
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 7
STEPS = 24
EMPTY = (8, 21)
ROWS = 1000
KINDS = ("plain", "watermark")  # queries that are measured


def run(rounds: int = ROUNDS) -> Figures:
    runs: dict[str, list[Ending]] = {kind: [] for kind in KINDS}
    # The directory outlives the session: RocksDB uploads to it in the background.
    with workplace() as folder, session("finish") as spark:
        for round_, counts in counted(rounds):
            for kind, endings in runs.items():
                ending = _run(spark, kind == "watermark", folder / f"{kind}-{round_}")
                if counts:
                    endings.append(ending)
    return [_ratio(runs[kind]) if kind == "plain" else _excess(runs[kind]) for kind in KINDS]


class Ending:
    """The times of one run, ms."""

    def __init__(self, checkpoint: Path, last: int, finished: float, returned: float) -> None:
        commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
        # From commit to commit over the empty epochs, without the first one: its planning overlaps with rows.
        begin, end = EMPTY
        self.empty = _median(checkpoint, begin + 1, end)
        self.emitting = _median(checkpoint, begin // 2, begin)  # the first ones start what they need
        self.finish = 1000 * (finished - committed_at(checkpoint, last))
        self.further = commits[-1] - last
        self.after_last = 1000 * (finished - committed_at(checkpoint, commits[-1]))
        self.returned = 1000 * (returned - finished)


def _median(checkpoint: Path, first: int, end: int) -> float:
    """The median time from commit to commit, ms."""
    times = [committed_at(checkpoint, epoch) for epoch in range(first - 1, end)]
    return 1000 * median(later - earlier for earlier, later in pairwise(times))


def _excess(endings: list[Ending]) -> Figure:
    excess = Sample.of([ending.finish - ending.empty - ending.emitting for ending in endings], "ms")
    return Figure(
        "finish_watermark",
        "last data epoch's commit to FINISHED, less an empty epoch and one that emits windows, ms; windows",
        excess.median, Aim("<", 50),
        {**_sides(endings), "epoch that emits": Sample.of([ending.emitting for ending in endings], "ms")},
        {
            "less two empty epochs": Sample.of([one.finish - 2 * one.empty for one in endings], "ms").to_json(),
            **_notes(endings),
        },
    )  # fmt: skip


def _ratio(endings: list[Ending]) -> Figure:
    epochs = Sample.of([ending.finish / ending.empty for ending in endings], "empty epochs")
    return Figure(
        "finish",
        "last data epoch's commit to FINISHED / an empty epoch; stateless query",
        epochs.median,
        Aim("<", 2),
        _sides(endings),
        {
            "in empty epochs": epochs.to_json(),
            **_notes(endings),
            "FINISHED to the return of run()": Sample.of([ending.returned for ending in endings], "ms").to_json(),
        },
        divided=("last data commit to FINISHED", "empty epoch"),
    )


def _sides(endings: list[Ending]) -> dict[str, Sample]:
    return {
        "last data commit to FINISHED": Sample.of([ending.finish for ending in endings], "ms"),
        "empty epoch": Sample.of([ending.empty for ending in endings], "ms"),
    }


def _notes(endings: list[Ending]) -> dict[str, object]:
    return {
        "epochs after the last data epoch": sorted({ending.further for ending in endings}),
        "last commit of all to FINISHED": Sample.of([ending.after_last for ending in endings], "ms").to_json(),
    }


def _run(spark: SparkSession, watermark: bool, folder: Path) -> Ending:
    rows = steps(spark, steps=STEPS, rows=ROWS, empty_from=EMPTY[0], empty_upto=EMPTY[1])
    frame = _windows(rows) if watermark else rows
    job = sx.Job(spark, "bench", state=folder / "state")
    writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
    result = job.add("q", writer).run(progress=False)
    returned = time.time()
    assert result.finished
    checkpoint = checkpoint_of(folder / "state")
    states = job.ledger.execution_states().where("operator = 'q' and state = 'FINISHED'").collect()
    finished = max(row["since"].timestamp() for row in states)
    return Ending(checkpoint, _last_data_epoch(checkpoint), finished, returned)


def _last_data_epoch(checkpoint: Path) -> int:
    """The first epoch in whose offset the source has ended: it contains the last rows."""
    log = SparkLog(str(checkpoint))
    for epoch in range(STEPS + 3):
        logged = log.offsets(epoch)
        if logged is not None and source_offsets(logged)["in"].ended:
            return epoch
    raise RuntimeError(f"the source has not ended in {checkpoint}")


def _windows(rows: DataFrame) -> DataFrame:
    return (
        sx.with_watermark(rows, "ts", "1 minute")
        .groupBy(F.window("ts", "10 minutes"), "key")
        .agg(F.sum("value").alias("value"))
        .select("window.start", "key", "value")
    )
