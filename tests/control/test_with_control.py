"""`with_control`: control events for queries of Spark's own sources, whose rows and end stay what they are."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.model.lifecycle import State
from spark_ext.spark.logs.spark_log import SparkLog
from tests.control.states import Sent
from tests.support import operators
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def seen(frame: DataFrame) -> DataFrame:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = json.dumps(dict(sx.control.config()))
            columns = [batch.column("n"), pa.array([found] * batch.num_rows, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, ["n", "config"])

    return frame.mapInArrow(look, "n bigint, config string")


def stamps(lab: JobHarness) -> list[int]:
    log = SparkLog(str(lab.checkpoint()))
    newest = log.newest_offsets()
    offsets = None if newest is None else log.offsets(newest)
    sources = () if offsets is None else offsets.sources
    return [raw["control"] for raw in sources if isinstance(raw, dict) and "control" in raw]


def test_rows_and_schema_are_those_of_the_stream(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    frame = rate.select(
        F.lit(1).alias("i"), F.col("value").alias("same"), F.col("timestamp").alias("same"),
        F.struct(F.lit("a").alias("s"), F.lit(None).cast("decimal(20,3)").alias("d")).alias("nested"),
        F.array(F.lit(1.5)).alias("list"), F.current_date().alias("day"), F.lit(b"x").alias("bytes"),
    )  # fmt: skip
    assert not frame.schema["i"].nullable
    assert sx.with_control(frame, uid="c").schema == frame.schema
    assert sx.with_control(rate.select(), uid="c").schema == T.StructType([])


def test_it_is_refused_where_it_would_do_nothing(spark: SparkSession, lab: JobHarness) -> None:
    with pytest.raises(ConfigurationError, match="numbers") as ours:
        sx.with_control(lab.source(), uid="c")
    assert "leave with_control out" in ours.value.do
    with pytest.raises(ConfigurationError, match="uid"):
        sx.with_control(spark.readStream.format("rate").load(), uid="a b")
    with pytest.raises(ConfigurationError, match="control"):
        sx.with_control(sx.with_control(spark.readStream.format("rate").load(), uid="a"), uid="b")


@pytest.mark.core
def test_functions_see_events_and_a_drain_ends_the_query(spark: SparkSession, lab: JobHarness) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", "20").load()
    job = lab.job(seen(sx.with_control(rate.withColumnRenamed("value", "n"), uid="c"))).start()
    until(lambda: lab.rows(), "rows")
    Sent(lab.folder / "state")("set_config", {"key": "k", "value": 1})
    until(lambda: lab.rows()[-1]["config"] == '{"k": 1}', "rows of the changed configuration")
    assert job.drain(timeout=60).state is State.FINISHED
    numbers = [row["n"] for row in lab.rows()]
    assert sorted(numbers) == list(range(len(numbers)))
    configurations = [row["config"] for row in lab.rows()]
    assert configurations == sorted(configurations, reverse=True) and len(set(configurations)) == 2


def test_with_available_now_the_job_ends_with_what_is_there(spark: SparkSession, lab: JobHarness) -> None:
    folder = lab.folder / "in"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.json").write_text(json.dumps({"n": number}))
    frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", "1").json(str(folder))
    job = sx.Job(spark, "lab", state=lab.folder / "state")
    writer = seen(sx.with_control(frame, uid="c")).writeStream.format("folder")
    writer = writer.options(uid="out", path=str(lab.folder / "out"))
    job.add("q", writer, available_now=True).start()
    until(lambda: lab.rows(), "rows")
    sequence = Sent(lab.folder / "state")("set_config", {"key": "k", "value": 1})
    assert job.await_termination().state is State.SUSPENDED
    assert sorted(row["n"] for row in lab.rows()) == list(range(6))
    assert stamps(lab) == [sequence] and lab.rows()[-1]["config"] == '{"k": 1}'


def test_a_replay_of_an_epoch_without_rows_is_no_problem(spark: SparkSession, lab: JobHarness, tmp_path: Path) -> None:
    """The empty source is asked for the tasks of an epoch that an earlier start has planned."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", "20").load().withColumnRenamed("value", "n")

    def frame() -> DataFrame:
        return seen(sx.with_control(rate, uid="c"))

    job = lab.job(frame()).start()
    until(lambda: lab.rows(), "rows")
    Sent(lab.folder / "state")("set_config", {"key": "k", "value": 1})
    until(lambda: stamps(lab), "an epoch obeys it")
    job.stop()
    count = len(lab.rows())
    again = lab.job(frame()).start()
    until(lambda: len(lab.rows()) > count, "further rows")
    again.stop()
    assert lab.rows()[-1]["config"] == '{"k": 1}'
    numbers = [row["n"] for row in lab.rows()]
    assert len(set(numbers)) == len(numbers)
    assert operators.events(lab.log, "commit")
