"""Where the time of real epochs goes, by shares; and how many rows their sources have still to read."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.model.epoch_parts import PARTS
from spark_ext.model.offsets import Position
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.page.top import top_rows
from spark_ext.views.snapshot import QuerySnapshot
from spark_ext.views.terminal import mostly
from tests.support.incident_listener import GOT
from tests.support.waiting import until


class SlowOptions(SourceOptions):
    count: int = 12
    wait: float = 0.0


class Slow(ChannelSource):
    """Numbers, each of which it takes some time to read; knows how many there are."""

    options_type = SlowOptions
    options: SlowOptions

    @classmethod
    def name(cls) -> str:
        return "slow_numbers"

    def schema(self) -> str:
        return "n bigint"

    def discover(self) -> list[Channel]:
        return [Channel("all")]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        end = min(self.options.count, start + (limit.rows or self.options.count))
        return Advance(end, end == self.options.count, end - start)

    def lag(self, channel: Channel, at: Position) -> int | None:
        return self.options.count - int(at)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        for number in range(start, end):
            time.sleep(self.options.wait)
            yield pa.RecordBatch.from_pydict({"n": [number]})


@dataclass
class Lab:
    spark: SparkSession
    folder: Path

    def source(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("slow_numbers").option("uid", "in").option("max_rows_per_epoch", 4)
        return reader.options(**options).load()

    def job(self, frame: DataFrame, **settings: Any) -> Job:
        job = sx.Job(self.spark, "timed", state=self.folder / "state", **{"epoch_parts": True, **settings})
        sink = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(self.folder / "out"))
        job.add("q", sink)
        return job

    def epochs(self) -> list[EpochRow]:
        return sorted(Ledger(str(self.folder / "state")).table(EpochRow).rows(), key=lambda row: row.epoch)

    def parts(self) -> dict[str, int]:
        """Of all epochs but the first, which also starts processes."""
        rows = self.epochs()
        found = dict.fromkeys(PARTS, 0)
        for row in rows[1:]:
            assert row.parts_ms is not None and tuple(row.parts_ms) == tuple(sorted(PARTS))
            assert sum(row.parts_ms.values()) == sum(row.spent_ms.values())
            for part, spent in row.parts_ms.items():
                found[part] += spent
        return found


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    sx.register(spark, Slow)
    return Lab(spark, tmp_path)


def sleeping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(2)
        yield batch


@pytest.mark.slow(12, "an epoch has to take a second or so to be looked at")
def test_a_slow_function_is_user_code(lab: Lab) -> None:
    result = lab.job(lab.source().mapInArrow(sleeping, "n bigint")).run(progress=False)
    parts = lab.parts()
    # Also where each write takes long, on a busy disk: the commit is compared with nothing.
    assert max(parts.keys() - {"commit"}, key=lambda part: parts[part]) == "user_code"
    assert parts["user_code"] > parts["reading"] > 0 == parts["state"]
    assert result.query("q").parts_ms == in_order(lab.epochs()[-1].parts_ms)
    (row,) = top_rows(page(FactsReader(Ledger(str(lab.folder / "state"))).read(), result.ended))
    assert row["parts_ms"] == lab.epochs()[-1].parts_ms
    assert mostly({**row["parts_ms"], "commit": 0}).startswith("user code ")


def in_order(parts: Any) -> dict[str, int]:
    return {part: parts[part] for part in PARTS}


@pytest.mark.slow(12, "an epoch has to take a second or so to be looked at")
def test_a_slow_source_is_reading_even_when_a_function_waits(lab: Lab) -> None:
    lab.job(lab.source(wait=0.3).mapInArrow(lambda batches: batches, "n bigint")).run(progress=False)
    parts = lab.parts()
    assert max(parts.keys() - {"commit"}, key=lambda part: parts[part]) == "reading"
    assert parts["reading"] > parts["user_code"]


@pytest.mark.slow(12, "an epoch has to take a second or so to be looked at")
def test_an_operator_with_state_has_some(lab: Lab) -> None:
    job = lab.job(lab.source(count=1_000, wait=0.1).dropDuplicates(["n"])).start()
    until(lambda: job.snapshot().query("q").epochs >= 4, "some epochs")
    job.stop()
    parts = lab.parts()
    assert parts["state"] > 0 and parts["reading"] > 0 and parts["other"] > 0


RULES = """
types:
  - {name: late, severity: WARNING, description: d}
listeners:
  - use: "tests.support.incident_listener:Recorder"
    options: {name: lag}
"""


def test_the_lag_of_a_running_job_and_of_one_that_has_ended(lab: Lab) -> None:
    rules = lab.folder / "incidents.yaml"
    rules.write_text(RULES)
    job = lab.job(lab.source(count=2_000, wait=0.02), incidents=str(rules), epoch_parts=False).start()
    try:

        def known() -> QuerySnapshot | None:
            query = job.snapshot().query("q")
            return query if query.lag_rows and query.sources else None

        # The lag may be known first: a source notes it while the first epoch is being planned.
        query = until(known, "a lag and the sources are known")
        assert query.lag_rows is not None and 0 < query.lag_rows < 2_000
        assert query.sources[0].lag_rows == query.lag_rows
        job.report_incident("late", "far behind", query="q")
        ((_, context),) = until(lambda: GOT["lag"], "the listener was called") or []
        assert context.lag is not None and 0 < context.lag <= query.lag_rows
    finally:
        ended = job.stop()
    assert ended.query("q").lag_rows, "what was stopped has rows left"
    assert ended.query("q").parts_ms is None and {row.parts_ms for row in lab.epochs()} == {None}, "not asked for"
