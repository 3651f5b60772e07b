"""A job's settings: the shipped file, then what was given."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from spark_ext.errors import ConfigurationError
from spark_ext.model.restarts import RestartPolicy
from spark_ext.settings import VARIABLES, JobSettings, refuse_unread


def test_the_shipped_file_has_all_defaults_but_credentials() -> None:
    assert JobSettings.of("j", {}) == JobSettings()
    shipped = yaml.safe_load(files("spark_ext.conf").joinpath("job.yaml").read_text())
    assert shipped.keys() == JobSettings.model_fields.keys() - {"storage_options"}


def test_given_settings_win() -> None:
    settings = JobSettings.of(
        "j", {"interval": "2 s", "restart_attempts": 7, "restart_backoff": 10, "outage_patience": "2 s"}
    )
    assert settings.interval == 2000
    assert settings.checkpoint_interval == 10_000
    assert settings.restarts == RestartPolicy(7, 10, outage_ms=2000)


@pytest.mark.parametrize(
    ("given", "named"),
    [({"intervall": 1}, "intervall"), ({"interval": "soon"}, "interval"),
     ({"latency": "on"}, "latency"),
     ({"latency_interval": "often"}, "latency_interval"),
     ({"restart_attempts": -1}, "restart_attempts"), ({"stop_timeout": -1}, "stop_timeout")],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(given: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"setting '{named}'") as refused:
        JobSettings.of("my-job", given)
    assert "my-job" in refused.value.operator
    assert (named if named in JobSettings.model_fields else "restart_attempts") in refused.value.do


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("checkpointInterval", "did you mean 'checkpoint_interval'?"), ("processingTime", "did you mean 'interval'?"),
        ("checkpointLocation", "the argument 'state' of Job"), ("colour", "use one of: aligned_timeout"),
    ],
)  # fmt: skip
def test_a_setting_under_another_name_is_refused_with_the_right_one(given: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting '{given}'") as refused:
        JobSettings.of("my-job", {given: 1})
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("spark.spark_ext.hartbeat", "did you mean Job(..., heartbeat=...)?"),
        ("spark-ext.checkpointInterval", "did you mean Job(..., checkpoint_interval=...)?"),
        ("spark.sparkExt.colour", "remove it: settings of a job are arguments of Job"),
        ("heartbeat", "did you mean Job(..., heartbeat=...)?"),
        ("spark.stop_timeout", "did you mean Job(..., stop_timeout=...)?"),
    ],
)
def test_a_setting_of_a_session_that_nothing_reads_is_refused(key: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        refuse_unread(["spark.executor.heartbeatInterval", key], [], "job 'j'")
    assert f"nothing reads the setting '{key}' of the session" in str(refused.value) and hint in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("SPARK_EXT_TOKN", "did you mean SPARK_EXT_TOKEN?"),
        ("SPARK_EXT_TRACE_BACK", "did you mean SPARK_EXT_TRACEBACK?"),
        ("SPARK_EXT_HEARTBEAT", "did you mean Job(..., heartbeat=...)?"),
        ("SPARK_EXT_RESTART_ATTEMPT", "did you mean Job(..., restart_attempts=...)?"),
    ],
)
def test_a_variable_that_nothing_reads_is_refused(variable: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        refuse_unread([], ["SPARK_HOME", "SPARK_EXT_TOKEN", "SPARK_EXT_DB_PASSWORD", variable], "job 'j'")
    assert f"environment variable {variable}; {hint}" in str(refused.value)


def test_all_variables_that_are_read_are_known_and_names_of_others_are_free() -> None:
    sources = [path.read_text() for path in Path(str(files("spark_ext"))).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"\"SPARK_EXT_([A-Z_]+)\"", text)}
    assert read == VARIABLES
    own = "spark.executor.heartbeatInterval spark.metrics.namespace spark.sql.catalog.x spark.app.name fs.s3a.endpoint"
    refuse_unread(own.split(), ["SPARK_EXT_DB_PASSWORD", "SPARK_EXT_TESTS_FORKS", "SPARK_EXT_BROWSER"], "job 'j'")


def test_credentials_are_never_shown() -> None:
    settings = JobSettings.of("j", {"storage_options": {"AWS_SECRET_ACCESS_KEY": "hunter2"}})
    assert settings.storage_options["AWS_SECRET_ACCESS_KEY"] == "hunter2"
    assert "hunter2" not in repr(settings)
    with pytest.raises(ConfigurationError) as refused:
        JobSettings.of("j", {"storage_options": "hunter2"})
    assert "hunter2" not in str(refused.value)
