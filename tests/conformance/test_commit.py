"""Conformance, "Commit": what every sink holds, whoever dies when. One test per line, named after it.

Without Spark, except where Spark's own log is the matter; drivers that die or freeze are real processes.
"""

from __future__ import annotations

import signal
import subprocess
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_ext as sx
from spark_ext import failpoints, registry
from spark_ext.errors import CommitError, ConfigurationError, FencedError, JobFailedError, StateError
from spark_ext.jobs.job import Job
from spark_ext.sinks._delta_types import arrow_schema
from spark_ext.sinks._writer import Written
from spark_ext.sinks.contract import Task
from spark_ext.testing.every_type import EVERY_TYPE, empty, row
from tests.conformance.sinks_under_test import SINKS, SinkUnderTest, run, writer, written
from tests.jobs import Lab, expected
from tests.sinks.delta_kit import numbered
from tests.sinks.frozen import frozen, started, was_fenced
from tests.waiting import until

pytestmark = pytest.mark.parametrize("sink", SINKS.values(), ids=SINKS)


@pytest.fixture(autouse=True)
def session_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of the test's own, also for its processes; and fail points that have not been passed yet."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    monkeypatch.setattr(failpoints, "_passed", Counter())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def program(sink: SinkUnderTest, body: str) -> str:
    """A driver's program: `driver` is incarnation 1, not yet claimed."""
    names = "from tests.conformance.sinks_under_test import SINKS, run, writer, written\n"
    return f"{names}sink = SINKS[{sink.name!r}]\ndriver = sink.driver(path)\n{body}"


def killed_at(tmp_path: Path, point: str, sink: SinkUnderTest, body: str) -> None:
    """Run a driver until it is killed at the named point."""
    process: subprocess.Popen[str] = started(tmp_path, program(sink, body), {failpoints.VARIABLE: f"{point}=kill"})
    said = process.communicate(timeout=120)[0]
    assert process.returncode == -signal.SIGKILL, said


def test_c1_all_messages_have_arrived_before_anything_is_visible(sink: SinkUnderTest, path: Path) -> None:
    """A commit with the message of one task missing is refused, and shows nothing."""
    driver = sink.driver(path)
    driver.claim()
    messages = [written(driver, 0, numbered(n * 5, n * 5 + 5), partition=n) for n in range(3)]
    assert sink.ids(path) == [], "written, not committed"
    incomplete: list[Written | None] = [*messages[:2], None]
    with pytest.raises(StateError, match="1 of 3 tasks of epoch 0 did not report"):
        writer(driver).commit(incomplete, 0)
    writer(driver).abort(incomplete, 0)
    assert sink.ids(path) == []
    before = sink.commits(path)
    writer(driver).commit(messages, 0)
    assert sink.ids(path) == list(range(15))
    assert sink.commits(path) == before + 1, "all of it in one step"


@pytest.mark.parametrize("point", ["sink.before_commit", "brink"])
def test_c2_crash_before_commit_shows_nothing_and_the_restart_writes_it_once(
    sink: SinkUnderTest, path: Path, tmp_path: Path, point: str
) -> None:
    """A driver killed before, and in the middle of, the commit of its second epoch."""
    driver = sink.driver(path)
    driver.claim()
    run(driver, 0, numbered(0, 5))
    killed_at(tmp_path, sink.brink if point == "brink" else point, sink, "run(driver, 1, numbered(5, 10))")
    assert sink.ids(path) == list(range(5))
    second = sink.driver(path, incarnation=2)
    second.claim()
    run(second, 1, numbered(5, 10))
    assert sink.ids(path) == list(range(10))


def test_c3_crash_between_the_two_commits_is_recognised(sink: SinkUnderTest, path: Path, tmp_path: Path) -> None:
    """The sink has committed, Spark has not: the next incarnation writes the epoch anew, and it is there once."""
    sink.driver(path).claim()
    killed_at(tmp_path, "sink.committed", sink, "run(driver, 0, numbered(0, 5))")
    assert sink.ids(path) == list(range(5))
    second = sink.driver(path, incarnation=2)
    second.claim()
    before = sink.commits(path)
    run(second, 0, numbered(0, 5))
    assert sink.commits(path) == before
    run(second, 1, numbered(5, 10))
    assert sink.ids(path) == list(range(10))


