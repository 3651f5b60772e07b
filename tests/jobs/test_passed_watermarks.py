"""A watermark passes exchanges: windows over two of them, beside the plan that has all of it in one query."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.positions import Front, advance
from spark_ext.jobs.job import Job
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import LocalFolder
from tests.support.waiting import until
from tests.support.watermarks import DAY, Given, Streams

CONSUMERS = {"two": ("x-two", "y-two"), "one": ("x-one", "y-one")}


class Pair:
    """a -> (left) -> x, b -> (right) -> y; x and y -> (two), (one): a watermark for each, or one for both.

    `single` reads the same rows from copies of `a` and `b`. Most rows of a side do not pass its filter.
    """

    def __init__(self, spark: SparkSession, folder: Path, **exchange: Any) -> None:
        self.folder, self._streams = folder, Streams(spark, folder)
        self._exchange = exchange
        self.given: dict[str, list[Given]] = {"a": [], "b": []}
        self.put()

    def put(self) -> None:
        for uid, rows in self.given.items():
            for copy in (uid, f"{uid}-single"):
                self._streams.put(copy, rows)

    def add(self, uid: str, *rows: Given) -> None:
        self.given[uid] += rows
        self.put()

    def _passing(self, uid: str) -> DataFrame:
        return sx.with_watermark(self._streams.read(uid, live=True), "ts", "1 hour").where("k <> 'skip'")

    def job(self) -> Job:
        made = sx.Job(self._streams.spark, "pair", state=self.folder / "state")
        x = made.exchange("x", partitions=2, **self._exchange)
        y = made.exchange("y", partitions=2, **self._exchange)
        made.add("left", x.write(self._passing("a")))
        made.add("right", y.write(self._passing("b")))
        marked = [sx.with_watermark(side.read(f"{side.name}-two"), "ts", "1 hour") for side in (x, y)]
        self._count(made, "two", marked[0].union(marked[1]))
        self._count(made, "one", sx.with_watermark(x.read("x-one").union(y.read("y-one")), "ts", "1 second"))
        self._count(made, "single", self._passing("a-single").union(self._passing("b-single")))
        return made

    def _count(self, made: Job, query: str, rows: DataFrame) -> None:
        hours = rows.groupBy(F.window("ts", "1 hour"), "k").agg(F.count("*").alias("n"), F.sum("n").alias("sum"))
        flat = hours.select(F.unix_seconds("window.start").alias("hour"), "k", "n", "sum")
        made.add(query, flat.writeStream.format("delta_2pc").options(uid=f"{query}-out", path=str(self.folder / query)))

    def rows(self, query: str) -> Counter[tuple[Any, ...]]:
        path = str(self.folder / query)
        found = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []
        return Counter(tuple(row.values()) for row in found)

    def _newest(self, query: str) -> tuple[LoggedOffsets, int] | None:
        """The newest committed epoch, if the watermark has not moved since."""
        log = SparkLog(str(self.folder / "state" / "queries" / query / "checkpoint"))
        epoch = log.newest_commit()
        logged = None if epoch is None else log.offsets(epoch)
        if logged is None or log.newest_offsets() != epoch:
            return None
        at = logged.metadata["batchWatermarkMs"]
        return (logged, at) if (log.commit(logged.epoch) or {}).get("nextBatchWatermarkMs") == at else None

    def _read(self, uid: str, logged: LoggedOffsets) -> bool:
        """Whether a source has nothing more to read."""
        offset = source_offsets(logged).get(uid)
        if offset is None or not offset.running:
            return False
        positions = {channel: state.at for channel, state in offset.running.items()}
        if uid[0] in "ab":
            return bool(positions == {"0": len(self.given[uid[0]])})
        log = ArrowMaster(LocalFolder(self.folder / "state" / "exchanges" / uid[0]), uid).log
        front = Front.of(positions, 2, uid)
        return not advance(log.look(), log.entry, front, None, None, watermark=offset.watermark).moved

    def settled(self) -> bool:
        """Whether all have read everything, and the consumers are where the one query is."""
        reads = {"left": ("a",), "right": ("b",), "single": ("a-single", "b-single"), **CONSUMERS}
        found = {query: self._newest(query) for query in reads}
        if any(one is None or not all(self._read(uid, one[0]) for uid in reads[query]) for query, one in found.items()):
            return False
        at = {query: one[1] for query, one in found.items() if one is not None}
        wanted = self.rows("single")
        return all(at[query] == at["single"] and self.rows(query) == wanted for query in CONSUMERS)

    def settle(self, step: object) -> None:
        until(self.settled, f"step {step}: as in one query", seconds=90)

    def interleaving(self, seed: int, steps: int) -> None:
        """Rows of both sides in turn, one far ahead of the other, some late for its own side or for both."""
        draw = random.Random(seed)
        at = {"a": seed * 100.0, "b": seed * 100.0}
        for step in range(steps):
            uid = draw.choice("aab")
            at[uid] += draw.choice((0.2, 1.5, 6.0))
            times = [at[uid], *(at[uid] - draw.choice((0.5, 1.2, 4.0)) for _ in range(draw.randrange(3)))]
            self.add(uid, *((time, draw.choice(("x", "skip", "skip")), draw.randrange(9)) for time in times))
            self.settle((seed, step, uid, times))

    @property
    def late(self) -> int:
        """Rows that pass the filters and are in no window, once the job has ended."""
        passing = sum(key == "x" for rows in self.given.values() for _, key, _ in rows)
        return passing - sum(row[2] for row in self.rows("two"))


@pytest.mark.core
@pytest.mark.slow(40, "waits until five queries have nothing to do, after each of some steps")
def test_x7_two_exchanges_close_windows_as_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """After each step as many windows, in live queries, over a restart and the end."""
    pair = Pair(spark, tmp_path)
    job = pair.job().start()
    try:
        pair.add("a", (0.5, "x", 1), (30.0, "skip", 2))
        pair.add("b", (0.6, "x", 3), (2.5, "skip", 4))
        pair.settle("a row that no filter lets through closes a window")
        assert pair.rows("two") == Counter({(int(DAY.timestamp()), "x", 2, 4): 1})
        pair.add("a", (2.2, "x", 5), (0.4, "x", 6))
        pair.settle("late for its own side and not for both, and late for both")
        assert job.stop().state is State.CANCELED
        job = pair.job().start()
        pair.add("b", (4.0, "x", 7))
        pair.settle("the other side is where it was before the restart")
        assert sum(pair.rows("two").values()) == 2
        assert job.drain().state is State.FINISHED
    finally:
        job.stop()
    assert pair.rows("two") == pair.rows("one") == pair.rows("single")
    assert pair.late == 1


@pytest.mark.slow(60, "waits after each of some random steps; INTERLEAVINGS=50 makes it an hour")
@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_x7_random_interleavings_before_and_after_a_restore(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    pair = Pair(spark, tmp_path, kind=kind)
    job = pair.job().start()
    try:
        pair.add("a", (0.5, "x", 1))
        pair.add("b", (0.6, "x", 3))
        pair.settle("all queries have begun")
        for seed in range(1, 1 + int(os.environ.get("INTERLEAVINGS", "1"))):
            pair.interleaving(seed, 3)
        job.savepoint(tmp_path / "savepoint", timeout=60)
        saved = {uid: list(rows) for uid, rows in pair.given.items()}
        pair.interleaving(101, 2)
        assert job.stop().state is State.CANCELED
        pair.given = saved
        pair.put()
        job = pair.job().restore(tmp_path / "savepoint").start()
        pair.interleaving(102, 3)
        assert job.drain().state is State.FINISHED
    finally:
        job.stop()
    assert pair.rows("two") == pair.rows("one") == pair.rows("single")
