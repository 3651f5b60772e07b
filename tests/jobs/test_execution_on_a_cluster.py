"""Execution states and stalls on a standalone cluster: without workers, with a stuck function, a frozen executor."""

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

import pytest

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow, JobRow
from spark_ext.views.downtime import downtime
from spark_ext.views.timeline import timeline
from tests.support.cluster import Cluster
from tests.support.waiting import until

DRIVER = """
import json
import sys
import threading
import time
from pathlib import Path

import psutil
from pyspark import cloudpickle
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.spark.watching.activity import ActivityReader
from tests.stalls import operators
from tests.support.jobs import register
from tests.support.waiting import until

folder = Path(sys.argv[1])
spark = sx.session("x", conf={"spark.executor.memory": "600m", "spark.executor.cores": "1"})
register(spark)
cloudpickle.register_pickle_by_value(operators)
flags = folder / "flags"
flags.mkdir()


@F.udf("long")
def user_function(n):
    operators.stop_here(str(flags), "function")
    return n


rows = spark.readStream.format("numbers").options(uid="in", counts="1", live="true", rate=20).load()
job = sx.Job(spark, "lab", state=folder / "state", stall_after="3 s", interval="200 ms")
rows = rows.withColumn("m", user_function("n"))
job.add("q", rows.writeStream.format("folder").options(uid="out", path=str(folder / "out")))
first = []


def watch():
    reader = ActivityReader(spark)
    while not first:
        tasks = reader.read().tasks(str(job.runs[0].in_spark.runId)) if job.runs and job.runs[0].in_spark else None
        if tasks and tasks.running:
            first.append(time.time())
        time.sleep(0.05)


job.start()
threading.Thread(target=watch, daemon=True).start()
until(lambda: job.state is State.SCHEDULING, "the job waits for a slot")
(folder / "waits").touch()
until(lambda: job.state is State.RUNNING, "the job runs")
epochs = lambda: job.snapshot().query("q").epochs
until(lambda: epochs() > 3, "epochs are committed")
stalled = lambda: job.runs[0].watched.stall
found = []
(flags / ".f").write_text("lock")
(flags / ".f").rename(flags / "function")
found.append(until(stalled, "the function is stuck").holder)
(flags / "function").unlink()
until(lambda: stalled() is None, "it continues")
before = epochs()
until(lambda: epochs() > before + 2, "epochs are committed")
executors = [one for one in psutil.process_iter(["cmdline"]) if "--executor-id" in (one.info["cmdline"] or [])]
mine = [one for one in executors if spark.sparkContext.applicationId in one.info["cmdline"]]
for one in mine:
    one.suspend()
found.append(until(stalled, "the executor is frozen").holder)
for one in mine:
    one.resume()
until(lambda: stalled() is None, "it continues")

# An executor is killed while it runs a task.
ledger = Ledger(job.state_directory)
kinds = lambda: {row.type for row in ledger.table(IncidentRow).rows()}
(flags / ".f").write_text("lock")
(flags / ".f").rename(flags / "function")
until(stalled, "the function is stuck")
for one in mine:
    one.kill()
(flags / "function").unlink()
before = epochs()
until(lambda: epochs() > before + 1, "epochs are committed")
until(lambda: {"executor_lost", "task_retried"} <= kinds(), "both are recorded")
job.stop()
print(json.dumps({"first": first[0], "found": [[one.type.value, one.what] for one in found]}))
spark.stop()
"""


@pytest.mark.cluster
@pytest.mark.slow(70, "starts a cluster without workers, and adds one")
def test_l8_a_cluster_without_workers_and_a_query_held_by_one(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        driver = subprocess.Popen(
            [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)],
            env={**os.environ, **cluster.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE, stderr=(tmp_path / "errors").open("w"), text=True,
        )  # fmt: skip
        try:
            waits = tmp_path / "waits"
            until(lambda: waits.exists() or driver.poll() is not None, "the job waits for a slot")
            cluster.add_worker()
            out, _ = driver.communicate(timeout=400)
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, (tmp_path / "errors").read_text()
    seen = json.loads(out)
    (function, what), (frozen, silent) = seen["found"]
    assert (function, frozen) == ("USER_CODE", "SYSTEM")
    assert "stop_here" in what and silent == "executor 0 does not answer"

    ledger = Ledger(str(tmp_path / "state"))
    states = sorted(ledger.table(ExecutionStateRow).rows([("operator", "=", "q")]), key=lambda row: row.since)
    # Another row of one state is that of a stall: on a busy machine a start may stand still for three seconds.
    firsts = [next(rows) for _, rows in groupby(states, key=lambda row: row.state)]
    waiting = next(place for place, row in enumerate(firsts) if row.state == "SCHEDULING")
    # A busy driver may need the five seconds before it has submitted the first task, after which it counts as RUNNING.
    assert [row.state for row in firsts[:waiting]] in (["DEPLOYING"], ["DEPLOYING", "RUNNING"])
    begun, ended = firsts[waiting : waiting + 2]
    assert ended.state == "RUNNING"
    incidents = [vars(row) for row in sorted(ledger.table(IncidentRow).rows(), key=lambda row: row.at)]
    waited = next(row for row in incidents if row["type"] == "scheduling")
    assert waited["what"].endswith("no executor is registered") and waited["labels"]["type"] == "SYSTEM"
    tables = ([vars(row) for row in ledger.table(kind).rows()] for kind in (ExecutionStateRow, JobRow))
    spent = downtime(timeline(*tables), incidents, datetime.now(timezone.utc)).by_incident()
    began = datetime.fromisoformat(waited["evidence"]["since"]).timestamp()
    (lost,) = [row for row in incidents if row["type"] == "executor_lost"]
    assert lost["what"].startswith("executor 0 on 127.0.0.1 was lost: ") and lost["labels"]["type"] == "RESOURCE"
    (repeated,) = [row for row in incidents if row["type"] == "task_retried"]
    assert (
        repeated["labels"]["type"] == "RESOURCE"
        and repeated["operator"] == "job 'lab', query 'q'"
        and "executor 0" in repeated["what"].lower()
    )
    assert not [row for row in incidents if row["type"] == "failure"]
    assert (ended.since - begun.since).total_seconds() == pytest.approx(seen["first"] - began, rel=0.25, abs=1.0)
    # There was no slot either after the executor had been killed.
    assert spent[waited["incident_id"]]["SCHEDULING"] > 0.75 * (seen["first"] - began) - 1.0
