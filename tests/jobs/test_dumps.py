"""Dumps of a running job: of a stall, of a lack of memory, and on request."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.observing.dump_folder import FOLDER, HEAP, STACKS
from tests.jobs.test_stalls import Stopping
from tests.support.jobs import JobHarness
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recorded(state: str, type_: str) -> list[IncidentRow]:
    return Ledger(state).table(IncidentRow).rows([("type", "=", type_)])


@pytest.mark.slow(20, "waits for a stall")
def test_a_stalled_query_leaves_the_stacks_of_all_processes(spark: SparkSession, tmp_path: Path) -> None:
    stopping = Stopping(spark, tmp_path, stall_after="2500 ms", dumps="stacks")
    stopping.start()
    with stopping.stopped_at("function", "lock"):
        stopping.stall()
        (row,) = until(lambda: recorded(stopping.job.state_directory, "stall"), "it is recorded", 60)
        path = Path(row.evidence["dump"])
        assert path == tmp_path / "state" / FOLDER / row.incident_id
        stacks = until(lambda: (path / STACKS).exists() and (path / STACKS).read_text(), "it is written", 60)
    stopping.over()
    stopping.moves()
    stopping.job.stop()
    assert stacks.startswith("job 'lab', query 'q': no progress since ")
    worker = stacks.partition("== Python worker, process ")[2]
    assert "stop_here" in worker and "of job 'lab', query 'q' ==" in worker
    assert "== driver's JVM ==" in stacks and "stream execution thread for " in stacks


@pytest.mark.slow(15, "a query is restarted, and a heap is written")
def test_a_lack_of_memory_leaves_the_heap_and_the_query_is_restarted(lab: JobHarness) -> None:
    once = str(lab.folder / "once")

    def greedy(n: int) -> int:
        if n == 15 and not Path(once).exists():
            Path(once).touch()
            raise MemoryError("a large array")
        return n

    frame = lab.source(counts="30", rate=10).withColumn("m", F.udf(greedy, "long")("n"))
    result = lab.run(frame, dumps="heap")
    assert result.finished and len(lab.numbers()) == 30
    (row,) = recorded(str(lab.folder / "state"), "failure")
    assert row.labels["type"] == "RESOURCE"
    path = Path(row.evidence["dump"])
    until((path / HEAP).exists, "the heap is written, also after the end of the job", 120)
    assert (path / HEAP).read_bytes()[:12] == b"JAVA PROFILE"
    assert "MemoryError" in (path / STACKS).read_text()


def test_a_running_job_is_dumped_on_request_whatever_its_settings(lab: JobHarness) -> None:
    job = lab.job(lab.source(counts="1", live="true", rate=50).withColumn("m", F.udf(lambda n: n, "long")("n")))
    with pytest.raises(StateError, match="the job does not run"):
        job.dump()
    job.start()
    until(lambda: job.snapshot().query("q").epochs >= 2, "epochs are committed", 60)
    assert not (lab.folder / "state" / FOLDER).exists()
    path = Path(job.dump("it is slow"))
    job.stop()
    assert path.parent == lab.folder / "state" / FOLDER
    text = (path / STACKS).read_text()
    assert text.startswith("it is slow\n") and "== driver's JVM ==" in text and "Python worker" in text
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark-ext-dumps")]
    with pytest.raises(StateError, match="the job does not run"):
        job.dump()


def test_a_heap_on_an_object_store_is_refused_when_the_job_is_made(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="local path only"):
        sx.Job(spark, "lab", state="s3://bucket/state", dumps="heap")
