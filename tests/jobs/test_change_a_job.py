"""Each row of `docs/change-a-job.md`: one change between two starts of a job, and what comes of it.

The job is put into a state once: stopped after the first epoch, and made from that, killed between the two commits of
the first epoch, or finished. Each row finds it as it was left, and starts the job with one change.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import SparkExtError
from spark_ext.jobs.job import Job
from spark_ext.spark.logs.spark_log import SparkLog
from tests.jobs.changes import ALL, APART, CHANGES, NEVER, Change, Lab, twice, write_files
from tests.support.folders import unchanged
from tests.support.pages import read
from tests.support.waiting import until


@pytest.fixture(scope="module")
def states(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """Puts the job into a state: each is made once, and copied back to the same place for each test."""
    place, kept = tmp_path_factory.mktemp("changed"), tmp_path_factory.mktemp("kept")
    lab = Lab(spark_of_process, place / "lab")

    def into(state: str) -> Lab:
        if not (kept / state).exists():
            if state == "stopped":
                shutil.rmtree(lab.folder, ignore_errors=True)
                lab.folder.mkdir()
            else:
                into("stopped")
            MAKE[state](lab)
            shutil.copytree(lab.folder, kept / state)
        shutil.rmtree(lab.folder)
        shutil.copytree(kept / state, lab.folder)
        return lab

    yield into


def stop(lab: Lab) -> None:
    """Stopped after the first epoch of `copy`, when `side` has finished; nothing is in doubt."""
    write_files(lab.folder / "in")
    assert lab.job(query="").run(progress=False).finished
    running = lab.job(interval=NEVER).start()
    until(lambda: SparkLog(str(lab.checkpoint)).newest_commit() == 0, "the first epoch")
    running.stop()
    assert len(lab.rows()) == 10


def kill(lab: Lab) -> None:
    """As a kill between the sink's commit and Spark's leaves it: nothing but the target knows that it is committed."""
    for file in (lab.checkpoint / "commits").iterdir():
        file.unlink()
    for table in ("epochs", "finished", "checkpoints"):
        DeltaTable(lab.folder / "state" / "ledger" / table).delete("query = 'copy' OR query = ''")


def finish(lab: Lab) -> None:
    assert lab.job().run(progress=False).finished


MAKE: Final[dict[str, Callable[[Lab], None]]] = {"stopped": stop, "killed": kill, "finished": finish}

CASES: Final = [
    pytest.param(state, change, id=f"{state}-{change.id}")
    for state in MAKE
    for change in (CHANGES if state == "stopped" else APART)
]


CLAIMED: Final = {*product(("stopped", "killed"), ("state-copied", "state-older")), ("killed", "checkpoint-deleted")}
"""Refused by the claim of a target. A plan draws no number for its start, and may give another reason."""


@pytest.mark.parametrize(("state", "change"), CASES)
def test_a_changed_job(
    states: Callable[[str], Lab], spark: SparkSession, state: str, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    lab = states(state)
    outcome = change.finished if state == "finished" else (state == "killed" and change.killed) or change.stopped
    job = change.job(lab)
    before = {path: lab.rows(path) for path in ("out", "side", "new")}
    with unchanged(lab.folder):
        plan = job.plan()
    by_claim = (state, change.id) in CLAIMED
    assert plan.accepted == (outcome != "refused"), plan
    if outcome == "refused":
        with pytest.raises(SparkExtError, match=change.match) as refused:
            job.start()
        if not by_claim:
            assert str(refused.value) == str(plan.refusals[0]), "the start has refused what the plan has found"
        assert {path: lab.rows(path) for path in before} == before
        return
    with said(caplog) as lines:
        result = job.run(progress=False)
    assert result.finished
    if outcome in ("stays", "warns", "left out"):
        assert result.rows == 0 and {path: lab.rows(path) for path in before} == before
        assert len(lines) == (outcome == "warns"), lines
    else:
        assert lines == [] or state == "finished"
        assert sorted(change.rows(lab)) == sorted(change.expected)
        assert (len(lab.rows()) > len(ALL)) == (change.rows is twice), "rows are repeated only where that was asked for"


@contextmanager
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Lines that say that a finished query has changed."""
    found: list[str] = []
    with caplog.at_level(logging.WARNING, logger="spark_ext.job"):
        yield found
    found += [line for line in caplog.messages if "has changed since" in line]


def test_the_job_cannot_be_started_twice(states: Callable[[str], Lab], spark: SparkSession) -> None:
    """`started-again`: while it runs."""
    lab = states("stopped")
    # One epoch at once, and rows for more: it does not finish meanwhile.
    running = lab.job(lab.files().union(lab.generated(max_rows_per_epoch=1)), interval=NEVER).start()
    with pytest.raises(SparkExtError, match="is running as incarnation"):
        lab.job().start()
    with pytest.raises(SparkExtError, match="an earlier driver may still run"):
        lab.job(takeover=True, path="new", words={"accept": ("out.path",)}).start()
    running.stop()
    assert lab.job(takeover=True).run(progress=False).finished
    assert lab.rows() == sorted(ALL)


def test_a_change_refused_by_its_target_changes_nothing(states: Callable[[str], Lab], spark: SparkSession) -> None:
    lab = states("stopped")
    assert lab.job(name="other", state="other", path="new", others=()).run(progress=False).finished
    with pytest.raises(SparkExtError, match="another job wrote"):
        lab.job(path="new", words={"accept": ("out.path",)}).start()
    assert lab.job().run(progress=False).finished
    assert lab.rows() == sorted(ALL)


