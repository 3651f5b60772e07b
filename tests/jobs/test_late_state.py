"""Queries of a session write state after they have ended: here at the worst moment, and nobody meets it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.jobs.starting.recorded_past import _move
from spark_ext.model.lineages import LineageEvent, Lineages
from spark_ext.spark.backend import state
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.listeners import listening
from spark_ext.spark.backend.state import StateStores
from tests.support import validators
from tests.support.jobs import JobHarness, expected, numbers, stopped
from tests.support.saved import ALL, Chain, first_rows, held
from tests.support.waiting import until


@pytest.fixture
def lab(lab: JobHarness) -> JobHarness:
    """Each version of a state is uploaded, in a round of maintenance, and not only each tenth."""
    lab.spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    return lab


class Late:
    """Holds a round of Spark's maintenance of state while Spark waits with a query that starts."""

    def __init__(self, spark: SparkSession) -> None:
        self._stores = StateStores(spark)
        self.rounds = 0

    def started(self, query_id: str, run_id: str) -> None:
        self._stores.maintain()
        until(lambda: not self._stores.busy, "the round is over")
        self.rounds += 1

    def progressed(self, report: str) -> None: ...

    def terminated(self, query_id: str, run_id: str) -> None: ...


@contextmanager
def late_maintenance(spark: SparkSession) -> Iterator[None]:
    late = Late(spark)
    with listening(spark, late):
        yield
    assert late.rounds


def distinct(lab: JobHarness, **options: Any) -> DataFrame:
    rows = numbers(lab.spark, "in", counts="40,40", max_rows_per_epoch=30, **options)
    # Spark takes a row of 1970 for late: its watermark begins there.
    return sx.with_watermark(rows.withColumn("ts", F.expr("ts + interval 1 second")), "ts", "1 minute").dropDuplicates(
        ["channel", "n", "ts"]
    )


@pytest.mark.without_validators(
    validators.end_of_input_once_and_last, validators.hooks_in_order, reason="after a reset all of it comes again"
)
def test_a_query_begins_again_after_a_reset(lab: JobHarness) -> None:
    assert lab.run(distinct(lab)).finished
    again = lab.job(distinct(lab), out="again", restart_attempts=0)
    again.reset("q")
    with late_maintenance(lab.spark):
        assert again.run(progress=False).finished
    assert lab.numbers("again") == expected(40, 40)


class Blocked(Chain):
    def unique(self, rows: DataFrame) -> DataFrame:
        rows = held(rows, self.folder / "release", 0)
        return first_rows(rows, "channel", "k").select("channel", F.col("k").alias("n"))


def test_a_query_with_no_epoch_at_the_cut_begins_after_a_restore(lab: JobHarness) -> None:
    chain = Blocked(lab.spark, lab.folder)
    (lab.folder / "gate").touch()
    job = chain.job().start()
    until(lambda: job.snapshot().query("rows").rows >= 60, "the exchange has rows")
    job.savepoint(chain.savepoint)
    (lab.folder / "release").touch()
    assert job.await_termination().finished and chain.written() == ALL
    again = chain.job(restart_attempts=0).restore(chain.savepoint)
    assert not chain.written()
    with late_maintenance(lab.spark):
        assert again.run(progress=False).finished
    assert chain.written() == ALL


def test_nothing_is_written_into_a_rescaled_state(lab: JobHarness) -> None:
    job = lab.job(distinct(lab, gate=lab.folder / "gate"))
    stopped(job)
    job.rescale("q", 3)
    before = {file.relative_to(lab.checkpoint()) for file in lab.checkpoint().rglob("*")}
    Late(lab.spark).started("", "")
    assert {file.relative_to(lab.checkpoint()) for file in lab.checkpoint().rglob("*")} == before


def test_a_query_is_renamed_to_a_name_that_it_has_had(tmp_path: Path) -> None:
    """What was uploaded late is where its checkpoint was, and is to be again."""
    for name in ("b/checkpoint/metadata", "a/checkpoint/state/0/0/7_id.zip"):
        (tmp_path / "queries" / name).parent.mkdir(parents=True)
        (tmp_path / "queries" / name).write_text(name)
    renamed = Lineages((LineageEvent("b", 1, 2, renamed_from="a"), LineageEvent("a", 1, 3, renamed_from="b")))
    memory: Any = SimpleNamespace(lineages=renamed, lineage=lambda query: 1, knows=lambda query: False)
    _move(str(tmp_path), memory, "a")
    assert [file.name for file in (tmp_path / "queries").rglob("*") if file.is_file()] == ["metadata"]
    assert (tmp_path / "queries" / "a" / "checkpoint" / "metadata").exists()


def test_stores_of_queries_that_run_and_of_other_folders_stay(lab: JobHarness) -> None:
    stores, out = StateStores(lab.spark), lab.folder / "queries"

    def start(name: str) -> Any:
        writer = distinct(lab, live="true").writeStream.format("noop").queryName(name)
        query = writer.option("checkpointLocation", f"file:{out / name}").start()
        until(lambda: len(stores.loaded(str(out / name))) == 2, "it has loaded its state")
        return query

    queries = {name: start(name) for name in ("one", "one-more", "two")}
    assert CLASSIC.settle_state(lab.spark, str(out)) and len(stores.loaded(str(out))) == 6
    for name in ("one", "one-more"):
        queries[name].stop()
    assert CLASSIC.settle_state(lab.spark, f"file:{out / 'one'}")
    assert not stores.loaded(str(out / "one")) and len(stores.loaded(str(out / "two"))) == 2
    assert list((out / "one" / "state").rglob("*.zip")), "a later start begins with it"


def test_what_hangs_is_said(lab: JobHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateStores, "busy", True)
    monkeypatch.setattr(state, "WITHIN_S", 0)
    assert not CLASSIC.settle_state(lab.spark, str(lab.folder))
    assert "may still write state of queries that have ended below" in caplog.text
