"""Spark is an extra: without it, or with another version of it, what needs Spark says so, and the rest works."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pyspark
import pytest

import spark_ext as sx
from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.session import environment, jars
from tests.support.versions import needs_delta

_NO_SPARK = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
"""


def without_spark(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has this package and its dependencies, but not pyspark."""
    return subprocess.run([sys.executable, "-c", _NO_SPARK + code], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_each_name_is_there_or_says_that_pyspark_is_missing() -> None:
    done = without_spark("""
import spark_ext as sx
import spark_ext.worker_internals
from spark_ext.errors import EnvironmentProblem
for name in sx.__all__:
    try:
        getattr(sx, name)
    except EnvironmentProblem as problem:
        assert "pip install 'spark-ext[spark]'" in problem.do, problem.do
        assert sys.executable in problem.operator
        print("missing:", name)
try:
    sx.session("none")
except EnvironmentProblem as problem:
    print(problem.what)
""")
    assert done.returncode == 0, done.stderr
    assert "missing: Job" in done.stdout and "missing: with_watermark" in done.stdout
    assert "missing: errors" not in done.stdout
    assert "pyspark, which jobs need, is missing: No module named 'pyspark'" in done.stdout


@pytest.mark.process
def test_the_command_line_reads_status_and_says_what_a_run_needs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def job(spark): ...")
    command = "sys.argv[1:] = {!r}\nfrom spark_ext.cli import main\nmain()"
    run = without_spark(command.format(["run", str(tmp_path / "job.py")]))
    assert run.returncode == 2
    assert "pyspark, which jobs need, is missing" in run.stderr and "Traceback" not in run.stderr
    status = without_spark(command.format(["status", str(tmp_path / "state")]))
    assert "pyspark" not in status.stderr + status.stdout


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0"])
def test_an_unsupported_pyspark_is_refused_before_java_starts(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(EnvironmentProblem, match=f"pyspark is {version}, and jobs run on Spark 4.0, 4.1, 4.2, 4.3"):
        sx.session("another")


def test_a_name_that_an_old_pyspark_lacks_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = ImportError("cannot import name 'X' from 'pyspark.sql'", name="pyspark.sql")
    assert environment.explained(lacking) is lacking, "with the supported one it is a fault of its own"
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    assert isinstance(environment.explained(lacking), EnvironmentProblem)
    other = ImportError("no", name="json")
    assert environment.explained(other) is other


@pytest.mark.parametrize(
    ("spark", "version", "needed"),
    [
        ("4.0.2", "3.3.2", "4.4, 4.3, 4.2, 4.1, 4.0"),
        ("4.1.1", "4.0.1", "4.4, 4.3, 4.2, 4.1"),
        ("4.2.0", "4.3.1", "4.4"),
        ("4.2.0", "4.5.0", "4.4"),
    ],
)
def test_a_delta_for_another_spark_is_refused_before_its_jar(
    monkeypatch: pytest.MonkeyPatch, spark: str, version: str, needed: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    minor = spark.rpartition(".")[0]
    with pytest.raises(EnvironmentProblem, match=f"delta-spark is {version}, and Spark {minor} needs Delta {needed}"):
        jars.delta_jars({})


def test_a_spark_without_a_delta_gets_no_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    assert jars.delta_jars({}) == ()


@pytest.mark.parametrize(
    ("spark", "delta", "artifact"),
    [
        ("4.0.1", "4.0.1", "delta-spark_2.13"),
        ("4.0.1", "4.4.0", "delta-spark_4.0_2.13"),
        ("4.1.1", "4.1.0", "delta-spark_4.1_2.13"),
    ],
)
def test_deltas_jar_is_named_for_the_version_of_spark(
    monkeypatch: pytest.MonkeyPatch, spark: str, delta: str, artifact: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    monkeypatch.setattr(metadata, "version", lambda name: delta)
    assert jars.delta_coordinate() == f"io.delta:{artifact}:{delta}"


@needs_delta
def test_without_the_package_of_delta_the_session_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", gone)
    with pytest.raises(EnvironmentProblem, match="delta-spark is not installed") as refused:
        jars.delta_jars({})
    assert "register()" in refused.value.do
    assert jars.delta_coordinate(default="VERSION").endswith("_2.13:VERSION")
