"""A windowed job under each setting `spark.sql.streaming.*`: its rows are right, or the setting is refused by name.

Each job is stopped after its first epoch and continued, so that the setting meets a checkpoint too.
"""

from collections.abc import Mapping

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobFailedError, SparkExtError
from spark_ext.jobs.job import Job
from spark_ext.model.lifecycle import State
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.logs.epoch_files import unrecorded_settings
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import first_epoch
from tests.support.waiting import until

PREFIX = "spark.sql.streaming."
PARTITIONS = "spark.sql.shuffle.partitions"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
LIMIT = 60.0  # a job that has not ended by then hangs, s
LOG_FORMAT = "offsetLog.formatVersion"
EVOLUTION = {"queryEvolution.enableSourceEvolution": "true", "queryEvolution.enableSinkEvolution": "true"}
FURTHER = {
    "aggregation.stateFormatVersion": "1", "asyncLogPurge.enabled": "false",
    "checkUnfinishedRepartitionOnRestart": "false", "checkpoint.fileChecksum.enabled": "false",
    "checkpoint.verifyMetadataExists.enabled": "false", "checkpointLocation": "/nowhere",
    "continuous.epochBacklogQueueSize": "1", "disabledV2MicroBatchReaders": "numbers", "disabledV2Writers": "delta_2pc",
    "fileSource.cleaner.numThreads": "0", "forceDeleteTempCheckpointLocation": "true",
    "internal.stateStore.partitions": "3", "join.stateFormatV4.enabled": "true", "join.stateFormatVersion": "1",
    "maxBatchesToRetainInMemory": "0", "metadataCache.enabled": "false", "metricsEnabled": "true",
    "minBatchesToRetain": "1", "noDataMicroBatches.enabled": "false", "noDataProgressEventInterval": "100",
    "numRecentProgressUpdates": "1", "optimizeOneRowPlan.enabled": "false", "pollingDelay": "500",
    "realTimeMode.allowlistCheck": "false", "realTimeMode.minBatchDuration": "1ms", "schemaInference": "true",
    "sessionWindow.merge.sessions.in.local.partition": "true", "stateStore.checkpointFormatVersion": "1",
    "stateStore.commitValidation.enabled": "false", "stateStore.compression.codec": "zstd",
    "stateStore.formatValidation.enabled": "false", "stateStore.minDeltasForSnapshot": "1",
    "stateStore.rocksdb.changelogCheckpointing.enabled": "false", "stateStore.rocksdb.formatVersion": "3",
    "stateStore.rowChecksum.enabled": "true", "stateStore.skipNullsForStreamStreamJoins.enabled": "true",
    "stateStore.stateSchemaCheck": "false", "stateStore.unloadOnCommit": "true",
    "statefulOperator.allowMultiple": "false", "statefulOperator.checkCorrectness.enabled": "false",
    "statefulOperator.useStrictDistribution": "false", "stopActiveRunOnRestart": "false",
    "transformWithState.stateSchemaVersion": "2", "triggerAvailableNowWrapper.enabled": "true",
    "unsupportedOperationCheck": "false", "validateEventTimeWatermarkColumn": "false",
    "verifyCheckpointDirectoryEmptyOnStart": "true",
}  # fmt: skip
REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "multipleWatermarkPolicy": ("max", ConfigurationError, "multipleWatermarkPolicy"),
    "numRecentProgressUpdates": ("0", ConfigurationError, "numRecentProgressUpdates"),
    "queryEvolution.enableSourceEvolution": ("true", AnalysisException, "enableSourceEvolution"),
    "stateStore.encodingFormat": ("avro", SparkExtError, "encoding format"),
    "stateStore.providerClass": (HDFS, JobFailedError, "stateStore.providerClass"),
}
UNTOUCHED = {
    "streamingQueryListeners": "classes of the user's, made when the session is",
    "stopTimeout": "how long the user lets Spark wait; a query that stops later fails the step with the setting's name",
    "ui.enabled": "static",
    "ui.retainedProgressUpdates": "static",
    "ui.retainedQueries": "static",
}


def set_all(lab: JobHarness, settings: Mapping[str, str]) -> None:
    if settings.keys() & EVOLUTION.keys() and not capabilities(lab.spark.version).evolution:
        pytest.skip("this Spark knows no names of sources")
    for name, value in settings.items():
        lab.spark.conf.set(PREFIX + name, value)


