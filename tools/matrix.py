"""`make test-matrix`: the quick tests and a file of each layer, on several Pythons, with old and new libraries.

Each Python gets an environment with the newest versions that pyproject.toml allows; the oldest of them gets a second
one, with the oldest versions. With `--sparks` it is one environment for each version of Spark instead, with the newest
Delta that has a jar for it, its tests are of jobs, and the table goes into `docs/supported-versions.md`. With
`--platforms` it is one for each of `platforms.toml`. Environments stay in `.venv/matrix`, so that a second run only
updates them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.version import Version
from uv import find_uv_bin

from spark_ext.spark.capabilities import capabilities
from tools.project import ROOT, project, toml

PAGE: Final = ROOT / "docs" / "supported-versions.md"
_HEADING: Final = "## The matrix\n"
"""Below it is the table of the last runs with `--sparks`, one row for each version and Python."""

SHOWN: Final = ("pyspark", "delta-spark", "deltalake", "pyarrow", "pandas", "numpy", "confluent-kafka")
"""Libraries whose versions the table shows."""

PLATFORMS: Final[Mapping[str, Any]] = toml(Path(__file__).with_name("platforms.toml"))
"""The Python of a managed platform, and the versions that it pins."""

TOOLS: Final = ("test", "dev", "docs")
"""Extras of this project's own tools, for which the newest are good."""

QUICK: Final = ("-m", "not (spark or server or process or slow)")
LAYERS: Final = (
    "tests/test_async_map.py",
    "tests/test_cli_run.py",
    "tests/spark/test_failure_chain.py",
    "tests/spark/test_state_files.py",
    "tests/delta/test_restored.py",
    "tests/ledger/test_frames.py",
    "tests/control/test_with_control.py",
    "tests/watermark/test_with_watermark.py",
    "tests/sources/test_in_spark.py",
    "tests/sources/kafka_range/test_kafka_range.py",
    "tests/sinks/kafka_2pc/test_sink.py",
    "tests/sinks/postgres_2pc/test_in_spark.py",
    "tests/metrics/test_otel.py",
    "tests/server/test_server.py",
    "tests/jobs/test_bad_rows.py",
)
"""Tests with Spark, servers and processes: a file of each layer that depends on libraries."""

JOBS: Final = (
    "tests/spark/test_private_names.py",
    "tests/spark/test_backend.py",
    "tests/conformance/test_finish.py",
    "tests/conformance/test_control.py",
    "tests/conformance/test_savepoints.py",
    "tests/jobs/test_until_now.py",
    "tests/watermark/test_with_watermark.py",
    "tests/sources/test_in_spark.py",
    "tests/sinks/delta_2pc/test_in_spark.py",
    "tests/jobs/test_linked_queries.py",
    "tests/chaos/test_chaos.py::test_a_kill_at_some_named_steps_changes_no_row",
    "tests/chaos/test_chaos.py::test_random_kills_change_no_row",
    "tests/docs/test_examples.py::test_the_first_job_runs_and_runs_again_to_nothing",
)
"""What depends on the version of Spark: the first job, end of input, upserts, exchanges, control, savepoints, kills."""

ON_PLATFORMS: Final = ("tests/spark/test_handed_over.py", *JOBS[2:])
"""Jobs of sessions as platforms hand them over, and the others."""