def test_c3_spark_replays_an_epoch_and_it_is_recognised(sink: SinkUnderTest, lab: Lab, path: Path) -> None:
    """A real query, without a job; the last file of Spark's `commits` is taken away, as a crash leaves it."""
    checkpoint = lab.folder / "checkpoint"

    def query(count: int) -> None:
        rows = lab.source(counts=str(count), max_rows_per_epoch=20, live="false")
        plain = rows.select(F.col("n").alias("id"), F.col("channel").alias("name"))
        stream = plain.writeStream.format(sink.name).option("uid", "q-out").option("path", str(path))
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        stream.start().awaitTermination()

    query(60)
    assert sink.ids(path) == list(range(60))
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    reads = lab.events("read")
    assert len(reads) == int(last.name) + 1, "the last epoch has rows"
    before = sink.commits(path)
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    query(60)
    again = [(event["start"], event["end"]) for event in lab.events("read")[len(reads) :]]
    assert again == [(40, 60)], "the epoch was replayed"
    assert last.exists()
    assert sink.commits(path) == before
    assert sink.ids(path) == list(range(60))


def test_c4_commit_raises_after_its_effect_then_abort_then_commit_again(
    sink: SinkUnderTest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark does it; the rows are not undone by the abort, and the second commit finds them."""
    driver = sink.driver(path, options={"commit_attempts": "1"})
    driver.claim()
    messages = [written(driver, 0, numbered(0, 5))]
    monkeypatch.setenv(failpoints.VARIABLE, f"{sink.done}=raise")
    with pytest.raises(CommitError, match="could not be committed in 1 attempts") as failure:
        writer(driver).commit(messages, 0)
    assert "in doubt" in failure.value.kept
    writer(driver).abort(messages, 0)
    before = sink.commits(path)
    assert sink.ids(path) == list(range(5))
    writer(driver).commit(messages, 0)
    assert sink.commits(path) == before
    assert sink.ids(path) == list(range(5))


def test_c5_prepared_work_of_a_dead_incarnation_is_discarded_by_its_own_record(
    sink: SinkUnderTest, path: Path, tmp_path: Path
) -> None:
    """Its record is its name: what was committed stays, and what others have prepared."""
    first = sink.driver(path)
    first.claim()
    run(first, 0, numbered(0, 5))
    committed = sink.stored(path)
    killed_at(tmp_path, "sink.before_commit", sink, "run(driver, 1, numbered(5, 10))")
    dead = sink.stored(path) - committed
    assert len(dead) == 1
    written(sink.driver(path, uid="other"), 1, numbered(90, 95))
    others = sink.stored(path) - committed - dead
    assert len(others) == 1
    second = sink.driver(path, incarnation=2)
    mine = written(second, 1, numbered(5, 10))
    second.claim()
    assert not dead & sink.stored(path)
    assert committed | others <= sink.stored(path)
    writer(second).commit([mine], 1)
    assert sink.ids(path) == list(range(10))


def test_c6_a_late_repeated_or_out_of_order_completion_is_harmless(sink: SinkUnderTest, path: Path) -> None:
    """Also with rows that were prepared anew, and by another attempt at the same partition."""
    driver = sink.driver(path)
    driver.claim()
    messages = [[written(driver, epoch, numbered(epoch * 5, epoch * 5 + 5))] for epoch in range(3)]
    for epoch in (0, 1, 2):
        writer(driver).commit(messages[epoch], epoch)
    before = sink.commits(path)
    for epoch in (2, 0, 1, 1):
        writer(driver).commit(messages[epoch], epoch)
        writer(driver).abort(messages[epoch], epoch)
        anew = [written(driver, epoch, numbered(epoch * 5, epoch * 5 + 5), attempt=7)]
        writer(driver).commit(anew, epoch)
    assert sink.commits(path) == before
    run(driver, 3, numbered(15, 20))
    assert sink.ids(path) == list(range(20))


def test_c7_an_older_incarnation_that_wakes_up_cannot_commit(sink: SinkUnderTest, path: Path, tmp_path: Path) -> None:
    """It was frozen with all messages in hand; its successor has repeated the epoch and gone on."""
    sink.driver(path).claim()
    second = sink.driver(path, incarnation=2)
    with frozen(tmp_path, "sink.before_commit", program(sink, "run(driver, 0, numbered(0, 5))")) as zombie:
        second.claim()
        run(second, 0, numbered(0, 5))
        run(second, 1, numbered(5, 10))
        assert was_fenced(zombie.wake())
    with pytest.raises(FencedError, match="incarnation 2"):
        sink.driver(path).claim()
    assert sink.ids(path) == list(range(10))


def test_c11_a_driver_frozen_just_before_its_commit_wakes_after_its_successor_has_cleaned_up(
    sink: SinkUnderTest, path: Path, tmp_path: Path
) -> None:
    """FENCED; the target stays readable without what was deleted; nothing is lost or doubled."""
    first, second = sink.driver(path), sink.driver(path, incarnation=2)
    first.claim()
    run(first, 0, numbered(0, 5))
    with frozen(tmp_path, sink.brink, program(sink, "run(driver, 1, numbered(5, 10))")) as zombie:
        prepared = sink.stored(path) - sink.live(path)
        assert len(prepared) == 1
        second.claim()
        assert not prepared & sink.stored(path), "cleaned up"
        assert was_fenced(zombie.wake())
    assert sink.ids(path) == list(range(5))
    run(second, 1, numbered(5, 10))
    assert sink.ids(path) == list(range(10))


def test_c8_commit_errors_are_retried_with_back_off_and_a_limit(
    sink: SinkUnderTest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits are written down instead of waited for; the target is really damaged, and mended."""
    driver = sink.driver(path, options={"commit_attempts": "11", "commit_backoff": "100 ms"})
    driver.claim()
    messages = [written(driver, 0, numbered(0, 5))]
    waits: list[float] = []
    monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=waits.append))
    mend = sink.damage(path)
    with pytest.raises(CommitError, match="epoch 0 could not be committed in 11 attempts") as failure:
        writer(driver).commit(messages, 0)
    assert "what 1 tasks prepared" in failure.value.kept and "in doubt" in failure.value.kept
    assert len(waits) == 10
    for number, wait in enumerate(waits):
        assert min(0.1 * 2**number, 10) <= wait <= min(0.1 * 2**number + 0.1, 10)
    assert waits[-1] == 10

    def mend_in_the_third_wait(wait: float) -> None:
        waits.append(wait)
        if len(waits) == 3:
            mend()

    waits.clear()
    monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=mend_in_the_third_wait))
    writer(driver).commit(messages, 0)
    assert len(waits) == 3
    assert sink.ids(path) == list(range(5))


