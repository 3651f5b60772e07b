"""What functions of the user's see of control events: one job, looked at from all places."""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import StateError
from spark_ext.spark.logs.spark_log import SparkLog
from tests.control import sights
from tests.control.states import Sent
from tests.support import operators
from tests.support.jobs import JobHarness
from tests.support.waiting import until

IN_TASKS = ("udf", "pandas_udf", "arrow_udf", "mapInArrow", "mapInPandas", "read", "write")
EVERYWHERE = (*IN_TASKS, "commit", "advance", "committed")


class Watched:
    def __init__(self, folder: Path, log: str, sent: dict[str, int]) -> None:
        self.folder, self.sent = folder, sent
        self.seen = operators.events(log, "sight")

    def of(self, *where: str) -> list[dict[str, Any]]:
        return [one for one in self.seen if one["where"] in where]

    def checkpoint(self, query: str) -> Path:
        return self.folder / "state" / "queries" / query / "checkpoint"


@pytest.fixture(scope="module")
def watched(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Query `q` has two sources, one of which has ended before the second event; `b` is one of `foreachBatch`."""
    spark, folder = spark_of_process, tmp_path_factory.mktemp("functions")
    lab = JobHarness(spark, folder)
    sights.register(spark)

    def source(uid: str, **options: Any) -> Any:
        reader = spark.readStream.format("telling").option("uid", uid).option("log", lab.log)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    both = source("live", live=True, rate=200).unionByName(source("ends", counts="3,3"))
    job = lab.job(sights.looked_at(both, lab.log), sink="telling_folder")
    job.add("b", source("batches", live=True, rate=50).writeStream.foreachBatch(partial(sights.in_batch, lab.log)))

    def seen(key: str, value: Any) -> bool:
        found = operators.events(lab.log, "sight")
        places = {one["where"] for one in found if one["config"].get(key) == value}
        return places >= {*EVERYWHERE, "foreachBatch", "task of foreachBatch"}

    job.start()
    try:
        sent: dict[str, int] = {}
        send = Sent(folder / "state")
        until(lambda: _ended(lab.checkpoint()), "one source has ended")
        sent["first"] = send("set_config", {"key": "threshold", "value": 1})
        sent["of q"] = send("set_config", {"key": "threshold", "value": 0.5}, "query:q")
        sent["list"] = send("set_config", {"key": "list", "value": [1, {"a": None}]})
        sent["note"] = send("broadcast", {"type": "note", "value": {"n": 1}})
        sent["level"] = send("log_level", {"level": "DEBUG", "logger": "sights"})
        sent["done"] = send("set_config", {"key": "stage", "value": 1})
        until(lambda: seen("stage", 1), "all places see the first events")
        sent["again"] = send("broadcast", {"type": "other"})
        sent["note again"] = send("broadcast", {"type": "note", "value": 2}, "query:b")
        sent["off"] = send("log_level", {"level": "ERROR", "logger": "sights"})
        sent["last"] = send("set_config", {"key": "stage", "value": 2})
        until(lambda: seen("stage", 2), "all places see the last events")
        until(lambda: _obeyed(lab.checkpoint()).get("live") == sent["last"], "its epoch is committed")
    finally:
        job.stop()
    yield Watched(folder, lab.log, sent)


def _committed(checkpoint: Path) -> list[dict[str, Any]]:
    log = SparkLog(str(checkpoint))
    newest = log.newest_commit()
    offsets = None if newest is None else log.offsets(newest)
    return [] if offsets is None else [dict(raw) for raw in offsets.sources]


def _ended(checkpoint: Path) -> bool:
    return any(raw.get("ended") for raw in _committed(checkpoint))


def _obeyed(checkpoint: Path) -> dict[str, int]:
    return {raw["uid"]: raw.get("control", 0) for raw in _committed(checkpoint)}


def test_each_place_sees_its_epochs_configuration_in_all_tasks(watched: Watched) -> None:
    by_epoch: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for one in watched.seen:
        if one["epoch"] is not None:
            query = "b" if one["where"] in ("foreachBatch", "task of foreachBatch") else "q"
            # A source does not say whose it is: those of `b` read one channel each.
            by_epoch[query, one["epoch"]].append(one)
    checked = 0
    for (query, epoch), found in by_epoch.items():
        wanted, debug, _ = sights.expected(watched.checkpoint(query), query, epoch)
        mine = [one for one in found if one["where"] != "read"]
        assert [one["config"] for one in mine] == [wanted] * len(mine), (query, epoch)
        if query == "q":
            assert {one["debug"] for one in mine} <= {debug}, (query, epoch)
        checked += bool(wanted)
    assert checked > 2


def test_a_key_of_the_query_hides_that_of_the_job(watched: Watched) -> None:
    last = {"threshold": 0.5, "list": [1, {"a": None}], "stage": 2}
    assert watched.of("mapInArrow")[-1]["config"] == last
    assert watched.of("foreachBatch")[-1]["config"] == {**last, "threshold": 1}


def test_the_column_has_its_epochs_value_or_else_the_default(watched: Watched) -> None:
    rows = [row for file in sorted((watched.folder / "out").glob("*.json")) for row in operators.rows(file.parent)][:]
    pairs = {(row["threshold"], json.loads(row["seen"])["config"].get("threshold", -1)) for row in rows}
    assert pairs <= {(-1.0, -1), (1.0, 1), (0.5, 0.5)}
    assert {(-1.0, -1), (0.5, 0.5)} <= pairs


def test_each_event_belongs_to_one_epoch_of_a_query(watched: Watched) -> None:
    for query, where, mine in (
        ("q", "commit", {"note", "again"}),
        ("b", "foreachBatch", {"note", "again", "note again"}),
    ):
        epochs: dict[int, set[int]] = defaultdict(set)
        for one in watched.of(where):
            for _, _, sequence in one["events"]:
                epochs[sequence].add(one["epoch"])
        assert set(epochs) == {watched.sent[name] for name in mine}
        for sequence, found in epochs.items():
            (epoch,) = found
            assert sights.expected(watched.checkpoint(query), query, epoch)[2] >= sequence
            assert sights.expected(watched.checkpoint(query), query, epoch - 1)[2] < sequence


def test_an_ended_source_does_not_hold_its_tasks_to_the_past(watched: Watched) -> None:
    assert _obeyed(watched.checkpoint("q")) == {"ends": 0, "live": watched.sent["last"]}


def test_sources_see_while_they_plan_what_they_will_obey(watched: Watched) -> None:
    assert watched.of("advance")[0]["config"] == {}
    assert {one["config"].get("stage") for one in watched.of("advance")} == {None, 1, 2}
    assert {one["config"].get("stage") for one in watched.of("committed")} == {None, 1, 2}
    assert {one["debug"] for one in watched.of("advance")} == {False, True}
    assert watched.of("discover")[0]["config"] == {}


def test_outside_of_an_epoch_all_is_refused_by_name() -> None:
    for call in (sx.control.config, sx.control.events, lambda: sx.control.emit("a")):
        with pytest.raises(StateError, match=r"epoch|outside of the tasks") as refused:
            call()
        assert "foreachBatch" in refused.value.do