def test_a_column_that_is_gone_is_null_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    """`column-gone`."""
    lab = Lab(spark, tmp_path)

    def job(*columns: str) -> Job:
        rows = spark.readStream.format("datagen").options(uid="rows", rows=20, max_rows_per_epoch=10).load()
        writer = rows.select(*columns).writeStream.format("delta_2pc").options(uid="out", path=str(tmp_path / "out"))
        return sx.Job(spark, "g", state=tmp_path / "state", interval=NEVER).add("copy", writer)

    first = job("seq", "channel").start()
    until(lambda: SparkLog(str(lab.checkpoint)).newest_commit() == 0, "the first epoch")
    first.stop()
    plan = job("seq").plan()
    assert plan.accepted and "changed: column 'channel' is gone" in str(plan)
    assert job("seq").run(progress=False).finished
    assert DeltaTable(tmp_path / "out").to_pyarrow_table()["channel"].null_count == 10


class TestStateful:
    """Changes of a query with a watermark and windows."""

    def job(
        self, lab: Lab, *, delay: str = "1 second", what: str = "max(seq)", window: str = "10 seconds",
        key: str = "channel", where: str = "true", accept: tuple[str, ...] = (), **settings: Any,
    ) -> Job:  # fmt: skip
        from pyspark.sql import functions as F

        rows = lab.spark.readStream.format("datagen").options(uid="rows", rows=20, max_rows_per_epoch=10, step_ms=1000)
        marked = sx.with_watermark(rows.load(), "ts", delay).where(where).withColumn("k", F.expr(key))
        frame = marked.groupBy(F.window("ts", window), "k").agg(F.expr(what).alias("n")).select("n")
        writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(lab.folder / "out"))
        return sx.Job(lab.spark, "w", state=lab.folder / "state", **settings).add("copy", writer, accept=accept)

    def stopped(self, spark: SparkSession, folder: Path) -> Lab:
        lab = Lab(spark, folder)
        job = self.job(lab, interval=NEVER).start()
        until(lambda: SparkLog(str(lab.checkpoint)).newest_commit() == 0, "the first epoch")
        assert not job.stop().finished
        return lab

    def test_another_aggregate_key_or_window_over_state_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        """`aggregate`, and `watermark-delay`, which continues."""
        lab = self.stopped(spark, tmp_path)
        made = "aggregate max(seq) bigint by window(ts, 0 s, 10 s), channel int"
        changes: tuple[tuple[dict[str, Any], str], ...] = (
            ({"what": "min(seq)"}, "aggregate min(seq) bigint by window(ts, 0 s, 10 s), channel int"),
            ({"what": "max(10 * seq)"}, "max((CAST(10 AS BIGINT) * seq)) bigint"),
            ({"window": "20 seconds"}, "window(ts, 0 s, 20 s)"),
            ({"key": "channel + 1"}, "(channel + 1) int"),
        )
        for change, now in changes:
            with pytest.raises(SparkExtError) as refused:
                self.job(lab, **change).start()
            assert f"the state was made by {made}" in str(refused.value) and now in str(refused.value)
            assert "accept=('copy.state',)" in refused.value.do
            assert "job.reset('copy', cascade=True)" in refused.value.do
        with pytest.raises(SparkExtError, match="the state was made by"):
            self.job(lab, what="min(seq)").savepoint(lab.folder / "saved")
        shutil.move(lab.checkpoint / "state", lab.folder / "aside")
        with pytest.raises(SparkExtError, match="the state of this query is missing"):
            self.job(lab).start()
        shutil.move(lab.folder / "aside", lab.checkpoint / "state")
        changed = self.job(lab, where="seq < 15", delay="2 seconds")
        assert changed.run(progress=False).finished, "neither a filter nor the delay has a part in the state"
        assert lab.rows() == [9, 14]
        lines = self.job(lab, what="min(seq)").run(progress=False)
        assert lines.finished and lines.rows == 0

    def test_an_accepted_change_of_the_state_continues(self, spark: SparkSession, tmp_path: Path) -> None:
        """`aggregate-accepted`."""
        lab = self.stopped(spark, tmp_path)
        assert self.job(lab, what="max(seq + 0)", accept=("copy.state",)).run(progress=False).finished
        assert lab.rows() == [9, 19]


def listed() -> dict[str, tuple[str, str]]:
    """Rows of the page: the outcome for a job that was stopped or killed, and for one that had finished."""
    row = r"^\| `([\w-]+)` \|[^|]*\| \*\*([\w ]+)\*\*[^|]*\| \*\*([\w ]+)\*\*[^|]*\|"
    found = re.findall(row, read("change-a-job"), re.MULTILINE)
    return {id: (stopped, finished) for id, stopped, finished in found}


def test_the_page_has_each_change_and_its_outcome() -> None:
    page = listed()
    assert len(page) >= 20
    others = {
        "started-again", "watermark-delay", "aggregate", "aggregate-accepted", "spark-version", "exchange-changed",
        "exchange-rescaled", "column-gone",
        "restore-incomplete", "ledger-table-older",
    }  # fmt: skip
    assert page.keys() - others == {change.id for change in CHANGES}
    assert others <= page.keys()
    assert {change.id: (change.stopped, change.finished) for change in CHANGES} == {
        id: outcome for id, outcome in page.items() if id not in others
    }
