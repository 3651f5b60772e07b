"""A producer that its consumer holds back: who says so, where, and what becomes of it without the consumer."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_ext as sx
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.spark.backend.kinds import is_connect
from spark_ext.views.status import read_status
from tests.support.jobs import JobHarness, expected
from tests.support.waiting import until


def consumed(lab: JobHarness, limit: int | str, slow: Path, **settings: Any) -> sx.Job:
    """`fast` writes an exchange; `slow` takes 80 ms for a row, 2.4 s for an epoch, while there is the file `slow`."""

    def sleeps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows if slow.exists() else 0):
                time.sleep(0.08)
            yield batch

    job = sx.Job(lab.spark, "held", state=lab.folder / "state", heartbeat="1 s", **settings)
    x = job.exchange("x", partitions=2, max_in_flight=limit)
    job.add("fast", x.write(lab.source(counts="600", max_rows_per_epoch=50)))
    read = x.read("x-in", max_rows_per_epoch=60)
    lab.add(job, read.mapInArrow(sleeps, read.schema), query="slow", out="out")
    return job


@pytest.mark.core
@pytest.mark.slow(20, "a query is held back for some epochs of another one")
def test_u7_a_held_producer_names_its_consumer_and_its_line(lab: JobHarness) -> None:
    slow = lab.folder / "slow"
    slow.touch()
    sees = not is_connect(lab.spark)  # a client asks no JVM what a consumer does
    job = consumed(lab, 100, slow, metrics=True, **({"stall_after": "5 s"} if sees else {}))
    job.start()
    reason = re.compile(r"held back by query 'slow': 1\d\d of 100 rows in exchange 'x'")
    until(lambda: reason.fullmatch(job.snapshot().query("fast").reason), "it says why it stands still", 60)
    assert job.snapshot().query("fast").state is State.RUNNING
    exchange = until(lambda: job.snapshot().query("fast").exchange, "it is known how full the exchange is", 20)
    assert exchange is not None
    assert exchange.name == "x" and exchange.rows >= 100 and 0 < exchange.bytes <= exchange.stored_bytes
    status = until(lambda: read_status(job.state_directory).query("fast").exchange, "a heartbeat has it", 20)
    assert status is not None and status.name == "x"
    metrics = job._active.metrics
    assert metrics is not None
    values = {(sample.metric.name, *sample.labels): sample.value for sample in metrics.samples()}
    assert values["spark_ext_held_back_seconds_total", "held", "fast"] >= 2.0
    assert values["spark_ext_exchange_rows", "held", "x"] > 0 and values["spark_ext_exchange_bytes", "held", "x"] > 0
    state = job.ledger.channel_state()
    (sums,) = state.where("exchange = 'x'").selectExpr("sum(rows_in_flight)", "count(*)", "max(source)").collect()
    assert sums[0] >= 50 and tuple(sums)[1:] == (2, "x-in")
    (first,) = state.where("query = 'fast'").collect()
    assert (first.source, first.channel, first.state, first.rows_in_flight) == ("in", "0", "RUNNING", None)

    def incidents() -> list[IncidentRow]:
        return lab.ledger.table(IncidentRow).rows([("type", "in", ["backpressure", "stall", "slow", "behind"])])

    def line() -> IncidentRow | None:
        # On a busy machine a first look may find the consumer while Spark starts its Python worker; others follow.
        return next((row for row in incidents() if "function" in row.labels), None)

    found = until(line, "an incident with a line", 60) if sees else None
    slow.unlink()
    assert job.await_termination(120).finished
    assert lab.numbers() == expected(600)
    told = {(row.type, "query 'fast'" in row.operator) for row in incidents()}
    assert told == ({("backpressure", True)} if sees else set())
    if found is not None:
        assert (found.labels["type"], found.labels["origin"]) == ("USER_CODE", "user")
        assert found.labels["function"] == "sleeps" and found.labels["file"].endswith("test_backpressure.py")
        assert "that query is in a function at" in found.what and found.evidence["stacks"]
    states = lab.ledger.table(ExecutionStateRow).rows([("operator", "=", "fast")])
    said = [row.reason for row in sorted(states, key=lambda row: row.since)]
    assert any(map(reason.fullmatch, said)) and said[-1] == ""
    left = {(row.query, row.channel, row.state, row.rows_in_flight) for row in job.ledger.channel_state().collect()}
    assert left == {("fast", "0", "FINISHED", None), ("slow", "0", "FINISHED", None), ("slow", "1", "FINISHED", None)}


@pytest.mark.slow(15, "waits until a query is held back, and the job has ended")
def test_without_its_consumer_a_held_producer_is_stopped(lab: JobHarness) -> None:
    """Bounded by a size, of which one epoch is more. The next start continues both."""
    slow = lab.folder / "slow"
    slow.touch()
    job = consumed(lab, "1 B", slow)
    job.start()
    until(lambda: "of 1 bytes in exchange" in job.snapshot().query("fast").reason, "it is held back", 60)
    consumer = next(run for run in job.runs if run.uid == "slow").in_spark
    assert consumer is not None
    consumer.stop()
    result = job.await_termination(60)
    assert (result.query("slow").state, result.query("fast").state) == (State.CANCELED, State.CANCELED)
    assert result.query("fast").reason == "a query that reads what it writes has ended before it"
    slow.unlink()
    assert consumed(lab, "1 GiB", slow).run(progress=False).finished
    assert lab.numbers() == expected(600)
