"""Queries that are functions of the configuration: built at each start, and anew between two epochs."""

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext import failpoints
from spark_ext.control import stamps
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.errors import JobFailedError
from spark_ext.failpoints import FailPoint
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlTransitionRow, ExecutionStateRow
from spark_ext.model.control import Event
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.jobs import JobHarness, expected
from tests.support.killable import kill, rebuilding, rebuilt, running
from tests.support.waiting import until

SETTING = "spark.sql.session.timeZone"


def send(folder: Path, kind: str, target: str = "query:q", value: Any = None) -> Event:
    (found,) = ControlLog(Ledger(str(folder / "state"))).accept([Request(kind, target, value)])
    assert isinstance(found, Accepted), found
    return found.event


def set_key(folder: Path, key: str, value: Any) -> Event:
    return send(folder, "set_config", value={"key": key, "value": value})


def steps(folder: Path, event: Event) -> list[ControlTransitionRow]:
    rows = Ledger(str(folder / "state")).table(ControlTransitionRow).rows([("event_id", "=", event.event_id)])
    return sorted(rows, key=lambda row: row.at)


def last(folder: Path, event: Event) -> ControlTransitionRow:
    found: list[ControlTransitionRow] = []

    def over() -> bool:
        found[:] = [row for row in steps(folder, event) if not row.query and row.status != "applied"]
        return bool(found)

    until(over, f"event {event.kind} is over")
    return found[0]


def states(folder: Path) -> list[str]:
    """Of the life cycle, without those that only divide the time of a start."""
    rows = Ledger(str(folder / "state")).table(ExecutionStateRow).rows([("operator", "=", "q")])
    starts = ("DEPLOYING", "SCHEDULING", "RESTORING")
    found = [row.state for row in sorted(rows, key=lambda row: row.since) if row.state not in starts]
    return [state for state, _ in groupby(found)]


def by_epoch(folder: Path, column: str, out: str = "out") -> dict[int, set[Any]]:
    found = {}
    for file in sorted((folder / out).glob("*.json")):
        rows = json.loads(file.read_text())["rows"]
        if rows:
            found[int(file.stem.rpartition("-")[2])] = {row[column] for row in rows}
    return found


def stamped(folder: Path, epoch: int, query: str = "q") -> Mapping[str, Any]:
    """The user's configuration of an epoch, by its offsets."""
    checkpoint = str(folder / "state" / "queries" / query / "checkpoint")
    logged = SparkLog(checkpoint).offsets(epoch)
    assert logged is not None
    return stamps.configuration(checkpoint, source_offsets(logged).values()).user(query)


@pytest.mark.slow(12, "a query is started three times")
def test_a_query_with_a_channel_source_changes_between_epochs(lab: JobHarness) -> None:
    lab.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")  # the offsets of all epochs are compared
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="20 ms").add("q", rebuilt(lab)).start()
    until(lambda: len(lab.rows()) > 20, "rows")
    factor = set_key(lab.folder, "factor", 2)
    changed = last(lab.folder, factor)
    assert (changed.status, changed.result["restarted"]) == ("acknowledged", ["q"]), changed
    assert 0 < changed.result["took_ms"] < 60_000
    (applied,) = [row for row in steps(lab.folder, factor) if row.query]
    assert f"restarted before epoch {applied.epoch}, in " in changed.reason
    other = last(lab.folder, set_key(lab.folder, "other", 1))
    assert (other.status, other.result) == ("acknowledged", None)
    refused = last(lab.folder, set_key(lab.folder, "factor", "many"))
    assert refused.status == "rejected" and "ValueError: many is no number" in refused.reason
    setting = last(lab.folder, set_key(lab.folder, "spark.sql.shuffle.partitions", 7))
    assert setting.status == "rejected" and "which its checkpoint holds" in setting.reason
    done = last(lab.folder, send(lab.folder, "restart"))
    assert done.status == "acknowledged" and done.result["took_ms"] > 0
    until(lambda: max(by_epoch(lab.folder, "factor")) > done.result["epoch"], "an epoch behind the restart")
    job.stop()
    assert states(lab.folder) == ["RUNNING", *["RESTARTING", "RUNNING"] * 2, "CANCELED"]
    assert lab.numbers() == expected(len(lab.rows()))
    factors = by_epoch(lab.folder, "factor")
    # What the plan has, each epoch's offset says.
    assert {epoch: {stamped(lab.folder, epoch).get("factor", 1)} for epoch in factors} == factors
    assert sorted({factor for one in factors.values() for factor in one}) == [1, 2]
    assert stamped(lab.folder, max(factors)) == {"factor": 2, "other": 1}


