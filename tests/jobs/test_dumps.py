"""Dumps of a running job: of a lack of memory, and on request; `test_stalls` has that of a stall."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.observing.dump_folder import FOLDER, HEAP, STACKS
from tests.support.jobs import JobHarness
from tests.support.waiting import until
from tests.test_cli import spark_ext


def test_a_lack_of_memory_leaves_a_heap_and_restarts_the_query(lab: JobHarness) -> None:
    once = str(lab.folder / "once")

    def greedy(n: int) -> int:
        if n == 15 and not Path(once).exists():
            Path(once).touch()
            raise MemoryError("a large array")
        return n

    frame = lab.source(counts="30", rate=10).withColumn("m", F.udf(greedy, "long")("n"))
    assert lab.run(frame, dumps="heap").finished and len(lab.numbers()) == 30
    (row,) = Ledger(str(lab.folder / "state")).table(IncidentRow).rows([("type", "=", "failure")])
    assert row.labels["type"] == "RESOURCE"
    path = Path(row.evidence["dump"])
    until((path / HEAP).exists, "the heap is written, also after the end of the job", 120)
    assert (path / HEAP).read_bytes()[:12] == b"JAVA PROFILE"
    assert "MemoryError" in (path / STACKS).read_text()
    assert f"  dump: {path}\n" in spark_ext("incidents", lab.folder / "state", row.incident_id).stdout


@pytest.mark.core
def test_a_running_job_is_dumped_on_request_under_any_settings(lab: JobHarness) -> None:
    job = lab.job(lab.source(counts="1", live="true", rate=50).withColumn("m", F.udf(lambda n: n, "long")("n")))
    with pytest.raises(StateError, match="the job does not run"):
        job.dump()
    job.start()
    until(lambda: job.snapshot().query("q").epochs >= 2, "epochs are committed", 60)
    assert not (lab.folder / "state" / FOLDER).exists()
    path = Path(job.dump("it is slow"))
    event = job.control.dump(wait=60.0)
    assert event.status == "acknowledged"
    (other,) = [one for one in path.parent.iterdir() if one != path]
    assert event.result == {"path": str(other)}
    assert event.id in (other / STACKS).read_text()
    job.stop()
    assert path.parent == lab.folder / "state" / FOLDER
    text = (path / STACKS).read_text()
    assert text.startswith("it is slow\n") and "== driver's JVM ==" in text
    worker = text.partition("== Python worker, process ")[2]
    assert "of job 'lab', query 'q' ==" in worker and "\n    at " in worker
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark-ext-dumps")]
    with pytest.raises(StateError, match="the job does not run"):
        job.dump()


def test_a_heap_folder_on_an_object_store_is_refused_early(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="local path only"):
        sx.Job(spark, "lab", state="s3://bucket/state", dumps="heap")
