"""The archive of the JVM's classes: when it is used, and that an incomplete one never is; without Spark."""

import os
import sys
from pathlib import Path

import pytest

from spark_ext.spark.session import class_archive
from spark_ext.spark.session.class_archive import VARIABLE, make, options, place

HOME = Path("spark")
JARS = (Path("a.jar"), Path("b.jar"))

WRITES = """
import os, re
options = os.environ["SPARK_SUBMIT_OPTS"]
open(re.search(r"ArchiveClassesAtExit=(\\S+)", options)[1], "w").write(options)
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "java" / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return file


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    file = tmp_path / "classes.jsa"
    file.touch()
    return file


def test_another_class_path_or_java_has_another_archive(java: Path, tmp_path: Path) -> None:
    first = place(HOME, JARS, tmp_path)
    assert place(HOME, JARS, tmp_path) == first and first.parent == tmp_path
    others = [place(Path("other"), JARS, tmp_path), place(HOME, JARS[::-1], tmp_path), place(HOME, JARS[:1], tmp_path)]
    os.utime(java, ns=(1, 1))
    others.append(place(HOME, JARS, tmp_path))
    assert len({first, *others}) == 5


def test_it_is_in_the_users_cache(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert place(HOME, JARS).parent == tmp_path / "cache" / "spark-ext"


def test_one_that_is_there_is_used(archive: Path) -> None:
    assert options(archive, "-Xmx1g", {}).endswith(f"-XX:SharedArchiveFile={archive}")
    archive.unlink()
    assert options(archive, "", {}) == ""


@pytest.mark.parametrize(
    "given", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa"]
)
def test_the_users_own_choice_prevails(archive: Path, given: str) -> None:
    assert options(archive, given, {}) == ""
    for name in (VARIABLE, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        assert options(archive, "", {name: f"-Xmx1g {given}"}) == ""


def test_it_is_there_when_the_program_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "-Xmx1g")
    archive = tmp_path / "cache" / "classes.jsa"
    assert make(archive, [sys.executable, "-c", WRITES], "-Xss1m") == ""
    said = archive.read_text().split()
    assert said[:2] == ["-Xmx1g", "-Xss1m"] and said[-1].startswith(class_archive._AT_EXIT)
    assert list(archive.parent.iterdir()) == [archive], "no draft is left"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ([sys.executable, "-c", f"{WRITES}\nraise SystemExit('no space')"], "exit code 1: no space"),
        ([sys.executable, "-c", ""], "No such file"),
        (["no-such-program"], "no-such-program"),
    ],
    ids=["it fails", "no archive", "it does not start"],
)
def test_a_program_that_fails_leaves_none(tmp_path: Path, program: list[str], why: str) -> None:
    assert why in make(tmp_path / "classes.jsa", program)
    assert not list(tmp_path.iterdir())
