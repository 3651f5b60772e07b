"""Lookups in jobs: joins, functions, and histories with savepoints. For versions see conformance E15."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.exchange.descriptor import event_times
from spark_ext.jobs.job import Job
from spark_ext.jobs.lookup import Lookup
from spark_ext.model.lifecycle import State
from tests.support.jobs import JobHarness, numbers, stopped
from tests.support.versions import needs_arrow_functions

ROWS: Final[list[dict[str, Any]]] = [
    {"channel": "0", "name": "zero", "tags": ["a"]},
    {"channel": "1", "name": "one", "tags": None},
    {"channel": "1", "name": "uno", "tags": ["b", "c"]},
    {"channel": None, "name": "nobody", "tags": None},
]


def table(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    schema = pa.schema([("channel", pa.string()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
    write_deltalake(str(path), pa.Table.from_pylist([*rows], schema), mode="overwrite")
    return path


def named(path: Path, *names: str) -> None:
    """The next version: the names of channels 0, 1 and so on."""
    table(path, [{"channel": str(number), "name": name, "tags": None} for number, name in enumerate(names)])


def writer(lab: JobHarness, frame: DataFrame, out: str) -> DataStreamWriter:
    return frame.writeStream.format("delta_2pc").option("uid", f"{out}-table").option("path", str(lab.folder / out))


def rows(lab: JobHarness, out: str = "out") -> list[dict[str, Any]]:
    place = str(lab.folder / out)
    found: list[dict[str, Any]] = DeltaTable(place).to_pyarrow_table().to_pylist() if Path(place).exists() else []
    return found


@pytest.mark.core
@needs_arrow_functions
def test_a_join_is_that_of_sql_and_keeps_watermarks(spark: SparkSession, lab: JobHarness) -> None:
    """Also over Spark's own sources, with `with_control`; functions look the same rows up."""
    job = sx.Job(spark, "lab", state=lab.folder / "state")
    names = job.lookup("names", table(lab.folder / "names"))
    frame = numbers(spark, "in", counts="2,2,2").withColumn("channel", F.when(F.col("channel") < 2, F.col("channel")))
    marked = sx.with_watermark(frame, "ts", "1 minute")
    left = names.join(marked, on="channel")
    assert left.columns == [*frame.columns, "name", "tags"] and event_times(left.schema) == event_times(marked.schema)
    job.add("left", writer(lab, left, "left"))
    inner = names.join(numbers(spark, "other", counts="1,1,1"), ["channel"], how="inner")
    job.add("inner", writer(lab, inner, "inner"))
    (lab.folder / "in").mkdir()
    (lab.folder / "in" / "0.json").write_text(json.dumps({"channel": "1"}))
    own = spark.readStream.schema("channel string").json(str(lab.folder / "in"))
    job.add("own", writer(lab, names.join(sx.with_control(own, uid="c"), "channel"), "own"), available_now=True)
    assert job.run(progress=False).state is State.SUSPENDED
    of_left = sorted(
        (row["channel"] or "", row["n"], row["name"] or "", row["tags"] or []) for row in rows(lab, "left")
    )
    both = [("1", n, name, tags) for n in (0, 1) for name, tags in (("one", []), ("uno", ["b", "c"]))]
    assert of_left == [*(("", n, "", []) for n in (0, 1)), *(("0", n, "zero", ["a"]) for n in (0, 1)), *both]
    assert sorted((row["channel"], row["name"]) for row in rows(lab, "inner")) == [
        ("0", "zero"),
        ("1", "one"),
        ("1", "uno"),
    ]
    assert sorted(row["name"] for row in rows(lab, "own")) == ["one", "uno"]


