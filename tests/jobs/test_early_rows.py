"""Runs with `emit="early"`: open windows are shown in a table, and the job goes on as if they had not been."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.errors import ConfigurationError
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.jobs.result import JobResult
from spark_ext.model.lifecycle import State
from spark_ext.queries.early import why_not_shown
from spark_ext.queries.spec import query_spec
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.views.status import read_status
from tests.support.refusals import refused
from tests.support.waiting import until

UPSERT = {"mode": "upsert", "key": "start,shop"}
DELAY, WINDOW = 20, 30  # of the watermark, and of a window, minutes


class Hourly:
    """A job that counts rows by shop and half hour."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "in").mkdir(exist_ok=True)

    def add(self, rows: list[tuple[int, str]]) -> None:
        """A file of rows: minute of the day, and shop."""
        lines = [json.dumps({"at": f"2026-03-01T{at // 60:02}:{at % 60:02}:00Z", "shop": shop}) for at, shop in rows]
        (self.folder / "in" / f"{self.files}.json").write_text("\n".join(lines))
        self.files += 1

    def rows(self, uid: str = "in") -> DataFrame:
        reader = self.spark.readStream.format("files").schema("at timestamp, shop string")
        frame = reader.options(uid=uid, path=str(self.folder / "in"), format="json", watch="true").load()
        return sx.with_watermark(frame, "at", f"{DELAY} minutes")

    def job(self, **given: Any) -> Job:
        made = sx.Job(self.spark, "hourly", state=self.folder / "job-state", restart_backoff=20)
        return self.add_counts(made, self.rows(), **given)

    def add_counts(
        self, made: Job, rows: DataFrame, *, extra: bool = False, least: int = 0, accept: str = "", **sink: str
    ) -> Job:
        counts = rows.groupBy(F.window("at", f"{WINDOW} minutes"), "shop").agg(F.count("*").alias("n"))
        frame = counts.select("window.start", "shop", "n", *([F.lit(1).alias("extra")] if extra else []))
        options = {"uid": "out", "path": str(self.folder / "job"), "schema_evolution": "add_columns", **UPSERT, **sink}
        frame = frame.where(F.col("n") > least) if least else frame
        accepted = (accept,) if accept else ()
        return made.add("q", frame.writeStream.format("delta_2pc").options(**options), accept=accepted)

    def run(self, emit: str, **given: Any) -> JobResult:
        result = self.job(**given).run(until="now", emit=emit, progress=False)  # type: ignore[arg-type]
        assert not (self.folder / "job-state" / "queries" / "q" / "early").exists()
        return result

    def table(self) -> dict[tuple[int, str], int]:
        found = DeltaTable(self.folder / "job").to_pyarrow_table().to_pylist()
        return {(row["start"].hour * 60 + row["start"].minute, row["shop"]): row["n"] for row in found}


class Model:
    """What the table holds: a loop in pandas over the files."""

    def __init__(self) -> None:
        self.read, self.table, self.watermark = Counter[tuple[int, str]](), dict[tuple[int, str], int](), -1.0

    def run(self, new: list[tuple[int, str]], emit: str) -> None:
        rows = pd.DataFrame(new, columns=["at", "shop"])
        rows["start"] = rows["at"] // WINDOW * WINDOW
        self.read.update(rows[rows["start"] + WINDOW > self.watermark].groupby(["start", "shop"]).size().to_dict())
        self.watermark = max(self.watermark, rows["at"].max() - DELAY if len(rows) else -1)
        for (start, shop), count in self.read.items():
            if emit != "closed" or start + WINDOW <= self.watermark:
                self.table[start, shop] = count