def test_a_query_of_sparks_own_sources_is_built_with_new_options(lab: JobHarness) -> None:
    folder = lab.folder / "in"
    folder.mkdir()

    def deliver(first: int) -> None:
        """Four files that are seen at once."""
        draft = lab.folder / "draft"
        draft.mkdir()
        for number in range(first, first + 4):
            (draft / f"{number}.json").write_text(json.dumps({"n": number}))
        draft.rename(folder / f"from-{first}")

    def build(config: Mapping[str, Any]) -> DataStreamWriter:
        rows = lab.spark.readStream.schema("n bigint").option("maxFilesPerTrigger", config.get("files", 1))
        frame = rows.json(f"{folder}/*").withColumn("zone", functions.current_timezone())
        return frame.writeStream.format("folder").option("uid", "out").option("path", str(lab.folder / "out"))

    def written() -> list[int]:
        return sorted(row["n"] for row in lab.rows())

    deliver(0)
    zone = lab.spark.conf.get(SETTING)
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("q", build)
    job.start()
    until(lambda: written() == [0, 1, 2, 3], "the first files")
    changed = set_key(lab.folder, "files", 4)
    assert last(lab.folder, changed).result["restarted"] == ["q"]
    first = next(row for row in steps(lab.folder, changed) if row.query)
    assert (first.status, first.epoch) == ("applied", 4)
    deliver(4)
    until(lambda: written() == list(range(8)), "the files behind the change")
    unread = last(lab.folder, set_key(lab.folder, "other", 4))
    assert unread.status == "rejected" and "its function has not read it" in unread.reason
    assert last(lab.folder, set_key(lab.folder, SETTING, "Asia/Tokyo")).status == "acknowledged"
    wrong = last(lab.folder, set_key(lab.folder, "spark.sql.no.such", 1))
    assert wrong.status == "rejected" and "Spark does not know it" in wrong.reason
    deliver(8)
    until(lambda: written() == list(range(12)), "the files behind the setting")
    job.stop()
    assert lab.spark.conf.get(SETTING) == zone
    zones = by_epoch(lab.folder, "zone")
    assert [zones[epoch] for epoch in sorted(zones)] == [{zone}] * (len(zones) - 1) + [{"Asia/Tokyo"}]
    sizes = [len(values) for values in by_epoch(lab.folder, "n").values()]
    assert sizes[:4] == [1, 1, 1, 1] and max(sizes[4:]) > 1
    # A further start builds with what is in force.
    seen: list[dict[str, Any]] = []

    def noted(config: Mapping[str, Any]) -> DataStreamWriter:
        seen.append(dict(config))
        return build(config)

    sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", noted).start().stop()
    assert seen[-1] == {"files": 4, SETTING: "Asia/Tokyo", "other": 4}


@pytest.mark.slow(20, "a driver is started, and killed")
@pytest.mark.parametrize("step", [FailPoint.QUERY_STOPPED, FailPoint.QUERY_HELD])
def test_a_driver_is_killed_during_a_restart(lab: JobHarness, monkeypatch: pytest.MonkeyPatch, step: FailPoint) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"{step}=kill")
    with running(rebuilding, lab.folder) as driver:
        until(lambda: len(lab.rows()) > 20, "rows")
        changed = set_key(lab.folder, "factor", 2)
        until(lambda: driver.poll() is not None, "the driver is killed")
        kill(driver)
    monkeypatch.delenv(failpoints.VARIABLE)
    assert not [row for row in steps(lab.folder, changed) if row.status == "acknowledged"]
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="20 ms").add("q", rebuilt(lab)).start()
    assert last(lab.folder, changed).status == "acknowledged"
    until(lambda: 2 in set().union(*by_epoch(lab.folder, "factor").values()), "rows of the new plan")
    job.stop()
    assert lab.numbers() == expected(len(lab.rows()))
    factors = by_epoch(lab.folder, "factor")
    assert {epoch: {stamped(lab.folder, epoch).get("factor", 1)} for epoch in factors} == factors


