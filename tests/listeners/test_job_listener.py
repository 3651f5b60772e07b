"""`JobListener`: Spark's events as hints, by its own way into the JVM and by pyspark's."""

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery

from spark_ext.listeners import Hint, JobListener
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.watching.query_events import hint_of
from tests.support.waiting import until


def run(spark: SparkSession, folder: Path, epochs: int) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    until(lambda: (folder / "commits" / str(epochs - 1)).exists(), f"{epochs} epochs")
    return query


def test_each_event_is_a_hint_until_the_listener_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    hints: list[Hint] = []
    listener = JobListener(hints.append)
    spark.streams.addListener(listener)
    query = run(spark, tmp_path / "a", 3)
    until(lambda: len([hint for hint in hints if hint.kind == "progress"]) >= 3, "three reports")
    query.stop()
    until(lambda: hints[-1].kind == "terminated", "the end")
    assert {(hint.query_id, hint.run_id) for hint in hints} == {(str(query.id), str(query.runId))}
    assert [hint.kind for hint in hints[:2]] == ["started", "progress"]
    reports = [hint for hint in hints if hint.kind == "progress"]
    assert [hint.epoch for hint in reports[:3]] == [0, 1, 2]
    assert {hint.input_rows for hint in reports[:3]} == {7}
    assert all(hint.duration_ms and hint.state_rows == 0 for hint in reports[:3])
    spark.streams.removeListener(listener)
    before = len(hints)
    run(spark, tmp_path / "b", 1).stop()
    assert len(hints) == before


def test_reports_are_asked_for_from_an_epoch_on(spark: SparkSession, tmp_path: Path) -> None:
    query = run(spark, tmp_path / "a", 4)
    until(lambda: len(query.recentProgress) >= 4, "four reports")
    query.stop()
    everything = [hint_of(report).epoch for report in CLASSIC.recent_progress(query, -1)]
    assert everything[:4] == [0, 1, 2, 3]
    assert [hint_of(report).epoch for report in CLASSIC.recent_progress(query, 1)] == everything[2:]
    assert CLASSIC.recent_progress(query, 10_000) == []


def test_pysparks_own_events_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    query = run(spark, tmp_path / "a", 1)
    until(lambda: query.recentProgress, "a report")
    query.stop()
    report = CLASSIC.recent_progress(query, -1)[0]
    hints: list[Hint] = []
    JobListener(hints.append).onQueryProgress(QueryProgressEvent.fromJson({"progress": json.loads(report)}))
    assert hints == [hint_of(report)]


def test_a_hint_that_fails_is_not_sparks_to_hear_of() -> None:
    def failing(_: Hint) -> None:
        raise ValueError("no")

    JobListener(failing).terminated("a", "b")
    JobListener(print).progressed("no report")
