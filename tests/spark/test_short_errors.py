"""What a user sees of an error: what happened and the line of the own file, without libraries; and from any thread."""

import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import ConfigurationError, refused
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.spark.session import sessions, short_errors
from tests.support import cheap_jvm
from tests.support.jobs import numbers, register

SCRIPT = """
import sys

import spark_ext as sx
from pyspark.sql import functions as F

spark = sx.session("mistakes", master="local[2]")
try:
    spark.readStream.format("datagen").option("uid", "in").option("rosw", "3").load()
except Exception:
    sys.excepthook(*sys.exc_info())
print("-- the job", file=sys.stderr)


@F.udf("long")
def half(n):
    return 1 // (n - n)


rows = spark.readStream.format("datagen").option("uid", "in").option("rows", "300").load()
writer = rows.select(half("id").alias("n")).writeStream.format("delta_2pc")
job = sx.Job(spark, "mistakes", state="state")
job.add("q", writer.option("uid", "out").option("path", "out"))
try:
    job.run(progress=False)
except sx.errors.JobFailedError as failure:
    with open("cause.txt", "w") as kept:
        kept.write(failure.cause_text)
    raise
"""


@pytest.mark.slow(25, "a driver process of its own, whose query is started four times")
def test_a_simple_mistake_shows_in_under_twenty_lines(tmp_path: Path) -> None:
    script = tmp_path / "mistakes.py"
    script.write_text(SCRIPT)
    env = {**os.environ, **cheap_jvm.forking(*map(Path, filter(None, sys.path)))}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    refusal, job = done.stderr.split("-- the job\n")
    assert len(refusal.splitlines()) < 20 and len(job.splitlines()) < 20, done.stderr
    assert "unknown option 'rosw'" in refusal and f"from: {script}, line 9, in <module>" in refusal
    line = f"{script}, line 17, in half: ZeroDivisionError: integer division or modulo by zero"
    assert f"JobFailedError: [USER_CODE] {line}\n" in job
    assert f"from: {script}, line 25, in <module>" in job
    for stack in ((tmp_path / "cause.txt").read_text(), stack_of_the_incident(tmp_path / "state")):
        assert "ZeroDivisionError" in stack and "\tat org.apache.spark" in stack


def stack_of_the_incident(state: Path) -> str:
    rows = Ledger(str(state)).table(IncidentRow).rows()
    return str(max(rows, key=lambda row: row.at).evidence).replace("\\n", "\n").replace("\\t", "\t")


def shown(fail: Callable[[], Any]) -> str:
    out = io.StringIO()
    try:
        fail()
    except Exception as problem:
        with redirect_stderr(out):
            short_errors._show(type(problem), problem, problem.__traceback__)
    return out.getvalue()


def test_an_error_of_ours_shows_the_users_line_alone() -> None:

    def users() -> None:
        raise refused("it is wrong", "the test", "correct it")

    text = shown(users)
    assert text.splitlines()[0] == "spark_ext.errors.ConfigurationError: [CONFIGURATION] it is wrong"
    assert f"from: {__file__}" in text and "Traceback" not in text


def test_the_whole_traceback_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(short_errors.VARIABLE, "1")
    assert "Traceback" in shown(lambda: sx.Job(None, "?", state="s"))  # type: ignore[arg-type]


def test_other_errors_are_shown_as_ever() -> None:
    text = shown(lambda: int("x"))
    assert "Traceback" in text and "ValueError" in text


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What the work returns, or the exception that it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as problem:
            found.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_without_a_session_is_told_a_way_out_that_works(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    rows = numbers(spark, "in", counts="3")

    def start() -> Any:
        writer = rows.writeStream.format("folder").option("uid", "out").option("path", str(tmp_path / "out"))
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        return "ended"

    def start_registered() -> Any:
        # py4j may give a thread one of the JVM that another one had.
        spark._jvm.org.apache.spark.sql.SparkSession.clearActiveSession()  # type: ignore[union-attr]
        register(spark)
        return start()

    def start_without() -> Any:
        spark._jvm.org.apache.spark.sql.SparkSession.clearActiveSession()  # type: ignore[union-attr]
        return start()

    raw = in_a_thread(start_without)
    found = short_errors.ours(raw)
    assert isinstance(found, ConfigurationError) and "spark_ext.register(spark)" in found.do, raw
    assert in_a_thread(start_registered) == "ended"


def test_a_plain_sessions_costly_settings_are_logged_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_advised", set())
    sessions._advise(spark)
    assert not caplog.records
    monkeypatch.setattr(sessions, "_advised", set())
    for setting in sessions._ADVISED:
        spark.conf.set(setting, sessions._ADVISED[setting][0])
    with caplog.at_level(logging.WARNING):
        sx.register(spark)
        sx.register(spark)
    (record,) = [record for record in caplog.records if record.name == "spark_ext.session"]
    assert all(setting in record.getMessage() for setting in sessions._ADVISED)


def test_the_version_is_the_packages() -> None:
    assert sx.__version__ == version("spark-ext")
