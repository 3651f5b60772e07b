"""A hop from one query to the next: an exchange in a `Job`, against a Delta table between two queries of plain Spark.

Both sides generate `RATE` rows a second, write them with one query, and read them with another one into a Delta table,
by `delta_2pc` or by Spark's own sink; rounds alternate. All times are those of the files of Spark's commit logs.

* `hop`: from the commit of an epoch of the first query to the commit of the epoch of the second one that has read it.
* `row`: from the moment for which the oldest row of that epoch was generated to the same commit.
* `throughput`: rows per second through both queries when the first has a backlog to work off.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import LIMIT, session, start, until, warm_up, workplace
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import LocalFolder

ROUNDS = 3
RATE = 500
SECONDS = 20
WARM = 8  # seconds of each run that do not count: workers start, code is compiled
ROWS = 2_000_000
EPOCHS = 4  # in which the first query works off its backlog of rows
AIM = 4.0
PARTS = ("latency", "throughput")  # what is measured


@dataclass(frozen=True)
class Hop:
    """What one epoch of the first query took to the commit of the second, ms."""

    commit: float  # from its own commit
    row: float  # from its oldest row


def run(rounds: int = ROUNDS) -> Figures:
    hops: dict[str, list[Hop]] = {"exchange": [], "Delta": []}
    with session("hop") as spark:
        for _ in range(rounds if "latency" in PARTS else 0):
            hops["exchange"] += _exchange_hops(spark)
            hops["Delta"] += _delta_hops(spark)
        if "throughput" in PARTS:
            rate = {"exchange": _exchange_rate, "Delta": _delta_rate}
            warm_up(lambda: [measure(spark) for measure in rate.values()])
            yield _throughput(beside(list(rate), rounds, lambda side: rate[side](spark)))
    for part in ("commit", "row") if "latency" in PARTS else ():
        times = {side: [getattr(hop, part) for hop in found] for side, found in hops.items()}
        yield from (_figure(name, part, share, times) for name, share in (("p50", 0.5), ("p99", 0.99)))


def _throughput(rates: dict[str, list[float]]) -> Figure:
    samples = {side: Sample.of(values, "rows/s") for side, values in rates.items()}
    return Figure(
        "hop_throughput", f"rows per second of {ROWS:,} rows through both queries: exchange / Spark's Delta to Delta",
        samples["exchange"].median / samples["Delta"].median, Aim(">=", 1.0), samples, {"rows": ROWS},
    )  # fmt: skip


def _figure(name: str, part: str, share: float, times: dict[str, list[float]]) -> Figure:
    ours, theirs = (
        statistics.quantiles(times[side], n=1000, method="inclusive")[round(share * 1000) - 1]
        for side in ("exchange", "Delta")
    )
    what = "commit" if part == "commit" else "oldest row"
    return Figure(
        f"hop_{part}_{name}",
        f"from an epoch's {what} to the next query's commit, {RATE} rows/s, {name}: Spark's Delta to Delta / exchange",
        theirs / ours,
        Aim(">=", AIM),
        {side: Sample.of(values, "ms") for side, values in times.items()},
        {"rows per second": RATE, "seconds per run": SECONDS, "exchange ms": ours, "Delta ms": theirs},
        divided=("Delta", "exchange") if name == "p50" else None,
    )


def _live(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("datagen").options(uid="in", rows_per_second=RATE, channels=2).load()


def _backlog(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("datagen").options(
        uid="in", rows=ROWS, channels=2, max_rows_per_epoch=ROWS // EPOCHS
    )
    return reader.load()


def _job(frame: DataFrame, folder: Path) -> sx.Job:
    job = sx.Job(frame.sparkSession, "bench", state=folder / "state")
    hop = job.exchange("hop", partitions=4, keep="1 hour")
    job.add("first", hop.write(frame))
    out = hop.read("hop-in").writeStream.format("delta_2pc").option("uid", "out")
    job.add("second", out.option("path", str(folder / "out")))
    return job


def _exchange_hops(spark: SparkSession) -> list[Hop]:
    with workplace() as folder:
        job = _job(_live(spark), folder)
        job.start()
        first, second = (folder / "state" / "queries" / name / "checkpoint" for name in ("first", "second"))
        begin = _wait(second)
        log = ArrowMaster(LocalFolder(folder / "state" / "exchanges" / "hop"), "hop").log
        last = log.look().last
        brought = {number: entry.epoch for number in range(last + 1) if (entry := log.entry(number)) and entry.rows}
        found = ((epoch, _entry_read(second, epoch)) for epoch in SparkLog(str(second)).commits())
        read = [(epoch, entry) for epoch, entry in found if entry is not None]
        hops = _hops(first, second, {epoch: number + 1 for number, epoch in brought.items()}, read, begin)
        job.stop()
        return hops


def _entry_read(checkpoint: Path, epoch: int) -> int | None:
    """None: Spark, which keeps the newest hundred epochs, has removed its offsets meanwhile, and next its commit."""
    logged = SparkLog(str(checkpoint)).offsets(epoch)
    if logged is None:
        return None
    return min((state.at[0] for state in source_offsets(logged)["hop-in"].running.values()), default=0)


def _exchange_rate(spark: SparkSession) -> float:
    with workplace() as folder:
        job = _job(_backlog(spark), folder)
        job.run(progress=False)
        return ROWS / _between(*(folder / "state" / "queries" / name / "checkpoint" for name in ("first", "second")))


def _delta_hops(spark: SparkSession) -> list[Hop]:
    with workplace() as folder:
        first, second, queries = _pair(_live(spark), folder)
        begin = _wait(second)
        for query in queries:
            query.stop()
        versions = {_epoch_of(folder / "table", version): version + 1 for version in _versions(folder / "table")}
        read = [(epoch, _version_read(second, epoch)) for epoch in SparkLog(str(second)).commits()]
        return _hops(first, second, {epoch: end for epoch, end in versions.items() if epoch >= 0}, read, begin)


def _pair(frame: DataFrame, folder: Path) -> tuple[Path, Path, list[Any]]:
    spark, table = frame.sparkSession, folder / "table"
    first, second = folder / "first", folder / "second"
    writing = start(frame.writeStream.format("delta").option("path", str(table)), first)
    until(lambda: (table / "_delta_log" / f"{0:020}.json").exists(), "the table", writing)
    out = spark.readStream.format("delta").load(str(table)).writeStream.format("delta")
    reading = start(out.option("path", str(folder / "out")), second)
    return first, second, [reading, writing]


def _versions(table: Path) -> list[int]:
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())


def _epoch_of(table: Path, version: int) -> int:
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return next((int(line["txn"]["version"]) for line in map(json.loads, lines) if "txn" in line), -1)


def _version_read(checkpoint: Path, epoch: int) -> int:
    """The number of versions that an epoch has read in full; an index below 0 stands for the end of the one before."""
    logged = SparkLog(str(checkpoint)).offsets(epoch)
    assert logged is not None
    (offset,) = logged.sources
    return int(offset["reservoirVersion"]) + (offset["index"] >= 0)


def _delta_rate(spark: SparkSession) -> float:
    with workplace() as folder:
        first, second, queries = _pair(_backlog(spark), folder)
        until(lambda: len(SparkLog(str(first)).commits()) >= EPOCHS, "the first query is done", queries[1])
        last = _versions(folder / "table")[-1]

        def done() -> bool:
            newest = SparkLog(str(second)).newest_commit()
            return newest is not None and _version_read(second, newest) > last

        until(done, "the second query is done", queries[0])
        for query in queries:
            query.stop()
        return ROWS / _between(first, second)


def _wait(second: Path) -> float:
    """Wait for the end of a run; returns from when on it counts, s since 1970."""
    until(lambda: (second / "commits" / "1").exists(), "the second query runs")
    begin = time.time() + WARM
    time.sleep(WARM)
    warm = SparkLog(str(second)).newest_commit() or 0
    time.sleep(SECONDS)
    # What the first two epochs have read may have been committed earlier; quantiles need two.
    until(lambda: (SparkLog(str(second)).newest_commit() or 0) > warm + 3, "the second query has read some epochs")
    assert time.time() - begin < LIMIT
    return begin


def _hops(first: Path, second: Path, written: dict[int, int], read: list[tuple[int, int]], begin: float) -> list[Hop]:
    """The hops of all epochs since `begin`.

    `written` has, by epoch of the first query, how many entries or versions there are after it; `read` the epochs of
    the second and how many of those each has read in full, ascending. What the first of them has read may have been
    read by an earlier one, whose offsets Spark has removed.
    """
    found = []
    for epoch, end in written.items():
        at = SparkLog(str(first)).committed_at(epoch)
        by = next((number for (_, before), (number, upto) in pairwise(read) if before < end <= upto), None)
        oldest = _oldest(first, epoch)
        if at is not None and at >= begin and by is not None and oldest is not None:
            seen = SparkLog(str(second)).committed_at(by)
            if seen is not None:
                found.append(Hop(1000 * (seen - at), 1000 * (seen - oldest)))
    return found


def _oldest(first: Path, epoch: int) -> float | None:
    """For when the oldest row of an epoch was generated, s since 1970; None when Spark has removed the offsets."""
    before = SparkLog(str(first)).offsets(epoch - 1)
    if before is None:
        return None
    channels = source_offsets(before)["in"].running.values()
    return min(state.data["start"] / 1000 + state.at / (RATE / len(channels)) for state in channels)


def _between(first: Path, second: Path) -> float:
    """From the commit of the first query's first epoch to the second one's last commit that had rows, s.

    The first epoch has the workers' start in it, so its rows are counted and its time is not; on both sides alike.
    """
    begin = SparkLog(str(first)).committed_at(0)
    log = SparkLog(str(second))
    end = max(log.committed_at(epoch) or 0.0 for epoch in log.commits())
    assert begin is not None
    return end - begin