@pytest.mark.core
@pytest.mark.slow(12, "a job four times")
def test_open_windows_are_shown_and_their_later_rows_count(spark: SparkSession, tmp_path: Path) -> None:
    hourly = Hourly(spark, tmp_path)
    log = SparkLog(str(tmp_path / "job-state" / "queries" / "q" / "checkpoint"))
    hourly.add([(5, "a"), (40, "a"), (41, "b")])
    first = hourly.run("early")
    assert (first.state, first.query("q").early_rows) == (State.SUSPENDED, 3)
    assert "3 rows of open windows shown early" in first.query("q").reason and "shown early" in str(first)
    known = read_status(str(tmp_path / "job-state")).query("q")
    assert known.reason == first.query("q").reason, "the ledger says it, too"
    before = log.newest_commit(), log.newest_offsets(), log.query_id()
    again = hourly.run("early")
    assert (again.rows, again.epochs, again.query("q").early_rows) == (0, 0, 3)
    assert before == (log.newest_commit(), log.newest_offsets(), log.query_id()), "its own log has not moved"
    assert hourly.table() == {(0, "a"): 1, (30, "a"): 1, (30, "b"): 1}
    hourly.add([(42, "a"), (55, "b"), (56, "c")])
    (tmp_path / "job-state" / "queries" / "q" / "early" / "of a killed driver").mkdir(parents=True)
    hourly.run("closed")
    assert hourly.table() == {(0, "a"): 1, (30, "a"): 1, (30, "b"): 1}
    assert hourly.run("all").finished
    assert hourly.table() == {(0, "a"): 1, (30, "a"): 2, (30, "b"): 2, (30, "c"): 1}


ROWS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abc")), max_size=6)


@pytest.mark.slow(120, "histories of runs of a job")
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ROWS, st.sampled_from(["early", "early", "closed"])), min_size=2, max_size=4))
def test_after_each_run_the_table_is_what_pandas_says(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: list[tuple[list[tuple[int, str]], str]]
) -> None:
    hourly, model = Hourly(spark, tmp_path_factory.mktemp("early")), Model()
    for rows, emit in (*history, ([], "all")):
        if rows:
            hourly.add(rows)
        result = hourly.run(emit)
        model.run(rows, emit)
        assert hourly.table() == model.table, (emit, str(result))
        shown = result.query("q").early_rows
        assert (shown is not None) == (emit == "early")


@pytest.mark.slow(30, "a job six times, a savepoint and a restore")
def test_a_restore_to_before_an_early_emission_and_a_change(spark: SparkSession, tmp_path: Path) -> None:
    hourly = Hourly(spark, tmp_path)
    hourly.add([(5, "a"), (40, "b")])
    hourly.run("early")
    hourly.job().savepoint(tmp_path / "savepoint")
    hourly.add([(41, "c"), (100, "a")])
    hourly.run("early")
    assert hourly.table() == {(0, "a"): 1, (30, "b"): 1, (30, "c"): 1, (90, "a"): 1}
    hourly.job().restore(tmp_path / "savepoint")
    (found,) = hourly.job(least=1).plan(until="now").refusals
    assert "an earlier run has shown open windows early" in found.what and "'Filter' follows" in found.what
    assert hourly.job(least=1, accept="q.early").plan(until="now").accepted
    assert hourly.table() == {(0, "a"): 1, (30, "b"): 1}, "what was shown later is gone"
    (tmp_path / "in" / "1.json").unlink()
    hourly.add([(42, "b")])
    assert hourly.run("early", extra=True).query("q").early_rows == 2
    assert hourly.table() == {(0, "a"): 1, (30, "b"): 2}
    assert hourly.run("all", extra=True).finished
    assert hourly.table() == {(0, "a"): 1, (30, "b"): 2}
    assert set(DeltaTable(tmp_path / "job").to_pandas()["extra"]) == {1}


@pytest.mark.slow(30, "a job three times")
def test_a_step_that_fails_is_repeated_and_one_that_is_stopped_shows_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly, gate = Hourly(spark, tmp_path), tmp_path / "gate"
    hourly.add([(5, "a")])
    for action in ("raise", f"wait:{gate}"):
        monkeypatch.setattr(failpoints, "_passed", Counter())
        monkeypatch.setenv(failpoints.VARIABLE, f"{FailPoint.EARLY_COPIED}={action}")
        if action == "raise":
            assert hourly.run("early").query("q").early_rows == 1
    hourly.add([(6, "a")])
    job = hourly.job()
    ended = threading.Thread(target=lambda: job.run(until="now", emit="early", progress=False))
    ended.start()
    until(gate.with_name("gate.waiting").exists, "the copy")
    stopped = threading.Thread(target=job.stop)
    stopped.start()
    until(lambda: all(run.stopping for run in job.runs), "the stop")
    gate.touch()
    stopped.join()
    ended.join()
    (query,) = job.snapshot().queries
    assert (query.state, query.early_rows, hourly.table()) == (State.CANCELED, None, {(0, "a"): 1})
    assert hourly.run("early").rows == 0
    assert hourly.table() == {(0, "a"): 2}


