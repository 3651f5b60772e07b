"""Whatever belongs to Spark Connect is refused by name. The last test has a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.backend.kinds import refuse_connect_requests, require_classic
from tests.support import cheap_jvm


class _Connect:
    """Only the module of a class tells."""


_Connect.__module__ = "pyspark.sql.connect.session"
_Connect.__name__ = "SparkSession"
CONNECT: Any = _Connect()


def test_what_is_not_of_connect_passes(spark: SparkSession) -> None:
    for thing in (spark, spark.range(1), None, "spark"):
        require_classic(thing, "x", kept="nothing")


def test_a_job_refuses_spark_connect_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"a Spark Connect session\n  at:   job 'j'"):
        sx.Job(CONNECT, "j", state=tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_register_refuses_sessions_of_the_other_kind(spark: SparkSession) -> None:
    with pytest.raises(EnvironmentProblem, match=r"register\(spark, connect=True\)"):
        sx.register(CONNECT)
    with pytest.raises(EnvironmentProblem, match="this is a classic session"):
        sx.register(spark, connect=True)


def test_an_observer_refuses_spark_connect(tmp_path: Path) -> None:
    observer = sx.listeners.Observer(state=tmp_path / "state", name="o")
    with pytest.raises(EnvironmentProblem, match="Observer 'o'"):
        observer._set_spark_session(CONNECT)
    assert not observer.watching


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("SPARK_REMOTE", "sc://127.0.0.1"), ("SPARK_CONNECT_MODE_ENABLED", "1"), ("SPARK_API_MODE", "Connect")),
        *(("SPARK_CONNECT_MODE", "1"), ("spark.api.mode", "connect"), ("spark.remote", "sc://127.0.0.1")),
    ],
)
def test_variables_and_settings_that_ask_for_connect_are_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.isupper():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentProblem, match=f"{name} asks for Spark Connect"):
        sx.session("x", conf={} if name.isupper() else {name: value})


def test_the_classic_mode_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_API_MODE", "classic")
    monkeypatch.setenv("SPARK_CONNECT_MODE", "0")
    refuse_connect_requests({"spark.api.mode": "classic"})


CLIENT = """
import json
import sys

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import EnvironmentProblem

folder = sys.argv[1]
builder = SparkSession.builder.remote("local[1]").config("spark.connect.grpc.binding.address", "127.0.0.1")
spark = builder.config("spark.sql.shuffle.partitions", "1").config("spark.ui.enabled", "false").getOrCreate()


def refused(call):
    try:
        call()
    except EnvironmentProblem as problem:
        return problem.what
    return "accepted"


def rows_after(checkpoint):
    rows = spark.readStream.format("datagen").options(uid="in", rows_of="30,10").load()
    writer = rows.writeStream.format("delta_2pc").options(uid="out", path=f"{folder}/table")
    query = writer.option("checkpointLocation", f"{folder}/{checkpoint}").trigger(availableNow=True).start()
    query.awaitTermination()
    return len(DeltaTable(f"{folder}/table").to_pandas())


sx.register(spark, connect=True)
frame = spark.readStream.format("datagen").options(uid="in", rows_of="30,10").load()
found = {
    "job": refused(lambda: sx.Job(spark, "j", state=f"{folder}/state")),
    "watermark": refused(lambda: sx.with_watermark(frame, "at", "1 day")),
    "control": refused(lambda: sx.with_control(frame, uid="c")),
    "session": refused(lambda: sx.session("x")),
    "observer": refused(
        lambda: spark.streams.addListener(sx.listeners.Observer(state=f"{folder}/observed", name="o"))
    ),
    "rows": [rows_after("checkpoint"), rows_after("checkpoint"), rows_after("another")],
}
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.slow(60, "starts a server of Spark Connect")
def test_a_real_client_runs_queries_but_no_jobs(tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    free_port = {"SPARK_TESTING": "1"}
    env = {**os.environ, **cheap_jvm.forking(), **free_port, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(tmp_path)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    rows = found.pop("rows")
    assert found.pop("session") == "SPARK_CONNECT_MODE_ENABLED asks for Spark Connect"
    assert {name: what.startswith("this is a Spark Connect ") for name, what in found.items()} == dict.fromkeys(
        ("job", "watermark", "control", "observer"), True
    )
    assert rows == [40, 40, 80]  # as docs/connect.md says: another checkpoint writes all rows again
    assert not (tmp_path / "state").exists()
