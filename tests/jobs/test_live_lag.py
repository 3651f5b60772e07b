"""The lag of real queries between two epochs: in one long epoch, and while a query has nothing to do."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.spark.session.registry import folder_of
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from tests.support.jobs import register
from tests.support.waiting import until


@dataclass
class Lab:
    spark: SparkSession
    folder: Path

    def arrived(self, rows: int) -> None:
        draft = self.folder / "rows.tmp"
        draft.write_text(str(rows))
        draft.replace(self.folder / "rows")

    def job(self, **settings: Any) -> Job:
        gate = str(self.folder / "open")

        def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                while not Path(gate).exists():
                    time.sleep(0.05)
                yield batch

        rows = self.spark.readStream.format("growing").option("uid", "in").option("max_rows_per_epoch", 5)
        frame = rows.option("path", str(self.folder / "rows")).load().select("n").mapInArrow(held, "n bigint")
        job = sx.Job(self.spark, "live", state=self.folder / "state", **settings)
        sink = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(self.folder / "out"))
        job.add("q", sink)
        return job


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    register(spark)
    return Lab(spark, tmp_path)


def test_the_lag_grows_in_a_long_epoch_and_during_a_pause(lab: Lab) -> None:
    lab.arrived(12)
    job = lab.job(lag_interval="200 ms", heartbeat="300 ms").start()
    try:
        until(lambda: job.snapshot().query("q").lag_rows == 7, "in its very first epoch")
        lab.arrived(1_000)
        until(lambda: job.snapshot().query("q").lag_rows == 995, "rows have arrived meanwhile")
        query = job.snapshot().query("q")
        assert query.epochs == 0 and query.lag_at is not None
        reader = FactsReader(Ledger(job.state_directory))

        def on_the_page() -> Any:
            (shown,) = page(reader.read(), datetime.now(timezone.utc))["queries"]
            return shown["lag"]["rows"] == 995 and [name for name, _, _ in shown["lag"]["sources"]] == ["in"]

        until(on_the_page, "the heartbeat has it, and the ledger has no epoch")
        before = query.lag_at
        until(lambda: (job.snapshot().query("q").lag_at or before) > before, "it is asked again and again")
        paused = job.control.pause("query:q")
        (lab.folder / "open").touch()
        paused.wait(120)
        lab.arrived(2_000)

        def rest() -> bool:
            query = job.snapshot().query("q")
            return query.rows < 1_000 and query.lag_rows == query.sources[0].lag_rows == 2_000 - query.rows

        until(rest, "nothing is planned, and the lag has grown")
    finally:
        job.stop()
    assert not list(folder_of(lab.spark, "").glob("in.*")), "nothing is left"
    rows = [row.lag_rows for row in Ledger(job.state_directory).table(EpochRow).rows()]
    assert rows and None not in rows, "each epoch has its lag in the history"


def test_without_the_interval_nothing_is_asked_or_noted(lab: Lab) -> None:
    lab.arrived(12)
    job = lab.job(lag_interval=0).start()
    try:
        until((lab.folder / "state/queries/q/checkpoint/offsets/0").exists, "the epoch was planned")
        time.sleep(0.5)
        assert job.snapshot().query("q").lag_rows is None
        assert not list(folder_of(lab.spark, "").glob("in.lag"))
        (lab.folder / "open").touch()
        until(lambda: job.snapshot().query("q").lag_rows is not None, "it came with the epoch")
    finally:
        job.stop()
