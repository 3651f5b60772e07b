"""Conformance, "Control", for queries that run: one job that is changed in many ways, looked at from many sides."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.control.event_state import EventState
from spark_ext.jobs.job import Job
from spark_ext.ledger.schema import ExecutionStateRow
from tests.conformance import test_control_queries
from tests.conformance.test_control_crashes import assert_aligned, assert_emitted_once
from tests.jobs.changes import NEVER
from tests.support.controlled import generated, told
from tests.support.steered import ENDS, RATE, Steering, steered, write_version
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(1200)


@dataclass
class Changed:
    job: Steering
    events: dict[str, EventState] = field(default_factory=dict)
    paused: tuple[int, int] = (0, 0)  # the epochs of `q` between which it was paused
    paused_state: str = ""
    lookups: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def changed(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changed]:
    """Limits, a pause, keys for all and for one query, and an aligned one; one of the sources of `q` has ended."""
    folder = tmp_path_factory.mktemp("changed")
    job = Steering(folder)
    found = Changed(job)
    run = steered(spark_of_process, folder).start()

    def do(name: str, event: EventState) -> None:
        (found.events[name],) = job.over(event)

    try:
        until(lambda: len([row for row in job.told.table("q") if row["source"] == "ends"]) == ENDS, "one source's end")
        do("limit", job.send("rate_limit", "source:in", {"rows_per_epoch": 6}))
        do("one", job.set("one", 1, "query:q"))
        do("pause", job.send("pause", "query:q"))
        begin = job.committed()
        do("while paused", job.set("two", 1))
        found.paused_state = run.snapshot().query("q").state.value
        do("seek", job.send("seek", "source:in/7", {"position": 0, "yes": True}))
        end = job.committed()
        do("resume", job.send("resume", "query:q"))
        found.paused = begin, end
        job.sees("two", 1)
        job.sees("two", 1, "r")
        do("reload", job.reload())
        until(lambda: any(row["version"] == 1 for row in job.told.table("q")), "rows of the version")
        do("no version", job.send("reload", value={"lookup": "versions", "version": 7}))
        write_version(folder)
        other = job.reload(delivery="aligned")
        do("aligned", job.set("both", 1, delivery="aligned"))
        do("aligned reload", other)
        found.lookups = run.control.lookups()
        job.sees("both", 1)
        job.sees("both", 1, "r")
        until(lambda: job.committed() % 3 == 1 and job.committed("r") % 3 == 1, "what functions have emitted")
    finally:
        run.stop()
    yield found


@pytest.mark.core
@pytest.mark.slow(20, "the job that the others look at")
def test_e3_a_pause_keeps_the_limit_and_the_query_lives(changed: Changed) -> None:
    job, (begin, end) = changed.job, changed.paused
    epochs = {epoch.number: epoch for epoch in job.told.epochs("q")}
    assert changed.paused_state == "PAUSED"
    assert end > begin, "events take effect while it is paused"
    assert not [row for row in job.told.table("q") if begin <= row["epoch"] <= end]
    after = [epoch for number, epoch in epochs.items() if number > end]
    read = [sum(piece.end - piece.start for piece in epoch.ranges("in").values()) for epoch in after]
    assert max(read) == 6, "the limit is in force again"
    assert job.told.problems() == []


@pytest.mark.core
def test_e4_the_impossible_is_rejected_and_stays_visible(changed: Changed) -> None:
    """A channel of a source is only known where the source is planned."""
    state = changed.job.client.event(changed.events["seek"].event_id)
    assert state.status == "rejected"
    assert "no such channel" in state.reason
    assert not [epoch for epoch in changed.job.told.epochs("q") if epoch.jumps("in")]


@pytest.mark.core
def test_e6_functions_see_the_configuration_of_their_epoch(changed: Changed) -> None:
    seen = {query: [row["config"] for row in changed.job.told.table(query)] for query in ("q", "r")}
    found = {query: [json.loads(config) for config in dict.fromkeys(configs)] for query, configs in seen.items()}
    assert {"one": 1} in found["q"] and {"one": 1, "two": 1} in found["q"]
    assert not any("one" in config for config in found["r"]) and {"two": 1} in found["r"]
    assert list(changed.job.told.wrong_rows("q")) == []


@pytest.mark.core
def test_e9_an_aligned_event_switches_both_queries_at_one_cut(changed: Changed) -> None:
    job = changed.job
    assert_aligned(job, changed.events["aligned"], "both", 1)
    immediate = changed.events["while paused"]
    assert immediate.applied.keys() == {"q", "r"}
    for query, epoch in immediate.applied.items():
        assert epoch is not None
        before, first = job.told.epochs(query)[epoch - 1 : epoch + 1]
        assert before.control < immediate.sequence <= first.control
    # Acknowledged when the last of them has applied it.
    last = [step for step in immediate.steps if step.status == "acknowledged"]
    assert len(last) == 1 and last[0].at >= max(step.at for step in immediate.steps if step.status == "applied")


@pytest.mark.core
def test_e15_each_epoch_has_the_version_of_its_stamp(changed: Changed) -> None:
    """That rows saw this version is said by `problems` of the first test; version 2 is written, and never asked for."""
    reload, aligned = changed.events["reload"], changed.events["aligned reload"]
    assert [one.result for one in (reload, aligned)] == [{"version": 1}, {"version": 3}]
    for query in ("q", "r"):
        rows = changed.job.told.table(query)
        assert {row["version"] for row in rows if row["epoch"] >= aligned.applied[query]} == {3}
        assert {row["version"] for row in rows if reload.applied[query] <= row["epoch"] < aligned.applied[query]} == {1}
        assert {row["version"] for row in rows if row["epoch"] < reload.applied[query]} == {0}
    refused = changed.events["no version"]
    assert refused.status == "rejected" and "version 7" in refused.reason
    (shown,) = changed.lookups
    assert (shown["lookup"], shown["version"], shown["since"]) == ("versions", 3, dict(aligned.applied))


@pytest.mark.core
def test_e11_with_one_source_ended_all_tasks_of_an_epoch_agree(changed: Changed) -> None:
    """The ended one looks at no event any more."""
    last = changed.job.told.epochs("q")[-1].offsets
    assert last["ends"].ended and last["ends"].control < last["in"].control
    seen: dict[int, set[tuple[str, str]]] = defaultdict(set)
    tasks: dict[int, set[int]] = defaultdict(set)
    for row in changed.job.told.table("q"):
        seen[row["epoch"]].add((row["config"], row["events"]))
        tasks[row["epoch"]].add(row["part"])
    assert all(len(one) == 1 for one in seen.values())
    assert any(len(tasks[epoch]) > 1 for epoch in seen)


@pytest.mark.core
def test_e13_each_task_has_emitted_once(changed: Changed) -> None:
    assert_emitted_once(changed.job, 3)


def fails(flag: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Emits; kills its worker, then raises, once each, when it is told to; says what level is in force."""
    for batch in batches:
        seen = sx.control.config()
        if seen.get("fail"):
            sx.control.emit("failing", {"first": batch.column("seq")[0].as_py()})
            for number, kills in enumerate((True, False)):
                place = Path(f"{flag}-{number}")
                if not place.exists():
                    place.touch()
                    if kills:
                        os.kill(os.getpid(), signal.SIGKILL)
                    # One that may pass: a fault of the function would stop the query.
                    raise ConnectionError("as the test wants it")
        debug = sx.control.logger("of the test").isEnabledFor(10)
        yield pa.RecordBatch.from_arrays(
            [batch.column("seq"), pa.array([f"{seen.get('fail')} {debug} {os.getpid()}"] * batch.num_rows)],
            names=["seq", "seen"],
        )


