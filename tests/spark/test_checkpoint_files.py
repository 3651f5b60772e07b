"""What an epoch costs in processes, and which queries are given another file manager."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import spark_ext as sx
from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.logs.checkpoint_directory import cheap_files, is_improved
from tests.support.jobs import JobHarness
from tests.support.waiting import until

DEFAULT = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
EPOCH = 1  # the epoch whose processes are counted: the first one also makes folders
# A file of an epoch in the checkpoint directory named first.
_FILE = re.compile(r"/(\w+)/(?:offsets|commits|state/\d+/\d+)/\.*(\d+)[_.]?\S*$")


@pytest.fixture
def plain(spark: SparkSession) -> SparkSession:
    """A session in which nobody has chosen a manager."""
    spark.conf.unset(FILE_MANAGER)
    return spark


@pytest.mark.parametrize(
    ("root", "given", "environment", "improved"),
    [
        ("file:/data/state/queries/q/checkpoint", None, {}, True),
        ("file:/data/state", None, {"DATABRICKS_RUNTIME_VERSION": "18.0"}, False),
        ("file:/data/state", local_files(), {}, False),
        ("file:/data/state", DEFAULT, {}, False),
        *((place, None, {}, False) for place in ("hdfs://name:8020/d", "s3a://b/d", "abfss://b@a/d", "dbfs:/d", "/d")),
    ],
)
def test_only_a_local_disk_without_a_choice_is_improved(
    root: str, given: str | None, environment: dict[str, str], improved: bool
) -> None:
    assert is_improved(root, given, environment) is improved


@contextmanager
def recorded(spark: SparkSession, file: Path) -> Iterator[list[str]]:
    """The command of each process that the JVM starts in the block, by its Flight Recorder; filled at the end."""
    java = spark._jvm
    assert java is not None
    recording = java.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart").withoutStackTrace()
    recording.start()
    found: list[str] = []
    try:
        yield found
        recording.stop()
        target = java.java.io.File(str(file)).toPath()
        recording.dump(target)
        events = java.jdk.jfr.consumer.RecordingFile.readAllEvents(target)
        found += [str(event.getString("command")) for event in events]
    finally:
        recording.close()


def manager(log: Any) -> str:
    """The class that writes one of Spark's logs."""
    kind = log.getClass()
    while kind.getSimpleName() != "HDFSMetadataLog":
        kind = kind.getSuperclass()
    field = kind.getDeclaredField("fileManager")
    field.setAccessible(True)
    return str(field.get(log).getClass().getName())


def managers(query: StreamingQuery) -> set[str]:
    """The classes that write a running query's logs and, by the setting of its own session, its state."""
    execution = query._jsq.streamingQuery()
    state = execution.sparkSessionForStream().sessionState().newHadoopConf().get(FILE_MANAGER)
    return {manager(execution.offsetLog()), manager(execution.commitLog()), state or DEFAULT}


def test_an_epoch_of_a_query_takes_a_fifth_of_the_processes(plain: SparkSession, tmp_path: Path) -> None:
    """Queries of one session at the same time, with the setting and without: it holds for one query alone."""
    plain.conf.set("spark.sql.shuffle.partitions", "4")
    rows = plain.readStream.format("rate-micro-batch").option("rowsPerBatch", 8).load()
    windows = rows.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "1 second")).count()

    def start(frame: DataFrame, name: str) -> StreamingQuery:
        return frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name)).start()

    with recorded(plain, tmp_path / "processes.jfr") as commands:
        with cheap_files(plain, str(tmp_path / "rows")):
            queries = {name: start(rows, name) for name in ("other_rows", "rows")}
        with cheap_files(plain, str(tmp_path / "windows")):
            queries |= {name: start(windows, name) for name in ("other_windows", "windows")}
        for name, query in queries.items():
            # The processes that check a commit follow it: of the others all but those are enough.
            last = EPOCH if name.startswith("other") else EPOCH + 1
            until((tmp_path / name / "commits" / str(last)).exists, f"epoch {last} of {name}")
            query.stop()
    used = {name: managers(query) for name, query in queries.items()}
    assert used == {name: {DEFAULT if name.startswith("other") else local_files()} for name in queries}
    assert plain.conf.get(FILE_MANAGER, None) is None
    count = Counter(query for query, epoch in map(_epoch, commands) if epoch == EPOCH)
    assert 0 < count["rows"] <= 4, count
    assert 0 < count["windows"] < 30, count
    assert count["other_rows"] >= 4 * count["rows"], count
    assert count["other_windows"] >= 4 * count["windows"], count


