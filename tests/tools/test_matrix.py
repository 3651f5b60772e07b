"""Which versions are tried, and what is counted."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from uv import find_uv_bin

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.capabilities import PREFERRED, VERSIONS, capabilities, release_of
from tests.support import pages
from tools import matrix
from tools.matrix import Counts
from tools.project import ROOT, project


def table(dependencies: list[str], **extras: list[str]) -> dict[str, Any]:
    return {"dependencies": dependencies, "optional-dependencies": extras}


def _name(requirement: Requirement) -> str:
    return requirement.name.replace("_", "-").lower()


def test_the_oldest_versions_are_the_lower_bounds_but_of_tools() -> None:
    known = table(
        ["a>=1.2,<2", "b[x]>=3; python_version > '3'"], one=["c==4.0", "a<1.9", "b>=3.10"], test=["t>=1"], dev=["d"]
    )
    assert matrix.oldest(known) == ["a==1.2", "b==3.10", "c==4.0"]
    with pytest.raises(ValueError, match="'loose'"):
        matrix.oldest(table(["a>=1", "loose<3"]))


def test_bounds_have_a_minimum_and_allow_the_tested_version() -> None:
    known = project()
    bounds = {Requirement(text).name.lower() for text in matrix.oldest(known)}
    assert {"pyspark", "delta-spark", "pandas", "confluent-kafka", "psycopg"} <= bounds
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {_name(pin): str(pin.specifier).removeprefix("==") for pin in pins}
    extras = [text for texts in known["optional-dependencies"].values() for text in texts]
    for requirement in map(Requirement, [*known["dependencies"], *extras]):
        version = pinned.get(_name(requirement))
        assert version is None or requirement.specifier.contains(version), f"{requirement} is tested with {version}"


def test_the_tests_of_each_part_are_there() -> None:
    for file, _, test in (name.partition("::") for name in (*matrix.LAYERS, *matrix.JOBS)):
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), test or file


def test_pythons_that_are_not_there_or_do_not_run(tmp_path: Path) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert matrix.version_of(str(shim)) is None
    assert matrix.version_of("no-such-python") is None
    assert matrix.version_of(sys.executable) == sys.version_info[:2]


def test_only_the_oldest_python_gets_the_oldest_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "version_of", {"new": (3, 13), "old": (3, 10)}.get)
    assert matrix.environments(["new", "old"], ["oldest", "newest"]) == [
        ("old", "oldest"),
        ("old", "newest"),
        ("new", "newest"),
    ]
    assert matrix.environments(["new", "old"], ["oldest"]) == [("old", "oldest")]


def test_a_report_is_counted_and_a_crash_is_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert matrix.counts(report) == Counts(failed=1)
    report.write_text('<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>')
    assert matrix.counts(report) == Counts(passed=3, failed=2, skipped=2)


def test_the_table_has_columns() -> None:
    assert matrix.table([("a", "b"), ("long", "1")]) == "| a    | b |\n| ---- | - |\n| long | 1 |"


def test_rows_of_the_page_are_replaced_by_their_environment() -> None:
    head = ("Python", "libraries", "passed")
    page = matrix.with_rows("# A\n\n## The matrix\n\nAbout it.\n\n## B\n", [head, ("3.11.2", "spark-4.1", "7")])
    assert page == (
        "# A\n\n## The matrix\n\nAbout it.\n\n| Python | libraries | passed |\n| ------ | --------- | ------ |\n"
        "| 3.11.2 | spark-4.1 | 7      |\n\n## B\n"
    )
    page = matrix.with_rows(page, [head, ("3.11.2", "spark-4.0", "8")])
    assert matrix.with_rows(page, [head, ("3.11.2", "spark-4.1", "9")]) == page.replace("| 7 ", "| 9 ")
    assert page.index("spark-4.0") < page.index("spark-4.1") and page.endswith(" |\n\n## B\n")


def test_a_platform_gets_the_python_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "version_of", {"a": (3, 11), "b": (3, 13), "c": (3, 13)}.get)
    assert matrix.on_platforms(["fabric-2.0", "emr-8.0"], ["a", "b", "c"]) == [("b", "fabric-2.0"), ("a", "emr-8.0")]
    assert matrix.on_platforms(["databricks-18"], ["a"]) == [("python3.12", "databricks-18")]


@pytest.mark.parametrize("name", matrix.PLATFORMS)
def test_versions_of_a_platform_are_those_of_its_page(name: str) -> None:
    pins = {pin.name: pin.specifier for pin in map(Requirement, matrix.pins_of(name))}
    spark, delta = (str(pins[library]).removeprefix("==") for library in ("pyspark", "delta-spark"))
    assert release_of(delta) in capabilities(spark).delta
    page = pages.read(name.partition("-")[0])
    release = spark if f"| {spark} " in page else ".".join(map(str, release_of(spark)))
    (row,) = [line for line in page.splitlines() if f"| {release} |" in line]
    assert name.startswith("databricks") or matrix.PLATFORMS[name]["python"] in row
    # What pip replaces there, since this package needs a newer one.
    replaced = {one.name for one in map(Requirement, project()["dependencies"]) if not _allows(one, pins)}
    assert {library for library in replaced if f"`{library}`" not in page} == set()


def _allows(wanted: Requirement, pins: dict[str, SpecifierSet]) -> bool:
    pinned = pins.get(wanted.name)
    return pinned is None or wanted.specifier.contains(str(pinned).removeprefix("=="))


def test_the_slice_of_versions_has_each_that_the_gate_lacks() -> None:
    files = {file.stem.removeprefix("test_spark_") for file in (ROOT / "tests" / "versions").glob("test_*.py")}
    assert files == {f"{major}_{minor}" for major, minor in VERSIONS.keys() - {PREFERRED}}


def test_the_page_of_versions_says_what_pyproject_says() -> None:
    known = project()
    page = pages.read("supported-versions")
    rows: dict[str, set[SpecifierSet]] = {}  # an extra may need a newer one
    for name, shown in re.findall(r"^\| `([\w-]+)` \| `([^`]+)` \|", page, re.MULTILINE):
        rows.setdefault(name, set()).add(Requirement(f"{name}{shown}").specifier)
    extras = known["optional-dependencies"]
    wanted = [*known["dependencies"], *(text for name in extras if name not in matrix.TOOLS for text in extras[name])]
    for requirement in map(Requirement, wanted):
        if requirement.name in rows and any(part.operator in (">=", "==") for part in requirement.specifier):
            assert requirement.specifier in rows[requirement.name], requirement.name
    assert {"pyspark", "delta-spark", "deltalake", "pyarrow", "pandas", "confluent-kafka"} <= rows.keys()
    for minor in re.findall(r"Python :: (3\.\d+)", "\n".join(known["classifiers"])):
        assert minor in page.partition("\n## ")[0]


@pytest.mark.process
@pytest.mark.slow(5, "pip's resolver asks the package index")
@pytest.mark.parametrize("pinned", ["pyspark==4.0.*", "pyspark==4.1.*", "pyspark==4.2.*", ""])
def test_the_extra_brings_a_delta_that_has_a_jar(pinned: str) -> None:
    """Delta's own requirements do not say so: old ones allow each newer Spark."""
    asked = f"{pinned}\nspark-ext[spark] @ {ROOT.as_uri()}\n"
    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
    found = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    spark, delta = (re.findall(rf"^{name}==(\S+)$", found, re.MULTILINE)[0] for name in ("pyspark", "delta-spark"))
    assert release_of(delta) in capabilities(spark).delta
    assert pinned or release_of(spark) == PREFERRED


@pytest.mark.parametrize("version", ["", "4", "3.5.7", "4.20.1", "17.3.0+dbr"])
def test_an_unknown_version_is_refused_by_name(version: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"jobs run on Spark 4\.0, 4\.1"):
        capabilities(version)
