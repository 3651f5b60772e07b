"""`session` and `register`: what they set, what they leave alone, what they refuse."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

import spark_ext as sx
from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.failpoints import DRIVER_PID
from spark_ext.sources.datagen import DataGen
from spark_ext.spark.session import formats, registry, sessions

NAMES = (registry.VARIABLE, DRIVER_PID, registry.PARALLELISM)


class Looks:
    """Rows with the environment of the process that plans and with that of the process that reads."""

    def partitions(self, *_: object) -> list[InputPartition]:
        return [InputPartition({name: os.environ.get(name) for name in NAMES})]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, str | None]]:
        for name in NAMES:
            yield "planner", name, partition.value[name]
            yield "reader", name, os.environ.get(name)


class BatchReader(Looks, DataSourceReader):
    pass


class StreamReader(Looks, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"at": 1}


class Environment(DataSource):
    @classmethod
    def name(cls) -> str:
        return "environment"

    def schema(self) -> str:
        return "who string, name string, value string"

    def reader(self, schema: object) -> BatchReader:
        return BatchReader()

    def streamReader(self, schema: object) -> StreamReader:
        return StreamReader()


def expected(spark: SparkSession) -> dict[str, str]:
    return dict(zip(NAMES, (spark.sparkContext.environment[registry.VARIABLE], str(os.getpid()), "2"), strict=True))


def test_state_is_on_rocksdb_with_changelog_and_format_2(spark: SparkSession, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rates.groupBy("value").count().writeStream.format("noop").outputMode("complete").trigger(once=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination()
    last = query.lastProgress
    assert last is not None
    (progress,) = last["stateOperators"]
    assert "rocksdbChangeLogWriterCommitLatencyMs" in progress["customMetrics"]
    state = [path.name for path in (tmp_path / "state" / "0").rglob("*.*")]
    # Format 2 names the files of a version after the attempt: 1_<unique id>.changelog.
    assert any(name.startswith("1_") and name.endswith(".changelog") for name in state), state


def test_settings_of_a_session(spark: SparkSession) -> None:
    for name, value in (
        ("sql.session.timeZone", "UTC"),
        ("sql.execution.arrow.pyspark.enabled", "true"),
        ("sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)),
        ("sql.shuffle.partitions", "2"),
        ("driver.host", "127.0.0.1"),
        ("storage.blockManagerHeartbeatTimeoutMs", "36500d"),
        ("executor.heartbeat.maxFailures", "1000000"),
    ):
        assert spark.conf.get(f"spark.{name}") == value
    assert spark.sparkContext.uiWebUrl is None and spark.sparkContext.pythonExec == sys.executable
    assert sx.session("another").sparkContext is spark.sparkContext


def test_a_misspelled_setting_is_refused_before_a_job_runs_without_it(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'spark.sql.shufle.partitions'; did you mean 'spark.sql.shuffle.pa"):
        sx.session("x", conf={"spark.sql.shufle.partitions": "3"})
    others = {"spark.sql.catalog.mine": "x", "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRow": "true"}
    known = {"spark.sql.warehouse.dir": str(tmp_path), "spark.sql.ansi.enabled": "true"}
    assert sx.session("x", conf={**others, **known, "spark.sql.my.own": "1"}).sparkContext is spark.sparkContext
    spark.conf.set("spark.spark_ext.hartbeat", "5 s")
    try:
        with pytest.raises(ConfigurationError, match=r"nothing reads the setting .* of the session"):
            sx.Job(spark, "j", state=tmp_path / "state")
    finally:
        for name in ("spark.spark_ext.hartbeat", "spark.sql.shufle.partitions", *others, "spark.sql.my.own"):
            spark.conf.unset(name)
    assert not (tmp_path / "state").exists()


def test_delta_is_there_with_its_sql(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert [row.version for row in spark.sql(f"describe history delta.`{tmp_path / 't'}`").collect()] == [0]


def test_planners_and_readers_see_the_registered_environment(spark: SparkSession) -> None:
    sx.register(spark, Environment)
    batch = spark.read.format("environment").load()
    frame = spark.readStream.format("environment").load()
    frame.writeStream.format("memory").queryName("seen").trigger(once=True).start().awaitTermination()
    for rows in (batch.collect(), spark.table("seen").collect()):
        for who in ("planner", "reader"):
            assert {row.name: row.value for row in rows if row.who == who} == expected(spark)


def test_register_twice_is_no_harm_and_makes_nothing(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.environment)
    there = Path(before[registry.VARIABLE]).exists()
    sx.register(spark)
    sx.register(spark)
    assert spark.sparkContext.environment == before
    assert Path(before[registry.VARIABLE]).exists() == there


@pytest.mark.parametrize("name", formats.SHIPPED)
def test_shipped_connectors_are_registered(spark: SparkSession, name: str) -> None:
    assert spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name)


def test_a_source_given_to_spark_itself_is_refused_with_advice(spark: SparkSession) -> None:
    class Given(DataGen):
        @classmethod
        def name(cls) -> str:
            return "given_to_spark"

    spark.dataSource.register(Given)  # type: ignore[arg-type]
    frame = spark.readStream.format("given_to_spark").options(uid="a", rows="1").load()
    with pytest.raises(StreamingQueryException, match=r"do:   register it with spark_ext\.register\(spark, Given\)"):
        frame.writeStream.format("noop").start().awaitTermination()
    with pytest.raises(ConfigurationError, match="Given has the format name 'given_to_spark' and is not registered"):
        sx.Job(spark, "given", state="unused").add("q", frame.writeStream.format("noop"))


def test_register_refuses_workers_with_another_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python")
    with pytest.raises(EnvironmentProblem, match="'/no/such/python' was not found"):
        sx.register(spark)


def test_session_refuses_a_pyspark_python_that_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(Path(sys.executable).resolve()))
    with pytest.raises(EnvironmentProblem, match="workers' Python is not the driver's"):
        sx.session("x")


def test_the_shipped_defaults_are_settings() -> None:
    defaults = sessions.defaults()
    assert defaults["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2"
    assert all(key.startswith("spark.") and value for key, value in defaults.items())


def test_cores_of_a_local_master() -> None:
    assert [sessions._cores(master) for master in ("local", "local[4]", "local[3,2]")] == [1, 4, 3]
    assert sessions._cores("local[*]") == len(os.sched_getaffinity(0))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, with an environment of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_session_without_java_says_how_to_install_it(tmp_path: Path) -> None:
    done = run("import spark_ext as sx; sx.session('x')", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert "[ENVIRONMENT] Java is not on this machine's PATH" in done.stderr
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_a_java_that_cannot_run_spark_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Module jdk.incubator.vector not found' >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.1"\n')
    done = run("import spark_ext as sx; sx.session('x')", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "[ENVIRONMENT] Java exited right after it was started" in done.stderr


def test_a_first_session_is_quiet() -> None:
    done = run(
        """
        import spark_ext as sx
        from spark_ext.spark.session import formats
        formats.SHIPPED = {}
        spark = sx.session("x", master="local[1]", conf={"spark.driver.memory": "512m"})
        print(spark.range(5).count(), spark.conf.get("spark.sql.shuffle.partitions"))
        """
    )
    assert (done.returncode, done.stdout) == (0, "5 1\n"), done.stderr
    assert done.stderr == ""


def test_a_session_from_elsewhere_without_deltas_jar() -> None:
    done = run(
        """
        import sys, os
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession
        import spark_ext as sx
        from spark_ext.spark.session import formats
        formats.SHIPPED = {}
        spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
                 .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
        try:
            sx.register(spark)
        except sx.errors.EnvironmentProblem as problem:
            print(problem)
        print("environment", sorted(spark.sparkContext.environment))
        sx.register(spark, require_delta=False)
        print("environment", sorted(spark.sparkContext.environment))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "Delta's jar is not on the class path" in done.stdout
    assert "spark.jars.packages to io.delta:delta-spark_4.2_2.13:" in done.stdout
    refused, registered = [line for line in done.stdout.splitlines() if line.startswith("environment")]
    assert registry.VARIABLE not in refused
    assert registry.VARIABLE in registered