def _epoch(command: str) -> tuple[str, int]:
    """The query and the epoch for whose files a process was started."""
    found = _FILE.search(command)
    if found is None:
        return "", -1
    # The state after epoch n is version n + 1.
    return found[1], int(found[2]) - ("/state/" in command)


def test_a_manager_that_was_chosen_for_hadoop_is_kept(plain: SparkSession, tmp_path: Path) -> None:
    """As `spark.hadoop.spark.sql...` of spark-defaults.conf sets it."""
    hadoop = plain._jsparkSession.sparkContext().hadoopConfiguration()
    hadoop.set(FILE_MANAGER, DEFAULT)
    try:
        writer = plain.readStream.format("rate-micro-batch").option("rowsPerBatch", 8).load().writeStream.format("noop")
        with cheap_files(plain, str(tmp_path)):
            query = writer.option("checkpointLocation", str(tmp_path)).start()
        assert managers(query) == {DEFAULT}
    finally:
        hadoop.unset(FILE_MANAGER)


def test_a_job_keeps_a_chosen_manager_and_its_state_fits_either(lab: JobHarness, plain: SparkSession) -> None:
    """Also when Spark's default was chosen; each time beside what a killed driver leaves of an epoch's files."""
    rows = sx.with_watermark(lab.source(counts="60,60", max_rows_per_epoch=20), "ts", "10 seconds")
    windows = rows.groupBy(F.window("ts", "10 seconds")).count().select("window.start", "count")
    for given in (None, DEFAULT):
        if given is not None:
            plain.conf.set(FILE_MANAGER, given)
        following = lab.checkpoint() / "commits" / str(_newest(lab) + 1)
        job = lab.job(windows, interval="200 ms").start()
        until(following.exists, "a further epoch")
        assert [managers(query) for query in plain.streams.active] == [{given or local_files()}]
        assert plain.conf.get(FILE_MANAGER, None) == given
        job.stop()
        for folder in ("offsets", "commits"):
            name = f".{_newest(lab) + 1}.9f2b4c1e-5a53-4b3a-8f5e-2a3b4c5d6e7f.tmp"
            (lab.checkpoint() / folder / name).write_text("v1\n")
            (lab.checkpoint() / folder / f".{name}.crc").write_bytes(b"crc\0")
    plain.conf.unset(FILE_MANAGER)
    assert lab.run(windows).query("q").finished
    assert [row["count"] for row in lab.rows()] == [20] * 6


def _newest(lab: JobHarness) -> int:
    names = [path.name for path in (lab.checkpoint() / "commits").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


@pytest.mark.parametrize("name", [local_files(), DEFAULT])
def test_neither_manager_replaces_an_epoch_that_is_there(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Of two drivers on one state the second to write an epoch fails, as long as it does so visibly later."""
    java = spark._jvm
    assert java is not None
    path = java.org.apache.hadoop.fs.Path
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    package = java.org.apache.spark.sql.execution.streaming.checkpointing
    made = getattr(package, name.rpartition(".")[2])(path(f"file:{tmp_path}"), hadoop)
    second = made.createAtomic(path(f"file:{tmp_path}/0"), False)
    first = made.createAtomic(path(f"file:{tmp_path}/0"), False)
    first.write(1)
    first.close()
    second.write(2)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        second.close()
    assert (tmp_path / "0").read_bytes() == b"\x01"
