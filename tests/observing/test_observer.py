"""An Observer in a session: queries that somebody else starts, fails, restarts, and stops."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import spark_ext as sx
from spark_ext.control.client import LocalClient
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import (
    DefinitionRow,
    EpochRow,
    ExecutionStateRow,
    IncidentChangeRow,
    IncidentRow,
    JobRow,
    Row,
)
from spark_ext.listeners import Observer
from spark_ext.observing import observation
from spark_ext.server.page_view import PageView
from spark_ext.views.status import read_status
from tests.support.jobs import JobHarness
from tests.support.waiting import until
from tests.test_cli import spark_ext

R = TypeVar("R", bound=Row)


@contextmanager
def observed(spark: SparkSession, state: Path, **settings: Any) -> Iterator[Observer]:
    observer = Observer(state=state, name="nightly", **settings)
    spark.streams.addListener(observer)
    try:
        yield observer
    finally:
        if observer.watching:
            spark.streams.removeListener(observer)


def ticks(spark: SparkSession, rows: int = 10) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()


def started(
    frame: DataFrame, name: str = "", checkpoint: Path | None = None, *, every: str = "100 milliseconds"
) -> StreamingQuery:
    writer = frame.writeStream.format("noop").trigger(processingTime=every)
    if name:
        writer = writer.queryName(name)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.start()


def moves(query: StreamingQuery, epochs: int) -> None:
    until(lambda: len(query.recentProgress) >= epochs or query.exception() is not None, "epochs are committed", 60)


def rows(state: Path, kind: type[R], where: Callable[[R], bool] = lambda row: True) -> list[R]:
    return [row for row in Ledger(str(state)).table(kind).rows() if where(row)]


@pytest.mark.core
@pytest.mark.parametrize("dropped", [False, True])
def test_l5_a_foreign_query_is_recorded_whatever_events_are_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    state = tmp_path / "state"
    if dropped:
        monkeypatch.setattr(observation.Inbox, "_put", lambda self, event: None)
    with observed(spark, state):
        query = started(ticks(spark), "ticks", tmp_path / "checkpoint")
        moves(query, 5)
        query.stop()
        until(lambda: rows(state, ExecutionStateRow, lambda row: row.state == "CANCELED"), "its end is written", 30)
    commits = sorted(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    found = sorted(rows(state, EpochRow), key=lambda row: row.epoch)
    assert [(row.epoch, row.input_rows) for row in found] == [(epoch, 10) for epoch in commits]
    assert {(row.query, row.query_id, row.lineage) for row in found} == {("ticks", str(query.id), 1)}
    assert all(row.duration_ms and row.offsets for row in found)
    seen = [row.state for row in sorted(rows(state, ExecutionStateRow), key=lambda row: row.since) if row.operator]
    assert seen[-2:] == ["RUNNING", "CANCELED"]
    definitions = [row.definition for row in rows(state, DefinitionRow)]
    assert dropped or len(definitions) == 1
    for made in definitions:
        assert made["observed"] == {"name": "ticks"} and len(made["natives"]) == 1
        assert "noop" in made["sink_format"].lower()


def test_a_query_that_fails_is_started_again_under_another_name(spark: SparkSession, tmp_path: Path) -> None:
    state, broken = tmp_path / "state", tmp_path / "broken"
    flag = str(broken)
    broken.touch()

    @F.udf("long")
    def price(n: int) -> int:
        return {0: 1}[5] if Path(flag).exists() else n

    frame = ticks(spark).select(price("value").alias("price"))
    with observed(spark, state):
        first = started(frame, "prices", tmp_path / "checkpoint")
        until(lambda: rows(state, IncidentRow), "the failure is an incident", 60)
        assert not first.isActive
        (incident,) = rows(state, IncidentRow)
        assert (incident.type, incident.operator) == ("failure", "job 'nightly', query 'prices'")
        assert (incident.labels["type"], incident.labels["origin"]) == ("USER_CODE", "user")
        assert incident.what.endswith("in price: KeyError: 5") and "test_observer.py" in incident.what
        assert incident.action == "none: an Observer only watches" and len(incident.evidence["chain"]) > 1
        assert until(lambda: failed(state), "the state is written", 30).query("prices").state.value == "FAILED"

        broken.unlink()
        again = started(frame, "renamed", tmp_path / "checkpoint")
        moves(again, 1)
        until(lambda: resolved(state, incident.incident_id), "its next epoch resolves the incident", 30)

        # Another checkpoint under that name: a new query, whose epochs begin anew.
        again.stop()
        other = started(ticks(spark, 3), "prices", tmp_path / "other")
        moves(other, 1)
        other.stop()
    ids = {(row.query, row.query_id, row.lineage) for row in rows(state, EpochRow)}
    assert ids == {("prices", str(first.id), 1), ("prices", str(other.id), 2)}
    (reset,) = rows(state, JobRow, lambda row: row.event == "reset")
    assert (reset.query, reset.lineage) == ("prices", 2)
    shown = read_status(str(state)).query("prices")
    assert shown.rows == 3 * shown.epochs > 0

    # What is read of a job is read of it as well, and says that it is none.
    page = tmp_path / "r.html"
    for command in ("status", "timeline", "incidents", "report"):
        said = spark_ext(command, state, *(("-o", str(page)) if command == "report" else ()))
        assert said.returncode == 0, said.stderr
        assert command == "report" or "prices" in said.stdout
    assert "prices" in page.read_text()
    assert json.loads(PageView(Ledger(str(state))).poll().text)["job"]["observed"] is True
    with pytest.raises(ControlRefused, match="is an Observer") as refused, LocalClient(str(state)) as client:
        client.send(Request("stop"))
    assert refused.value.refusal is Refusal.OBSERVED


def failed(state: Path) -> Any:
    status = read_status(str(state))
    return status if status.state.value == "FAILED" else None


def resolved(state: Path, incident: str) -> bool:
    changes = rows(state, IncidentChangeRow, lambda row: row.incident_id == incident)
    return any(row.new == "RESOLVED" and "has committed epoch" in row.cause for row in changes)


def test_a_stalled_query_and_the_python_process_that_holds_it(spark: SparkSession, tmp_path: Path) -> None:
    state, held = tmp_path / "state", tmp_path / "held"
    flag = str(held)

    @F.udf("long")
    def waits(n: int) -> int:
        if Path(flag).exists():
            Path(flag).read_bytes()  # of a pipe that nobody writes
        return n

    frame = ticks(spark, 1).select(waits("value").alias("n"))
    with observed(spark, state, stall_after="2500 ms", dumps="stacks"):
        query = started(frame)
        moves(query, 2)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").rename(held)
        found = until(lambda: rows(state, IncidentRow, lambda row: row.type == "stall"), "it is found stalled", 60)
        stacks = Path(found[0].evidence["dump"]) / "stacks.txt"
        until(stacks.exists, "the stacks of all processes are written", 60)
        held.rename(tmp_path / "pipe")
        (tmp_path / "pipe").write_bytes(b"")
        assert "in waits (Python worker" in found[0].what and found[0].labels["type"] == "USER_CODE"
        assert found[0].operator == f"job 'nightly', query '{query.id}'", "without a name it has its id"
        until(lambda: any(row.new == "RESOLVED" for row in rows(state, IncidentChangeRow)), "the stall is over", 60)
        query.stop()
    assert "in waits" in stacks.read_text().partition("== Python worker, process ")[2]


def test_queries_of_a_job_are_left_to_their_job(spark: SparkSession, tmp_path: Path) -> None:
    lab = JobHarness(spark, tmp_path)
    with observed(spark, tmp_path / "observed"):
        query = started(ticks(spark), "mine")
        result = lab.run(lab.source(counts="100"))
        moves(query, 3)
        query.stop()
    assert result.finished and result.rows >= 100
    assert {row.query for row in rows(tmp_path / "observed", EpochRow)} == {"mine"}
    assert {row.operator for row in rows(tmp_path / "observed", ExecutionStateRow)} == {"", "mine"}


def test_one_that_runs_already_is_found_and_is_left_running(spark: SparkSession, tmp_path: Path) -> None:
    state = tmp_path / "state"
    query = started(ticks(spark), "early", tmp_path / "checkpoint")
    moves(query, 2)
    before = threading.active_count()
    with observed(spark, state, metrics=True) as observer:
        until(lambda: rows(state, EpochRow), "its epochs are written", 30)
        assert observer.dropped == 0
    assert query.isActive, "nothing is stopped"
    until(lambda: threading.active_count() <= before + 1, "its threads have ended", 30)  # py4j's own may stay
    query.stop()
    (end,) = rows(state, JobRow, lambda row: row.event == "ended")
    assert (end.reason, end.kind) == ("the listener was removed", "observer")
    last = read_status(str(state))
    assert last.ended is not None
    assert last.query("early").reason == "not observed any more: the listener was removed"
    numbers = sorted(row.epoch for row in rows(state, EpochRow))
    assert numbers[0] == 0 and numbers == list(range(len(numbers)))


def test_a_query_that_ends_by_itself_has_finished(spark: SparkSession, tmp_path: Path) -> None:
    state, folder = tmp_path / "state", tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("a\nb\n")
    with observed(spark, state):
        frame = spark.readStream.text(str(folder))
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.queryName("once").trigger(availableNow=True).start().awaitTermination()
        until(lambda: rows(state, ExecutionStateRow, lambda row: row.state == "FINISHED"), "it has finished", 30)
    (epoch,) = rows(state, EpochRow)
    assert (epoch.epoch, epoch.input_rows) == (0, 2)


def test_a_state_directory_has_one_observer_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with observed(spark, state) as first:
        with pytest.raises(StateError, match="is running as incarnation 1"), observed(spark, state):
            pass
        with pytest.raises(ConfigurationError, match="watches the queries of a session already"):
            spark.streams.addListener(first)
        with observed(spark, state, takeover=True):
            query = started(ticks(spark), "ticks")
            moves(query, 2)
            query.stop()
            until(lambda: not first.watching, "the older one finds that it is fenced off", 60)
    assert {row.incarnation for row in rows(state, EpochRow)} == {2}
    assert [row.incarnation for row in rows(state, JobRow, lambda row: row.event == "ended")] == [2]

    lab = JobHarness(spark, tmp_path / "lab")
    job = sx.Job(spark, "nightly", state=state)
    job.add("q", lab.source(counts="1").writeStream.format("folder").option("uid", "o").option("path", str(tmp_path)))
    with pytest.raises(StateError, match="is that of an Observer"):
        job.start()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_stall": "fail"}, "'on_stall' is that of a job: an Observer decides nothing"),
        ({"restart_attempts": 2}, "'restart_attempts' is that of a job"),
        ({"stal_after": 2}, "unknown setting 'stal_after'"), ({"stall_after": "soon"}, "setting 'stall_after'"),
        ({"incidents": "missing.yaml"}, "missing.yaml"), ({"name": "a b"}, "cannot be the name of an Observer"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_is_refused_when_it_is_made(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Observer(**{"state": tmp_path / "state", "name": "nightly", **settings})
    assert not list(tmp_path.iterdir())


def test_without_being_added_it_has_no_thread_and_no_file(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    observer = Observer(state=tmp_path / "state", name="nightly", metrics_port=29_999)
    observer.end()
    assert set(threading.enumerate()) <= before and not observer.watching
    assert not list(tmp_path.iterdir())
    code = "import sys, spark_ext.listeners; print('spark_ext.observing' in sys.modules, 'deltalake' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]


def test_where_the_time_of_a_query_of_somebody_else_goes(spark: SparkSession, tmp_path: Path) -> None:
    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            time.sleep(0.5)
            yield batch

    frame = ticks(spark).coalesce(1)
    with observed(spark, tmp_path / "state", epoch_parts=True) as observer:
        query = started(frame.mapInArrow(slow, frame.schema), "slow", tmp_path / "checkpoint")
        moves(query, 4)
        until(lambda: rows(tmp_path / "state", EpochRow, lambda row: row.parts_ms is not None), "it is divided", 60)
        query.stop()
        observer.end()
    divided = rows(tmp_path / "state", EpochRow, lambda row: row.epoch > 0 and row.parts_ms is not None)
    assert divided and all(row.parts_ms["user_code"] > row.parts_ms["reading"] for row in divided)
    assert all(sum(row.parts_ms.values()) == sum(row.spent_ms.values()) for row in divided)