def test_one_killed_before_a_refused_values_hold_continues(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key has its former value again by then: the next start builds the query with that."""
    monkeypatch.setenv(failpoints.VARIABLE, f"{FailPoint.QUERY_BEFORE_RELEASE}=kill")
    with running(rebuilding, lab.folder) as driver:
        until(lambda: len(lab.rows()) > 20, "rows")
        many = set_key(lab.folder, "factor", "many")
        until(lambda: driver.poll() is not None, "the driver is killed")
        kill(driver)
    monkeypatch.delenv(failpoints.VARIABLE)
    before = len(lab.rows())
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="20 ms").add("q", rebuilt(lab)).start()
    until(lambda: len(lab.rows()) > before, "further rows")
    refused = last(lab.folder, many)
    assert refused.status == "rejected" and "ValueError: many is no number" in refused.reason
    assert last(lab.folder, set_key(lab.folder, "factor", 2)).status == "acknowledged"
    job.stop()
    assert lab.numbers() == expected(len(lab.rows()))
    assert set().union(*by_epoch(lab.folder, "factor").values()) <= {1, 2}


@pytest.mark.slow(12, "two queries, restarted together")
def test_a_key_that_one_query_refuses_is_in_force_in_none(lab: JobHarness) -> None:
    """Both hold, both are built before any is stopped, and both continue as they were."""
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", interval="20 ms")
    job.add("q", rebuilt(lab, "a-in", "a")).add("r", rebuilt(lab, "b-in", "b", most=5)).start()
    until(lambda: all(by_epoch(lab.folder, "factor", out) for out in "ab"), "rows of both")
    refused = last(lab.folder, send(lab.folder, "set_config", "job", {"key": "factor", "value": 7}))
    assert refused.status == "rejected" and "ValueError: 7 is too much" in refused.reason
    done = last(lab.folder, send(lab.folder, "set_config", "job", {"key": "factor", "value": 2}))
    assert (done.status, sorted(done.result["restarted"])) == ("acknowledged", ["q", "r"])
    until(lambda: all(2 in set().union(*by_epoch(lab.folder, "factor", out).values()) for out in "ab"), "both changed")
    job.stop()
    for uid, out in {"q": "a", "r": "b"}.items():
        factors = by_epoch(lab.folder, "factor", out)
        assert {factor for one in factors.values() for factor in one} == {1, 2}
        assert {epoch: {stamped(lab.folder, epoch, uid).get("factor", 1)} for epoch in factors} == factors
        assert lab.numbers(out) == expected(len(lab.numbers(out)))


def test_an_epoch_planned_before_a_start_keeps_its_own_plan(lab: JobHarness) -> None:
    folder = lab.folder / "in"
    folder.mkdir()
    ran: list[tuple[int, int]] = []

    def build(config: Mapping[str, Any]) -> DataStreamWriter:
        factor = config.get("factor", 1)

        def take(rows: DataFrame, epoch: int) -> None:
            ran.append((epoch, factor * rows.count()))
            if epoch == 1 and factor == 1 and not (lab.folder / "gate").exists():
                raise ValueError("the target is unavailable")

        files = lab.spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).json(str(folder))
        return files.writeStream.foreachBatch(take)

    def started() -> sx.Job:
        return sx.Job(lab.spark, "lab", state=lab.folder / "state", restart_attempts=0).add("q", build).start()

    for number in range(3):
        (folder / f"{number}.json").write_text(json.dumps({"n": number}))
    with pytest.raises(JobFailedError, match="the target is unavailable"):
        started().await_termination()
    assert ran == [(0, 1), (1, 1)]
    changed = set_key(lab.folder, "factor", 10)
    (lab.folder / "gate").touch()
    job = started()
    done = last(lab.folder, changed)
    until(lambda: ran[2:] == [(1, 1), (2, 10)], "the epoch with its own plan, and the next one with the new plan")
    job.stop()
    assert done.status == "acknowledged"
    (applied,) = [row for row in steps(lab.folder, changed) if row.query]
    assert (applied.query, applied.epoch) == ("q", 2)
