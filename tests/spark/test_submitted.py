"""Which master a session asks for when the program names none."""

import pytest

from spark_ext.spark.backend.process import master_of, submitted_settings

CLUSTER = "spark://master:7077"


@pytest.mark.parametrize(
    ("submitted", "arguments", "variable", "master"),
    [
        ({}, None, None, "local[*]"),
        ({}, None, CLUSTER, CLUSTER),
        ({"spark.master": CLUSTER}, None, None, CLUSTER),
        ({"spark.master": CLUSTER}, None, "local[1]", CLUSTER),
        ({"spark.master": "local[*]"}, None, CLUSTER, CLUSTER),  # spark-submit's own default
        ({}, f"--master {CLUSTER} pyspark-shell", "local[1]", CLUSTER),
        ({}, f"--name x --master={CLUSTER} pyspark-shell", None, CLUSTER),
        ({}, f"--conf spark.master={CLUSTER} --conf a=b=c pyspark-shell", None, CLUSTER),
        ({}, "--packages a:b:1 pyspark-shell", CLUSTER, CLUSTER),
        ({}, "--conf 'unfinished", CLUSTER, CLUSTER),
    ],
)
def test_master(
    submitted: dict[str, str], arguments: str | None, variable: str | None, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PYSPARK_SUBMIT_ARGS", arguments), ("SPARK_MASTER", variable)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert master_of(submitted) == master


def test_nothing_is_submitted_to_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert submitted_settings() == {}


def test_command_line_settings_rank_between_session_and_program() -> None:
    from spark_ext.spark.session.sessions import _settings

    submitted = {
        "spark.app.name": "job.py",
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.master": "local[*]",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.shuffle.partitions": "7",
        "spark.ui.enabled": "true",
    }
    made = _settings(CLUSTER, {"spark.ui.enabled": "false", "spark.jars": "delta-spark.jar"}, "python", submitted)
    assert made["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert made["spark.sql.shuffle.partitions"] == "7"
    assert made["spark.ui.enabled"] == "false"
    assert made["spark.master"] == CLUSTER
    assert "spark.app.name" not in made  # the program names its session
    assert "spark.storage.blockManagerHeartbeatTimeoutMs" not in made  # its executors are other processes
