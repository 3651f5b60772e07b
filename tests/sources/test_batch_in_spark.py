"""Batch reads in Spark: the frames of one function are those of a job; what a batch cannot do is refused by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StateError, from_text
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.spark.session import formats
from spark_ext.testing.every_type import EVERY_TYPE, empty, row

ORDER = "id int, at timestamp"
LINES = ["id,at", *(f"{n},2026-03-01T{n // 10:02}:{n % 10:02}:00Z" for n in range(40)), "x,now", "7"]


@pytest.fixture(scope="module")
def folder(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("batch")
    rows = [*map(row, range(1, 30)), empty(31)]
    spark_of_process.createDataFrame(rows, EVERY_TYPE).coalesce(1).write.parquet(str(place / "typed"))
    (place / "orders").mkdir()
    (place / "orders" / "a.csv").write_text("\n".join(LINES))
    yield place


async def twice(row: Row) -> dict[str, Any]:
    return {**row.asDict(), "twice": 2 * row.id}


def frames(spark: SparkSession, folder: Path, *, batch: bool = False) -> dict[str, DataFrame]:
    """Values of each type; and bad rows, an async function, and the last windows over a watermark."""
    typed = sx.read(spark, batch=batch).format("files").option("uid", "typed").option("path", str(folder / "typed"))
    orders = sx.read(spark, batch=batch).format("files").option("uid", "orders").option("path", str(folder / "orders"))
    orders = orders.option("header", "true").option("watch", "true").option("on_bad_row", "quarantine")
    looked_up = sx.async_map(orders.schema(ORDER).load(), twice, f"{ORDER}, twice int")
    hourly = sx.with_watermark(looked_up, "at", "5 minutes").groupBy(F.window("at", "1 hour")).agg(F.sum("twice"))
    return {"typed": typed.load(), "hourly": hourly.toDF("window", "twice").select("window.start", "twice")}


def shown(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.core
@pytest.mark.slow(20, "runs a job with each type and a watermark, and reads the same in batch")
def test_one_function_defines_the_frames_of_a_job_and_of_a_notebook(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Before and after the job has read everything: a batch read takes nothing away."""
    before = {name: shown(frame) for name, frame in frames(spark, folder, batch=True).items()}
    assert len(before["typed"]) == 30 and len(before["hourly"]) == 4
    job = sx.Job(spark, "batch", state=tmp_path / "state")
    for name, frame in frames(spark, folder).items():
        job.add(
            name,
            frame.writeStream.format("delta_2pc").option("uid", name + "-out").option("path", str(tmp_path / name)),
        )
    result = job.run(until="now", emit="all", progress=False)
    assert result.query("hourly").bad_rows == 2
    for name, frame in frames(spark, folder, batch=True).items():
        assert shown(spark.read.format("delta").load(str(tmp_path / name))) == before[name] == shown(frame)
    table = spark.read.format("delta").load(str(tmp_path / "state" / "bad_rows" / "table"))
    seen = reader(spark, folder).option("bad_rows_of", ORDER).load()
    assert seen.schema == table.schema
    columns = ("uid", "channel", "position", "reason", "raw", "raw_bytes", "role", "replaced_in")
    assert shown(seen.select(*columns)) == shown(table.select(*columns))


def reader(spark: SparkSession, folder: Path) -> Any:
    return spark.read.format("files").options(uid="orders", path=str(folder / "orders"), header="true")


def refusal(action: Any) -> SparkExtError:
    with pytest.raises(PySparkException) as failed:
        action()
    found = from_text(str(failed.value))
    assert found is not None, str(failed.value)
    return found


@pytest.mark.core
def test_what_a_batch_read_cannot_do_is_refused_by_name(spark: SparkSession, folder: Path) -> None:
    endless = refusal(spark.read.format("datagen").load().count)
    assert isinstance(endless, ConfigurationError) and "needs an end" in endless.what
    bad = refusal(reader(spark, folder).schema(ORDER).load().collect)
    assert isinstance(bad, DataError) and "on_bad_row=quarantine" in bad.do
    limited = reader(spark, folder).options(on_bad_row="quarantine", max_bad_rows=1).schema(ORDER).load()
    assert "max_bad_rows" in refusal(limited.collect).what
    unknown = refusal(lambda: spark.read.format("datagen").option("row", "3").load().count())
    assert "unknown option 'row'; did you mean 'rows'?" in unknown.what
    valued = (
        spark.read.format("datagen").option("rows", "3").load().where(F.col("id") < sx.control.value("n", "int", 2))
    )
    outside = refusal(valued.collect)
    assert isinstance(outside, StateError) and "take the configuration as an argument" in outside.do


@pytest.mark.core
def test_a_batch_write_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever its options: a missing one would be the wrong thing to mend."""
    sinks = sorted(one.name() for one in formats.load() if issubclass(one, TwoPhaseCommitSink))
    assert "delta_2pc" in sinks
    for name, mode in zip(sinks, ("append", "overwrite") * len(sinks), strict=False):
        found = refusal(lambda name=name, mode=mode: spark.range(3).write.format(name).mode(mode).save())
        assert isinstance(found, ConfigurationError) and found.operator == f"sink '{name}'"
        assert f"df.writeStream.format('{name}')" in found.do
    job = sx.Job(spark, "batch", state=tmp_path / "state")
    batch = spark.read.format("datagen").option("rows", 3).load()
    with pytest.raises(ConfigurationError, match="writer of a batch"):
        job.add("q", batch.write.format("delta_2pc"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a DataFrame was given"):
        job.add("q", batch)  # type: ignore[arg-type]


@pytest.mark.core
def test_functions_for_streams_leave_batch_frames_as_they_are(spark: SparkSession) -> None:
    rows = sx.read(spark, batch=True).format("datagen").option("rows", 3).load()
    assert sx.with_control(rows, "stamp") is rows
    assert sx.with_watermark(rows, "ts", "1 hour").collect() == rows.collect()
    with pytest.raises(ConfigurationError, match="no column 'at'"):
        sx.with_watermark(rows, "at", "1 hour")
    assert sx.read(spark).format("datagen").option("uid", "a").load().isStreaming