@dataclass(frozen=True)
class Counts:
    """What came of the tests of one run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def oldest(known: Mapping[str, Any]) -> list[str]:
    """Constraints with the oldest version of each library that a table `[project]` allows; not of the tools for tests.

    Raises:
        ValueError: a library has no lower bound.
    """
    extras = known["optional-dependencies"]
    wanted = [*known["dependencies"], *(text for name in extras if name not in TOOLS for text in extras[name])]
    found: dict[str, str] = {}  # the bound of each library
    # An extra may include another one of this project.
    wanted = [text for text in wanted if Requirement(text).name != known.get("name")]
    for requirement in map(Requirement, wanted):
        bounds = [part.version for part in requirement.specifier if part.operator in (">=", "==")]
        if len(bounds) == 1:  # several extras may name a library: the newest of their bounds holds
            found[requirement.name] = max(bounds[0], found.get(requirement.name, "0"), key=Version)
    without = {Requirement(text).name for text in wanted} - found.keys()
    if without:
        raise ValueError(f"without a lower bound in pyproject.toml it is not known what works: {sorted(without)}")
    return sorted(f"{name}=={version}" for name, version in found.items())


def counts(report: Path) -> Counts:
    """The counts of a report in JUnit's format; a failure if there is none, as after a crash."""
    if not report.exists():
        return Counts(failed=1)
    total = Counts()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        total += Counts(number["tests"] - failed - number["skipped"], failed, number["skipped"])
    return total


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, whose first row is its heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def with_rows(page: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with rows in its table, whose first one is the heading, in place of those of the same environments."""
    before, heading, after = page.partition(_HEADING)
    if not heading:
        raise ValueError(f"the page has no section '{_HEADING.strip()}'")
    section, line, others = after.partition("\n## ")
    intro = [one for one in section.splitlines() if not one.startswith("|")]
    known = [[cell.strip() for cell in one.strip("|").split("|")] for one in section.splitlines() if one[:3] == "| 3"]
    found = {tuple(row[:2]): row for row in [*known, *rows[1:]] if len(row) == len(rows[0])}
    text = "\n".join(intro).strip("\n")
    return f"{before}{heading}\n{text}\n\n{table([rows[0], *(found[one] for one in sorted(found))])}\n{line}{others}"


def version_of(python: str) -> tuple[int, int] | None:
    """The version of an interpreter; None if there is none of that name, or it does not run."""
    found = shutil.which(python)
    if found is None:
        return None
    asked = subprocess.run(
        [found, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    numbers = asked.stdout.split()
    return (int(numbers[0]), int(numbers[1])) if asked.returncode == 0 and len(numbers) == 2 else None


def prepare(python: str, kind: str, known: Mapping[str, Any], also: Sequence[str] = ()) -> Path:
    """An environment with this project and its tests; its interpreter.

    Args:
        python: a name or path of an interpreter.
        kind: "oldest" or "newest", of libraries, "spark-4.1" or a platform.
        known: the table `[project]`.
        also: requirements in place of those that pyproject.toml and other packages have.

    Raises:
        RuntimeError: the libraries cannot be installed; the reason is in the message.
    """
    numbers = version_of(python) or (0, 0)
    home = ROOT / ".venv" / "matrix" / f"{numbers[0]}.{numbers[1]}-{kind}"
    # A version has a dot of its own.
    constraints, overrides = home.with_name(f"{home.name}.txt"), home.with_name(f"{home.name}-overrides.txt")
    home.parent.mkdir(parents=True, exist_ok=True)
    constraints.write_text("\n".join(oldest(known) if kind == "oldest" else []) + "\n", encoding="utf-8")
    overrides.write_text("\n".join(also) + "\n", encoding="utf-8")
    inside = home / "bin" / "python"
    if not inside.exists():
        _uv("venv", "--quiet", "--python", str(shutil.which(python)), str(home))
    given = ("-c", str(constraints), "--override", str(overrides), "-e", f"{ROOT}[test]")
    _uv("pip", "install", "--quiet", "--upgrade", "--python", str(inside), *given)
    return inside


def _uv(*arguments: str) -> None:
    done = subprocess.run([find_uv_bin(), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())


def pins_of(kind: str) -> list[str]:
    """Requirements of a version of Spark and its Delta, for the kind "spark-4.1", or of a platform; else none."""
    _, _, spark = kind.partition("spark-")
    if not spark:
        return list(PLATFORMS[kind]["pins"]) if kind in PLATFORMS else []
    delta = capabilities(spark).delta
    # Whatever is installed in place of a requirement needs its extras too. The jar of 4.4.1 is not in Maven Central.
    return [f"pyspark[connect]=={spark}.*", *([f"delta-spark=={delta[0][0]}.{delta[0][1]}.0"] if delta else [])]


def on_platforms(names: Iterable[str], pythons: Iterable[str]) -> list[tuple[str, str]]:
    """Each platform with the first of the interpreters that has its version; without one, a name that is not there."""
    found = {".".join(map(str, version_of(python) or ())): python for python in reversed([*pythons])}
    return [(found.get(PLATFORMS[name]["python"], f"python{PLATFORMS[name]['python']}"), name) for name in names]


def run(python: Path, part: str, log: Path) -> Counts:
    """Run a part of the tests.

    Args:
        python: of the environment.
        part: "quick", "layers", "jobs" or "platform".
        log: a file for what pytest says; the report is beside it.
    """
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    chosen = {
        "quick": ["-n", "2", "--dist", "loadfile", *QUICK],
        "layers": LAYERS,
        "jobs": JOBS,
        "platform": ON_PLATFORMS,
    }[part]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w", encoding="utf-8") as out:
        subprocess.run(
            [python, "-m", "pytest", "-q", f"--junitxml={report}", *chosen],
            cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    return counts(report)


def versions(python: Path) -> dict[str, str]:
    """The versions of the libraries in an environment, by name, and of the Python."""
    code = (
        "import importlib.metadata as m, platform, sys; print('python', platform.python_version()); "
        "[print(name, m.version(name)) for name in sys.argv[1:]]"
    )
    told = subprocess.run([python, "-c", code, *SHOWN], capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in told.splitlines())


def java() -> str:
    """The version of the Java that the tests use; "none" without one."""
    command = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return "none"
    match = re.search(r'version "([^"]+)"', told)
    return match[1] if match else "none"


def environments(pythons: Iterable[str], kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Which Python is tried with which libraries: each with the newest, the oldest Python with the oldest too."""
    there = sorted(pythons, key=lambda python: version_of(python) or (0, 0))
    pairs = [(python, "newest") for python in there]
    return [pair for pair in [*((python, "oldest") for python in there[:1]), *pairs] if pair[1] in kinds]


def main() -> None:
    """Run all, and print the table.

    Raises:
        SystemExit: a test has failed, libraries could not be installed, or no Python was found.
    """
    parser = argparse.ArgumentParser(prog="make test-matrix", description=__doc__)
    parser.add_argument("pythons", nargs="+", help="names or paths of interpreters")
    parser.add_argument("--kinds", default="oldest,newest", help="of libraries (default: %(default)s)")
    parser.add_argument(
        "--parts", default="", help="of the tests: quick, layers, jobs, platform; default: by what is tried"
    )
    parser.add_argument("--sparks", default="", help="versions of Spark, such as '4.0 4.1 4.3', on the first Python")
    parser.add_argument("--platforms", default="", help=f"with the versions of: {' '.join(PLATFORMS)}")
    parser.add_argument(
        "--also", default="", help="installed over it, whatever pyproject.toml allows: 'pandas>=3 pyspark==4.2.1'"
    )
    given = parser.parse_args()
    known = project()
    missing = [python for python in given.pythons if version_of(python) is None]
    there = [python for python in given.pythons if python not in missing]
    tried = environments(there, given.kinds.split(","))
    if given.sparks:
        tried = [(python, f"spark-{spark}") for python in there[:1] for spark in given.sparks.split()]
    if given.platforms:
        tried = on_platforms(given.platforms.split(), there)
        missing = [python for python, _ in tried if version_of(python) is None]
        tried = [pair for pair in tried if pair[0] not in missing]
    usual = "platform" if given.platforms else "quick,jobs" if given.sparks else "quick,layers"
    parts = (given.parts or usual).split(",")
    rows: list[Sequence[str]] = [("Python", "libraries", *SHOWN, "passed", "failed", "skipped")]
    total, impossible = Counts(), list[str]()
    for python, kind in tried:
        print(f"{python}, {kind} libraries", flush=True)
        try:
            inside = prepare(python, kind, known, [*pins_of(kind), *given.also.split()])
        except RuntimeError as problem:
            impossible.append(f"{python}, {kind} libraries: {problem}")
            continue
        home = inside.parents[1]
        found = Counts()
        for part in parts:
            log = home.parent / f"{home.name}-{part}.log"
            came = run(inside, part, log)
            print(f"  {part}: {came.passed} passed, {came.failed} failed, {came.skipped} skipped; {log}", flush=True)
            found += came
        total += found
        have = versions(inside)
        shown = (have["python"], kind, *(have[name] for name in SHOWN))
        rows.append((*shown, str(found.passed), str(found.failed), str(found.skipped)))
    print(f"\nJava {java()}\n\n{table(rows)}\n")
    if (given.sparks or given.platforms) and not given.parts and len(rows) > 1:
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    for python in missing:
        print(f"not found: {python}; name it, or others: make test-matrix PYTHONS='python3.12 /path/to/python3.13'")
    for reason in impossible:
        print(f"not installed: {reason}")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    if total.failed or impossible or not tried or (given.platforms and missing):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