@pytest.mark.core
@pytest.mark.slow(20, "a query is restarted twice")
def test_e7_new_workers_and_queries_have_what_is_in_force(spark: SparkSession, tmp_path: Path) -> None:
    """The latest keys and log level, from the first task on; what was emitted in an epoch that failed counts once."""
    cloudpickle.register_pickle_by_value(test_control_queries)
    job = Steering(tmp_path)
    made = sx.Job(spark, "lab", state=tmp_path / "state", restart_backoff=20, interval="50 ms")
    source = generated(spark, "in", rows_per_second=RATE, readers=1)
    rows = source.mapInArrow(partial(fails, str(tmp_path / "failed")), "seq bigint, seen string")
    made.add("q", rows.writeStream.format("delta_2pc").options(uid="table", path=str(tmp_path / "q")))
    other = told(generated(spark, "other", rows_per_second=RATE), "r")
    made.add("r", other.writeStream.format("delta_2pc").options(uid="others", path=str(tmp_path / "r")))
    run = made.start()
    until(lambda: min(job.committed("q"), job.committed("r")) >= 1, "epochs of both queries")
    job.over(job.send("log_level", value={"level": "DEBUG", "logger": "of the test"}), job.set("fail", 1, "query:q"))
    until(lambda: any(row["seen"].startswith("1 ") for row in job.told.table("q")), "rows after the restarts")
    until(lambda: [row for row in job.told.events() if row.origin == "emit"], "what was emitted")
    run.stop()
    assert (tmp_path / "failed-0").exists() and (tmp_path / "failed-1").exists()
    table = job.told.table("q")
    assert sorted(row["seq"] for row in table) == list(range(len(table)))
    assert {row["seen"].rpartition(" ")[0] for row in table} <= {"None False", "None True", "1 True"}
    assert len({row["seen"].rpartition(" ")[2] for row in table if row["seen"].startswith("1 ")}) >= 1
    states = job.told.ledger.table(ExecutionStateRow).rows([("state", "=", "RESTARTING")])
    assert "q" in {row.operator for row in states} <= {"q", ""}, "the other query was left alone"
    first = [row.value["value"]["first"] for row in job.told.events() if row.origin == "emit"]
    assert len(first) == len(set(first)) and first == sorted(first)
    assert list(job.told.wrong_rows("r")) == []


