"""What is refused because it needs a classic session, without any session of Spark Connect; see `test_connect`."""

from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.spark.backend.kinds import refuse_connect_requests


class _Connect:
    """Only the module of a class tells."""


_Connect.__module__ = "pyspark.sql.connect.session"
_Connect.__name__ = "SparkSession"
CONNECT: Any = _Connect()


def test_an_observer_refuses_spark_connect(tmp_path: Path) -> None:
    observer = sx.listeners.Observer(state=tmp_path / "state", name="o")
    with pytest.raises(EnvironmentProblem, match="Observer 'o'"):
        observer._set_spark_session(CONNECT)
    assert not observer.watching


@pytest.mark.parametrize("given", [{"on_stall": "fail"}, {"stall_after": "10 s"}])
def test_a_job_over_spark_connect_refuses_settings_for_stalls(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))}.* needs the driver's JVM"):
        sx.Job(CONNECT, "lab", state=tmp_path / "state", **given)


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
