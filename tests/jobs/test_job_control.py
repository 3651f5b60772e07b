"""`job.control`, `job.serve` and the command line change one running job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.commands import output
from spark_ext.control.requests import ControlRefused, Refusal
from spark_ext.jobs.job import Job
from spark_ext.model.lifecycle import State
from spark_ext.steering.sent import ControlNotDone
from tests.support.waiting import until
from tests.test_cli import spark_ext


def build(spark: SparkSession, folder: Path) -> Job:
    reader = spark.readStream.format("datagen").option("uid", "gen").option("rows", "100000000")
    frame = reader.option("max_rows_per_epoch", "100").load()
    writer = frame.select(F.lit(1).alias("one")).writeStream.format("delta_2pc")
    job = sx.Job(spark, "steered", state=folder / "state")
    return job.add("q", writer.option("uid", "out").option("path", str(folder / "out")))


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    made = build(spark, tmp_path)
    yield made
    if made.state is not State.CREATED and not made.done:
        made.stop()


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    return spark_ext("control", *arguments, "--json")


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "spark_ext", "control", *arguments, "--json"], capture_output=True, text=True,
        check=False, env={**os.environ, **environment},
    )  # fmt: skip


def epochs(job: Job) -> int:
    return job.snapshot().query("q").epochs


@pytest.mark.slow(25, "two runs of a job, and processes of the command line")
def test_a_running_job_is_changed_from_python_and_command_line(
    job: Job, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    control = job.control
    with pytest.raises(ControlRefused) as refused:
        control.pause()
    assert refused.value.refusal is Refusal.NO_JOB, "it was never started"
    assert refused.value.kept == "nothing was accepted"

    early = job.serve()
    assert early.token is not None
    assert early.token not in "".join(capsys.readouterr())
    job.start()
    until(lambda: epochs(job) > 1, "epochs are committed")
    # From Python: each is acknowledged, and says from which epoch on.
    limited = control.rate_limit("source:gen", 1_000_000, wait=60)
    assert limited.status == "acknowledged" and limited.applied["q"] is not None
    control.set("threshold", 0.5, wait=60)
    paused = control.pause(wait=60)
    at = epochs(job)
    first = paused.applied["q"]
    assert first is not None and control.config("q", first)["standing"]["pause"] == {"job": {"": None}}
    assert control.config("q")["config"] == {"threshold": 0.5}
    # From another process, by the ledger and by the server, while it is paused.
    done = command(job.state_directory, "set", "threshold", "0.8", "--target", "query:q", "--timeout", "60")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "acknowledged"
    done = command(early.url, "rate-limit", "source:gen", "none", "--timeout", "60", SPARK_EXT_TOKEN=early.token)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["origin"].startswith("rest ")
    assert epochs(job) - at <= 4, "no data epochs while it is paused: those of the events only"
    rows = job.snapshot().query("q").rows
    done = here(job.state_directory, "resume", "--timeout", "60")
    assert done.returncode == 0, done.stderr
    until(lambda: job.snapshot().query("q").rows > rows, "it reads again")
    assert control.config("q")["config"] == {"threshold": 0.8}
    assert control.config()["standing"].keys() == {"set_config"}
    # What cannot be done says so.
    done = here(job.state_directory, "broadcast", "x", "--expires", "0ms", "--timeout", "60")
    assert done.returncode == output.REFUSED
    busy = Path(job.state_directory)
    with pytest.raises(ControlNotDone) as not_done:
        control.savepoint(busy, wait=60)
    assert not_done.value.event is not None and not_done.value.event.status == "rejected"
    done = here(job.state_directory, "savepoint", str(busy), "--timeout", "60")
    assert done.returncode == output.REJECTED
    # The end: who waits for it is answered, and the server stops with the run.
    waiting = subprocess.Popen(
        [sys.executable, "-m", "spark_ext", "control", early.url, "stop", "--timeout", "60", "--json"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "SPARK_EXT_TOKEN": early.token},
    )  # fmt: skip
    printed, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, printed
    assert json.loads(printed)["result"] == {"state": "CANCELED"}
    assert job.await_termination(60).state is State.CANCELED
    until(lambda: not early.running, "the server stops with the run")
    monkeypatch.setenv("SPARK_EXT_TOKEN", early.token)
    done = here(early.url, "events")
    assert done.returncode == output.UNREACHABLE
    # After the run: what stands is taken up by the next start, and what needs a running job is refused.
    kept = control.set("threshold", 0.9, query="q")
    assert kept.status == "accepted"
    with pytest.raises(ControlRefused) as refused:
        control.checkpoint()
    assert refused.value.refusal is Refusal.ENDED
    shown: Any = control._repr_html_()
    assert "threshold = 0.9" in shown and "stop" in shown

    again = build(spark, Path(job.state_directory).parent)
    again.start()
    try:
        assert kept.wait(60).applied.keys() == {"q"}
        with again.serve(show_token=False) as late:
            assert sx.Control(late.url, late.token).drain(wait=120).status == "acknowledged"
        assert again.await_termination(60).finished
    finally:
        if not again.done:
            again.stop()