BOUNDED = 4_000


def unmoved(spark: SparkSession, folder: Path, how: str) -> Job:
    """A query that makes no epoch of its own any more."""
    interval = NEVER if how == "hourly" else "0 s"
    made = sx.Job(spark, "lab", state=folder / "state", interval=interval, checkpoint_interval="1 hour")
    options: dict[str, dict[str, Any]] = {
        "idle": {"rows_per_second": 0.0001},
        "paused": {"rows_per_second": RATE},
        "hourly": {"rows_per_second": RATE},
        "available_now": {"rows": BOUNDED, "max_rows_per_epoch": 50},
    }
    writer = told(generated(spark, "in", **options[how])).writeStream.format("delta_2pc")
    writer = writer.options(uid="table", path=str(folder / "q"))
    return made.add("q", writer.trigger(availableNow=True) if how == "available_now" else writer)


@pytest.mark.core_for("[hourly]")
@pytest.mark.slow(10, "a query of each kind")
@pytest.mark.parametrize("how", ["idle", "paused", "hourly", "available_now"])
def test_e12_an_event_makes_an_epoch(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """Of a query without input, a paused one, one whose next epoch is due in an hour, and an AvailableNow run."""
    job = Steering(tmp_path, ("q",))
    run = unmoved(spark, tmp_path, how).start()
    until(lambda: job.committed() >= 0 or how == "idle", "the first epoch")
    hold = {"paused": ("pause", None), "available_now": ("rate_limit", {"rows_per_second": 0.01})}.get(how)
    if hold is not None:
        job.over(job.send(hold[0], "source:in", hold[1]))
    before, rows = job.committed(), job.counts()["q"]
    for number in range(3):
        (event,) = job.over(job.set("k", number))
        assert event.status == "acknowledged", event
        assert event.applied == {"q": before + 1 + number}, "the very next epoch, which exists for it alone"
    assert job.committed() == before + 3 and job.counts()["q"] == rows
    assert job.told.epochs("q")[-1].configuration.user("q") == {"k": 2}
    if how == "available_now":
        job.over(job.send("rate_limit", "source:in"))
        assert run.await_termination(300).finished
        assert job.counts()["q"] == BOUNDED
        assert {row["config"] for row in job.told.table("q") if row["epoch"] > before} == {'{"k": 2}'}
    else:
        run.stop()