def test_c8_the_limit_leaves_an_incident_with_what_is_in_doubt(sink: SinkUnderTest, lab: Lab, path: Path) -> None:
    """A job whose target breaks under it: it fails, tells, and goes on once the target is mended."""
    gate = lab.folder / "gate"

    def job() -> Job:
        source = lab.source(counts="40", max_rows_per_epoch=20, gate=gate)
        rows = source.select(F.col("n").alias("id"), F.col("channel").alias("name"))
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state", restart_attempts=0)
        stream = rows.writeStream.format(sink.name).option("uid", "q-out").option("path", str(path))
        made.add("q", stream.option("commit_attempts", "3").option("commit_backoff", "10 ms"))
        return made

    first = job().start()
    until(lambda: path.exists() and sink.ids(path) == list(range(20)), "the first epoch")
    mend = sink.damage(path)
    gate.touch()
    with pytest.raises(JobFailedError, match="could not be committed in 3 attempts"):
        first.await_termination(90)
    told = [incident["what"] for incident in first.ledger.incidents().collect()]
    assert any("epoch 1 could not be committed in 3 attempts" in what and "in doubt" in what for what in told), told
    mend()
    assert sink.ids(path) == list(range(20))
    assert job().run(progress=False).finished
    assert sink.ids(path) == [n for _, n in expected(40)]


def test_c9_an_empty_epoch_touches_nothing(sink: SinkUnderTest, path: Path) -> None:
    """With tasks that had no rows, and with no task at all; the next epoch is taken as ever."""
    driver = sink.driver(path)
    driver.claim()
    before = sink.commits(path), sink.stored(path)
    writer(driver).commit([written(driver, 0, [], partition=n) for n in range(2)], 0)
    writer(driver).commit([], 1)
    assert (sink.commits(path), sink.stored(path)) == before
    run(driver, 2, numbered(0, 1))
    assert sink.ids(path) == [0]


def test_c9_an_empty_partition_beside_one_row(sink: SinkUnderTest, path: Path) -> None:
    driver = sink.driver(path)
    driver.claim()
    parts: list[list[dict[str, Any]]] = [[], numbered(7, 8), []]
    writer(driver).commit([written(driver, 0, rows, partition=n) for n, rows in enumerate(parts)], 0)
    assert sink.ids(path) == [7]


