"""What `job.add` refuses: all that would otherwise be ignored, or fail in an epoch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.jobs.job import Job
from spark_ext.ledger.schema import IncidentRow
from spark_ext.queries.spec import query_spec
from spark_ext.queries.writer_checks import check_target, check_writer, partition_option
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.contract import WriterTarget
from tests.support import validators
from tests.support.jobs import JobHarness

SINKS = ("delta_2pc", "files_2pc", "kafka_2pc", "http_2pc", "postgres_2pc")
PLAIN = WriterTarget("delta_2pc", {"uid": "out"}, "Append", "ProcessingTimeTrigger(0)", ())


def test_a_plain_writer_passes_and_sparks_own_sinks_keep_modes() -> None:
    check_target(PLAIN, "q")
    check_target(replace(PLAIN, trigger="AvailableNowTrigger"), "q")
    assert partition_option(PLAIN, "q") is None
    check_target(replace(PLAIN, format="foreachBatch", output_mode="Complete", partitioning=("n",)), "q")
    assert partition_option(replace(PLAIN, format="parquet", partitioning=("n",)), "q") is None


@pytest.mark.parametrize("mode", ["Complete", "Update"])
@pytest.mark.parametrize("sink", SINKS)
def test_a_mode_that_the_sink_does_not_have_is_refused(sink: str, mode: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the output mode is {mode.lower()}") as refused:
        check_target(replace(PLAIN, format=sink, output_mode=mode), "job 'j', query 'q'")
    assert sink in refused.value.what and "with_watermark" in refused.value.do


@pytest.mark.parametrize(
    ("change", "words", "do"),
    [
        ({"trigger": "ProcessingTimeTrigger(2000)"}, "the trigger", "interval"),
        ({"trigger": "ContinuousTrigger(1000)"}, "the trigger", "interval"),
        ({"trigger": "RealTimeTrigger(5000)"}, "the trigger", "interval"),
        ({"clustering": ("n",)}, r"clusterBy\(n\)", "remove"),
    ],
)
def test_what_a_job_sets_or_would_ignore_is_refused(change: dict[str, Any], words: str, do: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        check_target(replace(PLAIN, **change), "q")
    assert do in refused.value.do


@pytest.mark.parametrize("sink", ["delta_2pc", "files_2pc"])
def test_partition_by_is_the_sinks_option(sink: str) -> None:
    target = replace(PLAIN, format=sink, partitioning=("day", "origin"))
    assert partition_option(target, "q") == "day,origin"
    same = replace(target, options={"uid": "out", "partition_by": "day, origin"})
    assert partition_option(same, "q") == "day,origin"
    with pytest.raises(ConfigurationError, match="'partition_by' is 'origin'"):
        partition_option(replace(target, options={"partition_by": "origin"}), "q")
    with pytest.raises(ConfigurationError, match="'a,b'"):
        partition_option(replace(target, partitioning=("a,b",)), "q")


@pytest.mark.parametrize("sink", ["kafka_2pc", "http_2pc", "postgres_2pc"])
def test_partition_by_is_refused_where_there_are_no_partitions(sink: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"partitionBy\(day\).*'{sink}' has no partitions"):
        partition_option(replace(PLAIN, format=sink, partitioning=("day",)), "q")


@pytest.mark.parametrize(
    ("given", "words"), [(None, "None was given"), (1, "type int"), ("delta", "type str"), ([], "type list")]
)
def test_what_is_no_writer_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        check_writer(given, "q")
    assert "df.writeStream" in refused.value.do


def refused(lab: JobHarness, writer: Any, **added: Any) -> ConfigurationError:
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    with pytest.raises(ConfigurationError) as error:
        job.add("q", writer, **added)
    assert "query 'q'" in error.value.operator or error.value.what.startswith("the option 'uid'")
    assert error.value.kept and error.value.do
    assert not (lab.folder / "state").exists() and not (lab.folder / "out").exists()
    return error.value


def delta(lab: JobHarness, frame: DataFrame) -> Any:
    return frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(lab.folder / "out"))


def test_objects_that_are_no_stream_writers_are_refused(lab: JobHarness) -> None:
    batch, stream = lab.spark.range(3), lab.source()
    assert "writer of a batch" in refused(lab, batch.write).what
    assert "writer of a batch" in refused(lab, batch.writeTo("t")).what
    assert "a DataFrame" in refused(lab, stream).what
    running = stream.writeStream.format("noop").option("checkpointLocation", str(lab.folder / "c")).start()
    error = refused(lab, running)
    running.stop()
    assert "runs already" in error.what and "toTable()" in error.what and "stop()" in error.do


def test_sources_that_a_job_cannot_read_to_an_end_are_refused(lab: JobHarness) -> None:
    stream = lab.spark.readStream.format("numbers").schema("channel string, n bigint, ts timestamp").load()
    assert "'uid' is missing" in refused(lab, delta(lab, stream)).what
    (lab.folder / "in").mkdir()
    lab.spark.range(3).write.parquet(str(lab.folder / "in"), mode="append")
    reader = lab.spark.readStream.format("files").option("uid", "in").option("path", str(lab.folder / "in"))
    error = refused(lab, delta(lab, reader.option("watch", "true").load()), available_now=True)
    assert "'in' (files) has no end" in error.what and "watch" in error.do
    assert "has no end" in refused(lab, delta(lab, lab.source(live=True)).trigger(availableNow=True)).what
    error = refused(lab, delta(lab, lab.source("out")))
    assert "self-join" not in error.do and "'out-in'" in error.do


def windows(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("ts", "1 minute")).count().select("window.start", "count")


PLAIN_WATERMARKS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "over one source": lambda a, b: windows(a.withWatermark("ts", "1 second")),
    "over two": lambda a, b: windows(a.union(b).withWatermark("ts", "1 second")),
    "on one side": lambda a, b: windows(sx.with_watermark(a, "ts", "1 second")).join(
        windows(b.withWatermark("ts", "1 second")), ["start"]
    ),
    "above ours": lambda a, b: windows(sx.with_watermark(a, "ts", "1 second").withWatermark("ts", "1 second")),
}


@pytest.mark.parametrize("case", PLAIN_WATERMARKS)
def test_sparks_own_watermark_over_channel_sources_is_refused(lab: JobHarness, case: str) -> None:
    error = refused(lab, delta(lab, PLAIN_WATERMARKS[case](lab.source("a"), lab.source("b"))))
    assert "withWatermark on column 'ts'" in error.what and "spark_ext.with_watermark(df, 'ts', delay)" in error.do


def test_sparks_own_watermark_over_its_own_source_is_accepted(lab: JobHarness) -> None:
    """Nobody knows its end, so that `with_watermark` would be the same."""
    rate = lab.spark.readStream.format("rate").load().withColumnRenamed("timestamp", "ts")
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("plain", delta(lab, windows(rate.withWatermark("ts", "1 second"))))
    job.add("batch", lab.source("a").writeStream.format("noop"))


def test_what_has_to_be_finalized_is_refused_beside_sparks_source(lab: JobHarness) -> None:
    """Only a source of channels can make the epochs that it may need: it would be waited for at the end of each run."""
    rate = lab.spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match=r"'q-out' \(patient_folder\) has to be finalized.* source 'rate'"):
        lab.job(rate, sink="patient_folder")
    beside = lab.source().select("n").union(rate.select("value"))
    with pytest.raises(ConfigurationError, match="requires_finalization"):
        lab.job(beside, sink="patient_folder")
    lab.job(rate)


@pytest.mark.without_validators(validators.no_state_left, reason="duplicates are remembered without an end")
def test_state_that_is_left_at_the_end_is_said(lab: JobHarness, caplog: pytest.LogCaptureFixture) -> None:
    result = lab.run(lab.source(counts="5").dropDuplicates(["n"]))
    assert result.finished and result.query("q").state_rows == 5
    assert any("finished with 5 rows in its state" in record.getMessage() for record in caplog.records)
    assert "5 rows left in its state" in str(result)
    assert [row.type for row in lab.ledger.table(IncidentRow).rows()] == ["state_left"]


def test_settings_of_a_writer_are_found_on_it(lab: JobHarness) -> None:
    rows = lab.source()
    counts = windows(sx.with_watermark(rows, "ts", "1 second"))
    assert "output mode is complete" in refused(lab, delta(lab, counts).outputMode("complete")).what
    for trigger in ("processingTime", "continuous", "realTime"):
        assert "trigger" in refused(lab, delta(lab, rows).trigger(**{trigger: "3 seconds"})).what
    assert "Trigger.Once" in refused(lab, delta(lab, rows).trigger(once=True)).what
    assert "clusterBy" in refused(lab, delta(lab, rows).clusterBy("n")).what


def test_what_a_job_sets_is_not_set_on_the_users_writer(lab: JobHarness) -> None:
    frame = lab.spark.readStream.format("rate").load()
    given = delta(lab, frame).option("Compression", "zstd").partitionBy("value").outputMode("append")
    before = CLASSIC.target(given)
    own = query_spec("j", "q", given, available_now=False).writer
    own.option("checkpointLocation", "elsewhere").trigger(once=True)
    assert CLASSIC.target(given) == before
    ours = {"checkpointlocation": ""}
    assert {**CLASSIC.target(own).options, **ours} == {**before.options, **ours, "partition_by": "value"}
    batch = query_spec("j", "q", frame.writeStream.foreachBatch(lambda *_: None), available_now=False)
    assert CLASSIC.target(batch.writer).format == "foreachBatch"


def test_a_reset_of_an_unknown_query_is_refused(tmp_path: Path) -> None:
    nothing: Any = None  # a reset needs no session
    with pytest.raises(ConfigurationError, match="'daily', which this job never had; its queries so far: none"):
        Job(nothing, "lab", state=tmp_path).reset("daily")
    assert not list(tmp_path.iterdir())


def test_a_stopped_session_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLASSIC, "is_stopped", lambda _: True)
    writer = spark.readStream.format("rate").load().writeStream
    with pytest.raises(ConfigurationError, match="has been stopped"):
        check_writer(writer, "q")