@pytest.mark.slow(30, "a job of two queries twice")
def test_of_linked_queries_the_one_that_can_shows_its_windows(spark: SparkSession, tmp_path: Path) -> None:
    hourly = Hourly(spark, tmp_path)

    def run() -> JobResult:
        made = sx.Job(spark, "hourly", state=tmp_path / "job-state")
        x = made.exchange("x", partitions=2)
        made.add("first", x.write(hourly.rows()))
        hourly.add_counts(made, sx.with_watermark(x.read("x-in"), "at", f"{DELAY} minutes"))
        return made.run(until="now", emit="early", progress=False)

    hourly.add([(5, "a"), (6, "b")])
    assert [query.early_rows for query in run().queries] == [None, 2]
    hourly.add([(7, "a"), (100, "a")])
    found = run()
    assert "(exchange_2pc) does not replace rows by a key" in found.query("first").reason
    assert hourly.table() == {(0, "a"): 2, (0, "b"): 1, (90, "a"): 1}


def table(frame: DataFrame, **options: str) -> Any:
    return frame.writeStream.format("delta_2pc").options(uid="out", path="/nowhere", **options)


@pytest.mark.core
@pytest.mark.slow(6, "a plan of Spark for each refusal")
def test_what_could_leave_a_row_behind_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    rows = Hourly(spark, tmp_path).rows()
    distinct, hour = rows.dropDuplicatesWithinWatermark(["shop"]), F.window("at", "1 hour")
    plain = rows.groupBy(hour, "shop").count().select("window.start", "shop", "count")
    renamed = rows.groupBy(F.window("at", "1 hour", "20 minutes").alias("w"), "shop").count().select("w", "shop")

    def reason(writer: Any) -> str:
        return why_not_shown(query_spec("hourly", "q", writer, available_now=False), "job 'hourly', query 'q'")

    for frame in (plain, renamed.select(F.col("w.end").alias("start"), "shop"), distinct.groupBy("at", "shop").count()):
        assert reason(table(frame, mode="upsert", key=f"{frame.columns[0]},shop")) == ""
    assert "does not replace rows by a key" in reason(table(plain))
    assert "keeps no windows open" in reason(table(distinct, mode="upsert", key="at"))
    assert "one of Spark's own" in reason(plain.writeStream.format("memory"))
    own = Hourly(spark, tmp_path).rows("own")
    sessions = rows.groupBy(F.session_window("at", "1 hour"), "shop").count()
    twice = rows.groupBy(hour, "shop").count().groupBy(F.window("window", "2 hours"), "shop").count()
    cases: list[tuple[Any, str]] = [
        (table(sessions.select("session_window.start", "shop"), **UPSERT), "two session windows may become one"),
        (table(rows.alias("l").join(own, "shop", "left"), mode="upsert", key="shop"), "what 'join' emits at the end"),
        (table(twice.select("window.start", "shop"), **UPSERT), "beside its last aggregation it has 'aggregate'"),
        (table(plain.where("count < 3"), **UPSERT), "'Filter' follows the aggregation"),
        (table(plain.select("*", F.explode(F.array("count"))), **UPSERT), "'Generate' follows the aggregation"),
        (table(sx.expect(plain, "few", "count < 3", on_fail="drop"), **UPSERT), "may leave out a row"),
        (table(plain, mode="upsert", key="start"), "the sink's key (start) is not that of the aggregation"),
        (table(plain, mode="upsert", key="start,shop,count"), "is not that of the aggregation"),
        (table(plain.withColumn("shop", F.lower("shop")), **UPSERT), "such columns are: start"),
        (table(plain, newest_by="count", **UPSERT), "with 'newest_by' a later row need not replace"),
        (table(plain.withColumn("gone", F.lit(False)), deleted_if="gone", **UPSERT), "with 'deleted_if' a later row"),
    ]
    for writer, words in cases:
        with refused(ConfigurationError, "emit='early'", words):
            reason(writer)
    assert Hourly(spark, tmp_path).job().plan(until="now", emit="early").accepted
    (found,) = Hourly(spark, tmp_path).job(mode="append", key="").plan(until="now", emit="early").refusals
    assert "no query has anything to show early" in found.what and "'q': its sink 'out'" in found.what