def test_c9_a_million_rows(sink: SinkUnderTest, path: Path) -> None:
    """In batches, as Spark gives them."""
    count, step = 1_000_000, 50_000
    driver = sink.driver(path, T.StructType([T.StructField("id", T.LongType())]))
    driver.claim()
    schema = arrow_schema(driver.schema)
    batches = (
        pa.RecordBatch.from_arrays([pa.array(range(start, start + step), pa.int64())], schema=schema)
        for start in range(0, count, step)
    )
    prepared = driver.sink().write(driver.schema, batches, Task(driver.uid, driver.query_id, 0, 0, 0, 1, 0))
    writer(driver).commit([Written(driver.query_id, 0, count, prepared)], 0)
    assert sink.ids(path) == list(range(count))


def test_c9_a_wide_row(sink: SinkUnderTest, path: Path) -> None:
    """500 columns, and one value of 5 MB."""
    names = [f"c{number}" for number in range(500)]
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("id", *names)])
    driver = sink.driver(path, schema)
    driver.claim()
    wide = {"id": "wide", **{name: name * 3 for name in names}, "c250": "ä" * 2_500_000}
    run(driver, 0, [wide])
    assert sink.visible(path).to_pylist() == [wide]


def test_c9_nulls(sink: SinkUnderTest, path: Path) -> None:
    """A row of nothing else, and some between values."""
    driver = sink.driver(path)
    driver.claim()
    rows: list[dict[str, Any]] = [{"id": None, "name": None}, {"id": 1, "name": None}, {"id": None, "name": "n"}]
    run(driver, 0, rows)
    run(driver, 1, [{"id": None, "name": None}])
    found = sink.visible(path).select(["id", "name"]).to_pylist()
    assert sorted(found, key=str) == sorted([*rows, rows[0]], key=str)


def test_c9_every_supported_type(sink: SinkUnderTest, path: Path) -> None:
    """Nested ones, extreme ones and nulls of each."""
    driver = sink.driver(path, EVERY_TYPE)
    driver.claim()
    values = [row(number) for number in range(1, 400, 7)] + [empty(-1)]
    run(driver, 0, values)
    schema = arrow_schema(EVERY_TYPE)
    wanted = pa.Table.from_pylist(values, schema=schema).sort_by("long")
    found = sink.visible(path).select(schema.names).cast(schema).sort_by("long")
    assert found.to_pylist() == wanted.to_pylist()


def test_c10_two_jobs_write_the_same_target_without_harm(sink: SinkUnderTest, path: Path, tmp_path: Path) -> None:
    """Two processes at once, each with a sink uid of its own; each starts again, and cleans up, beside the other."""
    body = """
for incarnation in (1, 2):
    driver = sink.driver(path, uid=f"out-{mine}", job_id=f"job-{mine}", incarnation=incarnation)
    driver.claim()
    for epoch in range(8) if incarnation == 1 else range(6, 12):
        start = mine * 1000 + epoch * 5
        run(driver, epoch, numbered(start, start + 5))
print("all epochs done")
"""
    processes = [
        started(
            tmp_path, program(sink, f"mine = {mine}\n{body}"), {registry.VARIABLE: str(tmp_path / f"session-{mine}")}
        )
        for mine in range(2)
    ]
    for process in processes:
        said = process.communicate(timeout=120)[0]
        assert "all epochs done" in said, said
    assert sink.ids(path) == [mine * 1000 + n for mine in range(2) for n in range(60)]


def test_c10_the_same_uid_twice_is_refused(sink: SinkUnderTest, path: Path, tmp_path: Path) -> None:
    """By the target, whichever session the other job runs in; and by the session, whichever target it has."""
    first = sink.driver(path)
    first.claim()
    run(first, 0, numbered(0, 5))
    before = sink.commits(path)
    with pytest.raises(ConfigurationError, match="another job wrote under the sink uid 'out'"):
        sink.driver(path, job_id="job-2").claim()
    registration = registry.lookup("out")
    assert registration is not None
    with pytest.raises(ConfigurationError, match="uid 'out' is in use by query 'q' of job 'job'"):
        registry.publish([replace(registration, job="another")], tmp_path / "registry")
    assert sink.commits(path) == before
    run(first, 1, numbered(5, 10))
    assert sink.ids(path) == list(range(10))
