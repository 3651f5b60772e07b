"""A query that makes no progress is found, and its stacks say what holds it: one job, stopped at many points."""

import json
import threading
import time
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow, JobRow
from spark_ext.model.lifecycle import State
from spark_ext.queries.watched import Stall
from spark_ext.views.downtime import downtime
from spark_ext.views.timeline import timeline
from tests.stalls import operators
from tests.stalls.stuck import frozen
from tests.support import operators as plain_operators
from tests.support.jobs import JobHarness
from tests.support.waiting import until


class Stopping:
    """A job whose function, source and sink stop when a file says so."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        for module in (operators, plain_operators):
            cloudpickle.register_pickle_by_value(module)
        sx.register(spark, operators.StoppingNumbers, operators.StoppingFolder)
        self.flags = folder / "flags"
        self.flags.mkdir()
        flags = str(self.flags)

        @F.udf("long")
        def user_function(n: int) -> int:
            operators.stop_here(flags, "function")
            return n

        numbers = spark.readStream.format("stopping_numbers").option("uid", "in").option("flags", flags)
        numbers = numbers.option("counts", "1,1").option("live", "true").option("rate", "50")
        rows = numbers.load().withColumn("m", user_function("n"))
        writer = rows.writeStream.format("stopping_folder").option("uid", "out").option("flags", flags)
        self.job = sx.Job(spark, "lab", state=folder / "state", interval="200 ms", **settings)
        self.job.add("q", writer.option("path", str(folder / "out")))

    def start(self) -> None:
        self.job.start()
        self.moves(3)

    @property
    def epochs(self) -> int:
        return self.job.snapshot().query("q").epochs

    def moves(self, epochs: int = 1) -> None:
        before = self.epochs
        until(lambda: self.epochs >= before + epochs, "epochs are committed", 60)

    def stall(self) -> Stall:
        found = until(lambda: self.job.runs[0].watched.stall, "the query is stalled", 60)
        assert found is not None
        return found

    def over(self) -> None:
        until(lambda: self.job.runs[0].watched.stall is None, "the query is not stalled", 60)
        until(lambda: "stalled" not in self.job.snapshot().query("q").reason, "it is shown", 60)

    def stopped_at(self, point: str, how: str) -> AbstractContextManager[None]:
        """Stop at a point for as long as the block runs."""
        return operators.stopped_at(self.flags, point, how)


@pytest.mark.slow(40, "a job is stopped at three points, and once by a frozen process")
def test_l6_what_holds_a_query_is_found_by_its_stacks(spark: SparkSession, tmp_path: Path) -> None:
    # Longer than an epoch on a busy machine: what is tested is the verdict, not the time.
    stopping = Stopping(spark, tmp_path, stall_after="2500 ms")
    stopping.start()
    found = {}
    for point, how in (("function", "lock"), ("read", "socket"), ("commit", "sleep")):
        with stopping.stopped_at(point, how):
            stall = stopping.stall()
            found[point] = (stall.holder.labels["type"], stall.holder.labels["origin"])
            assert stall.holder.frame is not None and stall.holder.frame.file.endswith("tests/stalls/operators.py")
            until(lambda: "stalled: " in stopping.job.snapshot().query("q").reason, "it is shown", 60)
            assert stopping.job.state is State.RUNNING
        stopping.over()
        stopping.moves(2)
    assert found == {"function": ("USER_CODE", "user"), "read": ("SOURCE", "user"), "commit": ("SINK", "user")}
    # A slow system: the processes that work for the query are there, and do not run.
    with frozen(stopping.job.state_directory, "task"):
        holder = stopping.stall().holder
        assert (holder.type.value, holder.origin.value) == ("SYSTEM", "spark") and "does not answer" in holder.what
    stopping.over()
    stopping.job.stop()
    rows = Ledger(stopping.job.state_directory).table(IncidentRow).rows([("type", "=", "stall")])
    assert [row.labels["type"] for row in sorted(rows, key=lambda row: row.at)] == [
        *(kind for kind, _ in found.values()),
        "SYSTEM",
    ]
    assert sum("stop_here" in json.dumps(row.evidence["stacks"]) for row in rows) == 3


@pytest.mark.slow(20, "waits for a stall and for the end of the job")
def test_a_stall_ends_the_job_if_the_settings_say_so(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"on_stall": "fail", "stop_timeout": "10 s", "dumps": "stacks"}
    stopping = Stopping(spark, tmp_path, stall_after="5 s", **settings)
    stopping.start()
    with stopping.stopped_at("plan", "lock"):
        until(lambda: stopping.job.state in (State.FAILING, State.FAILED), "the job fails", 60)
    with pytest.raises(sx.errors.JobFailedError, match="no progress since"):
        stopping.job.await_termination(60)
    # And leaves the stacks of all processes, although it has ended meanwhile.
    (row,) = Ledger(stopping.job.state_directory).table(IncidentRow).rows([("type", "=", "stall")])
    path = Path(row.evidence["dump"])
    assert path == tmp_path / "state" / "dumps" / row.incident_id
    until((path / "stacks.txt").exists, "they are written", 60)
    stacks = (path / "stacks.txt").read_text()
    assert stacks.startswith("job 'lab', query 'q': no progress since ")
    assert "stop_here" in stacks.partition("== seen when the incident was noticed ==")[2]
    assert "== driver's JVM ==" in stacks and "at java.base" in stacks


@pytest.mark.core
@pytest.mark.slow(25, "a function holds up a stop for some seconds")
def test_l9_time_in_failing_belongs_to_what_holds_up_the_stop(lab: JobHarness) -> None:
    gate, begun = lab.folder / "gate", threading.Event()

    def ignores_the_stop(frame: DataFrame, epoch: int) -> None:
        begun.set()
        until(gate.exists, "the gate opens", 60)

    def refused(n: int) -> int:
        if n > 20:
            import socket

            socket.create_connection(("127.0.0.1", 1), 1)
        return n

    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", restart_attempts=0, outage_patience=0)
    rows = lab.source("a", counts="1", live="true", rate=20).withColumn("m", F.udf(refused, "long")("n"))
    lab.add(job, rows, query="a", out="a")
    job.add("b", lab.source("b", counts="1", live="true", rate=20).writeStream.foreachBatch(ignores_the_stop))
    job.start()
    assert begun.wait(60)
    until(lambda: job.state is State.FAILING, "the job fails", 60)
    failing = time.monotonic()
    ledger = Ledger(job.state_directory)

    def blocked() -> list[IncidentRow]:
        return ledger.table(IncidentRow).rows([("type", "=", "stop_blocked")])

    until(blocked, "it is found what holds up the stop", 60)
    gate.touch()
    until(lambda: job.state is State.FAILED, "the job has failed", 60)
    seconds = time.monotonic() - failing
    with pytest.raises(sx.errors.JobFailedError, match="refused"):
        job.await_termination(60)

    (found,) = blocked()
    assert (found.labels["type"], found.labels["function"]) == ("USER_CODE", "ignores_the_stop")
    incidents = [vars(row) for row in ledger.table(IncidentRow).rows()]
    failure = next(row for row in incidents if row["type"] == "failure")
    assert failure["labels"]["type"] == "NETWORK"
    tables = ([vars(row) for row in ledger.table(kind).rows()] for kind in (ExecutionStateRow, JobRow))
    spent = downtime(timeline(*tables), incidents, datetime.now(timezone.utc)).by_incident()
    blamed = spent[found.incident_id]["FAILING"]
    assert blamed == pytest.approx(seconds, rel=0.25, abs=1.0)
    assert spent[failure["incident_id"]].get("FAILING", 0.0) < blamed / 4
