"""What is missing is named, with the way to get it, before Spark is started."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.session import environment
from spark_ext.spark.session.jars import delta_jars

# The interpreter that the virtual environment was made from: it has neither pyspark nor spark_ext.
BARE_PYTHON = str(Path(sys.executable).resolve())


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("22-ea", 22), ('"11.0.2"', 11), ("25.0.1+8-LTS", 25)],
)
def test_java_major(version: str, major: int) -> None:
    assert environment.java_major(version) == major
    with pytest.raises(ValueError, match="not a Java version"):
        environment.java_major("unknown")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_old_java_is_refused_with_the_way_to_a_newer_one(version: str) -> None:
    with pytest.raises(EnvironmentProblem, match="too old") as refused:
        environment.require_java_version(version, "the driver")
    assert version in refused.value.what
    assert "openjdk-17" in refused.value.do


def test_java_17_and_newer_pass() -> None:
    environment.require_java_version("17.0.1", "the driver")
    environment.require_java_version("21", "the driver")


def test_a_client_in_rust_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pyspark._pyspark")
    module.__spec__ = ModuleSpec("pyspark._pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark._pyspark", module)
    with pytest.raises(EnvironmentProblem, match="pyspark-client-rust, whose plans a job cannot read"):
        environment.require_pyspark()


def test_no_java_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="Java is not on this machine's PATH") as refused:
        environment.require_java()
    assert "JAVA_HOME" in refused.value.do


@pytest.mark.parametrize(
    ("script", "release", "problem"),
    [
        (None, None, r"JAVA_HOME is '\S+', which has no bin/java"),
        ("exit 1", 'IMPLEMENTOR="x"\nJAVA_VERSION="11.0.2"\n', r"Java 11\.0\.2 is too old"),
        ("echo 'openjdk version \"1.8.0_402\"' >&2", None, r"Java 1\.8\.0_402 is too old"),
        ("echo 'Unable to locate a Java' >&2; exit 1", None, "does not run: Unable to locate a Java"),
    ],
    ids=["no home", "its release file says", "it says itself", "it does not run"],
)
def test_a_java_home_that_does_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, release: str | None, problem: str
) -> None:
    if script is not None:
        _script(tmp_path / "bin" / "java", script)
    if release is not None:
        (tmp_path / "release").write_text(release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=problem):
        environment.require_java()


def test_another_path_to_an_equal_python_is_right(tmp_path: Path) -> None:
    environment.require_python(sys.executable)
    environment.require_python(str(_script(tmp_path / "python3", f'exec {sys.executable} "$@"')))


def test_a_workers_python_that_does_not_do(tmp_path: Path) -> None:
    other = str(_script(tmp_path / "python3", "echo '[[3, 6], true, \"4.2.0\"]'"))
    for python, problem in (
        ("/no/such/python", "'/no/such/python' was not found"),
        (BARE_PYTHON, "cannot import pyspark"),
        (other, r"is Python 3\.6, and the driver's is 3\."),
    ):
        with pytest.raises(EnvironmentProblem, match=problem) as refused:
            environment.require_python(python)
        assert f"PYSPARK_PYTHON to {sys.executable}" in refused.value.do


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0"])
def test_another_spark_than_pyspark_is_refused(version: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"Spark is {version}"):
        environment.require_spark_version(version)


@pytest.mark.process
def test_deltas_jars_are_found_again_without_the_resolver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = delta_jars({})
    names = [path.name for path in first]
    assert any("delta-spark" in name for name in names)
    assert any("delta-storage" in name for name in names)
    assert not any("log4j" in name or "jackson-core" in name for name in names), "would shadow Spark's own"
    # From here on the resolver cannot run.
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    assert delta_jars({}) == first
    # A file that has gone is not handed out.
    (note,) = (tmp_path / "spark-ext").iterdir()
    note.write_text(note.read_text() + "\n" + str(tmp_path / "gone.jar"))
    with pytest.raises(EnvironmentProblem, match="could not be downloaded"):
        delta_jars({})


@pytest.mark.process
def test_no_delta_jar_and_no_way_to_fetch_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nowhere = tmp_path / "settings.xml"
    nowhere.write_text(
        "<ivysettings><settings defaultResolver='none'/>"
        "<resolvers><filesystem name='none' m2compatible='true'>"
        f"<artifact pattern='{tmp_path}/[artifact]-[revision].[ext]'/></filesystem></resolvers></ivysettings>"
    )
    with pytest.raises(EnvironmentProblem, match="is not on this machine and could not be downloaded") as refused:
        delta_jars({"spark.jars.ivySettings": str(nowhere), "spark.jars.ivy": str(tmp_path / "ivy")})
    assert "unresolved dependency" in refused.value.what
    assert "io.delta:delta-spark_" in refused.value.what
    assert "spark.jars.repositories" in refused.value.do
    assert not (tmp_path / "cache" / "spark-ext").exists()


def _script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