def test_a_join_that_cannot_be_is_refused_before_the_start(spark: SparkSession, lab: JobHarness) -> None:
    job = sx.Job(spark, "lab", state=lab.folder / "state")
    names = job.lookup("names", table(lab.folder / "names"))
    assert job.lookup("names", lab.folder / "names") is names
    with pytest.raises(ConfigurationError, match="declared it before"):
        job.lookup("names", lab.folder / "names", key="channel")
    frame = numbers(spark, "in")
    for df, on, how, what in (
        (frame, "n", "left", "'n' is not in the lookup"),
        (frame, "name", "left", "'name' of the frame is not there"),
        (frame, "channel", "outer", "how is 'outer'"),
        (frame, (), "left", "no column to look rows up by"),
        (frame.withColumn("Name", F.lit(1)), "channel", "left", "'name' would be there twice"),
        (frame.withColumn("channel", F.lit(1)), "channel", "left", "of the frame is int, and string in the lookup"),
        (frame.withColumn("tags", F.array(F.lit("a"))), "tags", "left", "which is no type of a key"),
        (frame.select("n", F.col("channel"), F.col("channel")), "channel", "left", "'channel' would be there twice"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=what):
            names.join(df, on, how)
    alone = job.lookup("alone", lab.folder / "names", columns=["channel"])
    with pytest.raises(ConfigurationError, match="or none to add"):
        alone.join(frame, "channel")
    with pytest.raises(StateError, match="does not run in an epoch"):
        names.table()


@needs_arrow_functions
def test_a_query_without_events_is_told_what_it_lacks(spark: SparkSession, lab: JobHarness) -> None:
    job = sx.Job(spark, "lab", state=lab.folder / "state")
    names = job.lookup("names", table(lab.folder / "names"))
    own = spark.readStream.format("rate").load().withColumn("channel", F.lit("0"))
    job.add("q", writer(lab, names.join(own, "channel"), "out"))
    with pytest.raises(JobFailedError, match="no version of lookup 'names' is in force here") as refused:
        job.run(progress=False)
    assert "sx.with_control" in refused.value.do


def seen(names: Lookup, frame: DataFrame) -> DataFrame:
    """The rows, with the version's number of rows as `size`, and the name of the channel."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [names.get(channel.as_py()) for channel in batch["channel"]]
            texts = pa.array([None if one is None else one["name"] for one in found], pa.string())
            yield pa.RecordBatch.from_arrays([batch["channel"], batch["n"], texts], ["channel", "n", "name"])

    return frame.mapInArrow(look, "channel string, n bigint, name string")


class Histories:
    """A job that reads one channel of 60 rows, ten in an epoch. Without the file `gate` it plans one epoch only."""

    def __init__(self, lab: JobHarness) -> None:
        self.lab, self.names, self.gate = lab, lab.folder / "names", lab.folder / "gate"

    def job(self, name: str = "lab", out: str = "out") -> Job:
        made = sx.Job(self.lab.spark, name, state=self.lab.folder / name)
        names = made.lookup("names", self.names, key="channel")
        frame = numbers(self.lab.spark, "in", counts="60", max_rows_per_epoch=10, gate=self.gate)
        return made.add("q", writer(self.lab, seen(names, frame), out))

    def found(self, out: str = "out") -> list[str]:
        """The name of each row, by its number."""
        return [row["name"] for row in sorted(rows(self.lab, out), key=lambda row: row["n"])]


@pytest.mark.slow(30, "runs a job six times, with two restores")
def test_a_restore_brings_back_the_version_of_the_savepoint(spark: SparkSession, lab: JobHarness) -> None:
    it, place = Histories(lab), lab.folder / "savepoint"
    named(it.names, "first")
    stopped(it.job())
    it.job().savepoint(place)
    begun = len(it.found())
    named(it.names, "second")
    sent = it.job().control.reload("names")
    assert it.job().control.lookups()[0]["version"] == 0, "it waits for the next start"
    job = it.job().start()
    assert sent.wait(60).result == {"version": 1}
    it.gate.touch()
    assert job.await_termination().finished
    assert it.found() == ["first"] * begun + ["second"] * (60 - begun)

    assert it.job().restore(place).run(progress=False).finished
    assert it.found() == ["first"] * 60, "what is read again finds what it would have found then"
    assert it.job().control.lookups()[0]["version"] == 0
    other = it.job("other", "other-out")
    assert other.restore(place).run(progress=False).finished
    assert it.found("other-out") == ["first"] * (60 - begun)


@pytest.mark.slow(15, "runs a job three times")
def test_a_version_that_is_gone_is_refused_and_a_reload_is_the_way_out(spark: SparkSession, lab: JobHarness) -> None:
    it = Histories(lab)
    named(it.names, "first")
    stopped(it.job())
    begun = it.found()
    shutil.rmtree(it.names)
    named(it.names, "another table")
    with pytest.raises(StateError, match="another one was created there") as refused:
        it.job().start()
    assert "spark-ext control STATE reload names" in refused.value.do
    it.gate.touch()
    it.job().control.reload("names")
    assert it.job().run(progress=False).finished
    assert it.found() == begun + ["another table"] * (60 - len(begun))
    assert it.job().run(progress=False).finished, "a finished job needs no version"


@pytest.mark.slow(10, "runs two queries, one after the other, twice")
@needs_arrow_functions
def test_dimension_first_then_facts(spark: SparkSession, lab: JobHarness) -> None:
    """The table is there only when the first query has finished; a later start declares the lookup again."""

    def made() -> Job:
        job = sx.Job(spark, "lab", state=lab.folder / "state")
        dimension = numbers(spark, "dimension-in", counts="1,1").selectExpr("channel", "concat('c', channel) AS name")
        job.add("dimension", writer(lab, dimension, "names"))

        def facts() -> DataStreamWriter:
            names = job.lookup("names", lab.folder / "names", key="channel")
            return writer(lab, names.join(numbers(spark, "in", counts="3,3"), "channel"), "out")

        return job.add("facts", facts, after="dimension")

    with pytest.raises(ConfigurationError, match="not a Delta table"):
        made().lookup("names", lab.folder / "names")
    assert made().run(progress=False).finished
    assert {(row["channel"], row["name"]) for row in rows(lab)} == {("0", "c0"), ("1", "c1")}
    assert made().run(progress=False).finished