def windowed(lab: JobHarness, limit: int = 20) -> Job:
    """Counts per half minute; from epoch 1 on the source waits for the gate."""
    named = lab.spark.conf.get(f"{PREFIX}queryEvolution.enableSourceEvolution", "false") == "true"
    reader = lab.spark.readStream.format("numbers").option("uid", "in")
    reader = reader.name("the_input") if named and not (lab.folder / "unnamed").exists() else reader
    options = {"counts": "120,60", "max_rows_per_epoch": limit, "gate": lab.folder / "gate"}
    rows = reader.options(**{name: str(value) for name, value in options.items()}).load()
    windows = sx.with_watermark(rows, "ts", "10 seconds").groupBy(F.window("ts", "30 seconds")).count()
    writer = windows.select("window.start", "count").writeStream.format("delta_2pc")
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", restart_attempts=0)
    return job.add("q", writer.option("uid", "out").option("path", str(lab.folder / "out")))


def check_counts(lab: JobHarness) -> None:
    # Second n of both channels is in window n // 30: two rows for each of the first 60 seconds, one for the others.
    assert sorted(DeltaTable(lab.folder / "out").to_pyarrow_table()["count"].to_pylist()) == [30, 30, 60, 60]


@pytest.mark.slow(15, "two starts of a stateful query; the first one also starts the Python workers")
@pytest.mark.parametrize("settings", [EVOLUTION, FURTHER], ids=["evolution of sources and sinks", "others"])
def test_settings_give_the_right_rows(lab: JobHarness, settings: Mapping[str, str]) -> None:
    set_all(lab, settings)
    job = windowed(lab).start()
    first_epoch(lab)
    job.stop(LIMIT)
    (lab.folder / "gate").touch()
    result = windowed(lab, 80).start().await_termination(LIMIT)
    assert (result.state, result.query("q").state_rows) == (State.FINISHED, 0)
    check_counts(lab)


def test_with_evolution_what_reads_an_exchange_is_named(lab: JobHarness) -> None:
    set_all(lab, EVOLUTION)
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    x = made.exchange("x", partitions=1)
    reader = lab.spark.readStream.format("numbers").name("the_input")
    made.add("first", x.write(reader.options(uid="in", counts="5", max_rows_per_epoch="3").load()))
    lab.add(made, x.read("x-in"), query="second", out="out")
    assert made.run(progress=False).finished
    assert lab.numbers() == expected(5)


@pytest.mark.slow(15, "two starts of a stateful query")
def test_offset_log_format_2_keeps_the_partitions_of_the_state(lab: JobHarness) -> None:
    """Spark records no number of partitions there, and fails on an epoch that is planned and not committed."""
    lab.spark.conf.set(PREFIX + LOG_FORMAT, "2")
    lab.spark.conf.set(PARTITIONS, "3")
    job = windowed(lab, 60).start()
    until((lab.checkpoint() / "offsets" / "1").exists, "the epoch that moves the watermark is planned")
    job.stop(LIMIT)
    assert unrecorded_settings(str(lab.checkpoint()))[PARTITIONS] == "3"
    lab.spark.conf.set(PARTITIONS, "1")
    (lab.folder / "gate").touch()
    assert windowed(lab, 80).start().await_termination(LIMIT).state is State.FINISHED
    check_counts(lab)


def test_the_formats_of_the_offset_log_may_change_between_runs(lab: JobHarness) -> None:
    """The format of a checkpoint is that of its first start, or the new one; rows are right in any case."""
    job = windowed(lab).start()
    first_epoch(lab)
    job.stop(LIMIT)
    lab.spark.conf.set(f"{PREFIX}{LOG_FORMAT}", "2")
    (lab.folder / "gate").touch()
    assert windowed(lab).start().await_termination(LIMIT).state is State.FINISHED
    log = SparkLog(str(lab.checkpoint()))
    newest = log.newest_offsets()
    assert newest is not None and log.offsets(newest) is not None
    assert sum(DeltaTable(lab.folder / "out").to_pyarrow_table()["count"].to_pylist()) == 180


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_work_is_refused_by_name(lab: JobHarness, name: str) -> None:
    value, kind, words = REFUSED[name]
    (lab.folder / "unnamed").touch()
    (lab.folder / "gate").touch()
    set_all(lab, {name: value})
    with pytest.raises(kind, match=words):
        windowed(lab).start().await_termination(LIMIT)


def test_no_setting_is_forgotten(lab: JobHarness) -> None:
    public = {row.key for row in lab.spark.sql("SET -v").collect() if row.key.startswith(PREFIX)}
    assert {key.removeprefix(PREFIX) for key in public} <= {LOG_FORMAT, *EVOLUTION, *FURTHER, *REFUSED, *UNTOUCHED}
