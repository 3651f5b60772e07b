"""A driver with an Observer that is killed, one whose Spark is stopped, and one that exits: what the ledger says."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.heartbeat import last_beat
from spark_ext.ledger.schema import EpochRow, IncidentChangeRow, IncidentRow, JobRow
from spark_ext.listeners import Observer
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.testing.children import Child
from spark_ext.testing.waiting import until
from spark_ext.views.status import read_status

ROOT = Path(__file__).parents[2]


def drive(folder: Path, how: str) -> None:
    """Run a query that is watched, and leave it: `kill`, kill the `jvm`, `stop` Spark, or `exit`."""
    state = folder / "state"
    spark = sx.session("driver", master="local[1]", conf={"spark.ui.enabled": "false"})
    observer = Observer(state=state, name="nightly", heartbeat="200 ms")
    spark.streams.addListener(observer)
    before = recorded(state)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rows.writeStream.format("noop").queryName("ticks").trigger(processingTime="100 milliseconds")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    until(lambda: len(recorded(state)) >= len(before) + 3, "epochs are written", 60)
    assert query.isActive
    if how == "kill":
        until(lambda: outlives_rows(state), "it is alive for longer than the last row says", 60)
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "jvm":
        os.kill(cast("int", CLASSIC.jvm_pid(spark)), signal.SIGKILL)
        until(lambda: not observer.watching, "it ends with the JVM", 30)
    elif how == "stop":
        spark.stop()
        until(lambda: not observer.watching, "it ends with Spark", 30)


def recorded(state: Path) -> set[int]:
    return {row.epoch for row in Ledger(str(state)).table(EpochRow).rows()}


def outlives_rows(state: Path) -> bool:
    ledger = Ledger(str(state))
    (mine,) = ledger.jobs()
    beat = last_beat(ledger.uri, mine.incarnation, mine.start_id)
    return beat is not None and beat > max(row.committed_at for row in ledger.table(EpochRow).rows())


@pytest.mark.slow(30, "four drivers, three JVMs")
def test_l5_the_history_of_drivers_that_end_in_each_way(tmp_path: Path) -> None:
    with Child(drive, tmp_path, "kill") as child:
        said = child.wait()
        assert child.poll() == -signal.SIGKILL, said
    with Child(drive, tmp_path, "jvm") as child:
        said = child.wait()
        assert child.poll() == 0, said
    # Not a process of multiprocessing, which exits without what is registered for the exit of an interpreter.
    code = "import sys; from pathlib import Path; from tests.observing import test_drivers as t\n"
    code += "for how in ('stop', 'exit'): t.drive(Path(sys.argv[1]), how)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ledger = Ledger(str(tmp_path / "state"))
    assert {row.kind for row in ledger.jobs()} == {"observer"}
    ends = {row.incarnation: row.reason for row in ledger.table(JobRow).rows() if row.event == "ended"}
    assert ends == {2: "Spark's JVM has died", 3: "Spark was stopped", 4: "the interpreter has exited"}
    (died,) = [row for row in ledger.table(IncidentRow).rows() if row.type == "failure"]
    assert died.operator == "job 'nightly', query 'ticks'" and "JVM" in died.what

    # All epochs, each once, also those that were committed and not written when the driver or the JVM was killed.
    found = [row.epoch for row in ledger.table(EpochRow).rows()]
    assert sorted(found) == list(range(len(found)))

    (lost,) = [row for row in ledger.table(IncidentRow).rows() if row.type == "driver_lost"]
    assert (lost.incarnation, lost.operator) == (2, "job 'nightly'")
    last = max(row.committed_at for row in ledger.table(EpochRow).rows() if row.incarnation == 1)
    assert lost.evidence["last_seen"] > last.isoformat(), "its heartbeat was later than its last row"
    changes = [row for row in ledger.table(IncidentChangeRow).rows() if row.incident_id == lost.incident_id]
    assert "has committed epoch" in max(changes, key=lambda row: row.at).cause

    shown = read_status(str(tmp_path / "state"))
    assert (shown.state.value, len(shown.timeline.spans), len(shown.timeline.downs)) == ("CANCELED", 4, 1)
