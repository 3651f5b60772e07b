"""Prerequisites of a job: pyspark, Java, Spark's version, the workers' Python.

Each is checked before Spark is used, whose own errors say little ("Java gateway process exited"). A check that passes
costs next to nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.capabilities import PREFERRED, VERSIONS, capabilities, release_of


def _dotted(version: list[int] | tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


MINIMUM_JAVA: Final = 17  # the oldest Java that Spark 4 supports
# Newer ones than these may have other plans, logs and checkpoints, which jobs read.
_SUPPORTED: Final = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)

_INSTALL_JAVA: Final = (
    f"install Java {MINIMUM_JAVA} or newer ('apt-get install openjdk-17-jre-headless' on Debian and Ubuntu, "
    "'dnf install java-17-openjdk-headless' on Fedora, 'brew install openjdk@17' on macOS), "
    "or set JAVA_HOME to the directory of one"
)
_THIS_PYTHON: Final = f"this Python, {sys.executable}"
_INSTALL_SPARK: Final = (
    f"pip install 'spark-ext[spark]', which brings pyspark {_dotted(PREFERRED)} and Delta; on a platform that has its "
    f"own Spark, use its Python, and a release of it with one of Spark {_SUPPORTED}"
)
# Not the metadata of an installed package: platforms put pyspark on the path without it.
_PROBE: Final = (
    "import importlib.util as u, json, pyspark, sys; "
    "found = u.find_spec('spark_ext') is not None; "
    "print(json.dumps([list(sys.version_info[:2]), found, pyspark.__version__]))"
)


def java_major(version: str) -> int:
    """The major version of a JVM's version string: 17 for `17.0.15`, 8 for `1.8.0_402`, 22 for `22-ea`."""
    match = re.match(r"(?:1\.)?(\d+)", version.strip().strip('"'))
    if match is None:
        raise ValueError(f"not a Java version: {version!r}")
    return int(match[1])


def require_pyspark() -> None:
    """Raise an error unless this Python has a pyspark that jobs can use. Imports pyspark."""
    try:
        import pyspark
    except ImportError as problem:
        raise missing(f"pyspark, which jobs need, is missing: {problem}", _THIS_PYTHON, _INSTALL_SPARK) from problem
    if release_of(pyspark.__version__) not in VERSIONS:
        what = f"pyspark is {pyspark.__version__}, and jobs run on Spark {_SUPPORTED}"
        raise missing(what, _THIS_PYTHON, _INSTALL_SPARK)
    require_readable_plans()


def require_readable_plans() -> None:
    """Raise an error if pyspark is the client in Rust, whose frames and writers show no plan to Python."""
    if find_spec("pyspark._pyspark") is not None:
        raise missing(
            "pyspark is pyspark-client-rust, whose plans a job cannot read",
            _THIS_PYTHON,
            "pip uninstall pyspark-client-rust; pip install pyspark-client",
        )


def missing(what: str, who: str, do: str, kept: str = "nothing was started") -> EnvironmentProblem:
    """The error of something that is missing or unsuitable."""
    return EnvironmentProblem(what, operator=who, kept=kept, do=do)


def explained(problem: ImportError) -> Exception:
    """Why a module of this package could not be imported: pyspark is missing or unsuitable; else the problem itself."""
    root = (problem.name or "").partition(".")[0]
    if root not in {"pyspark", "py4j"}:
        return problem
    try:
        require_pyspark()
    except EnvironmentProblem as known:
        return known
    return problem


def require_delta_version(version: str) -> None:
    """Raise an error if the installed delta-spark, whose jar a session loads, is not for the installed pyspark."""
    import pyspark

    fitting = capabilities(pyspark.__version__).delta
    if release_of(version) not in fitting:
        spark, versions = _dotted(release_of(pyspark.__version__)), ", ".join(map(_dotted, fitting))
        raise missing(
            f"delta-spark is {version}, and Spark {spark} needs Delta {versions}",
            _THIS_PYTHON,
            f"pip install 'delta-spark=={_dotted(fitting[0])}.0'",
        )


def require_java_version(version: str, where: str) -> None:
    """Raise an error if a Java is too old."""
    if java_major(version) < MINIMUM_JAVA:
        raise missing(f"Java {version} is too old: Spark needs Java {MINIMUM_JAVA} or newer", where, _INSTALL_JAVA)


def find_java() -> Path | None:
    """The `java` that Spark's own scripts run; None if it is not found."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    return None if found is None else Path(found)


def require_java() -> None:
    """Raise an error unless there is a Java that Spark can run on."""
    found = find_java()
    if found is None:
        home = os.environ.get("JAVA_HOME")
        what = f"JAVA_HOME is '{home}', which has no bin/java" if home else "Java is not on this machine's PATH"
        raise missing(what, "the driver", _INSTALL_JAVA)
    require_java_version(_version_of_java(found), f"the driver, which runs {found}")


def _version_of_java(java: Path) -> str:
    """The version of a `java`: read from the `release` file of its home if there is one, which saves starting it."""
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text()
    except OSError:
        # Debian links `java` through /etc/alternatives, macOS has a stub in /usr/bin: neither has to be in a Java home.
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        text = asked.stderr + asked.stdout
    match = re.search(r'JAVA_VERSION="([^"]+)"|version "([^"]+)"', text)
    if match is None:
        what = f"{java} does not run: {text.strip() or 'it printed nothing'}"
        raise missing(what, "the driver", _INSTALL_JAVA)
    return match[1] or match[2]


def require_python(executable: str) -> None:
    """Raise an error if the workers' Python cannot run this process's functions.

    The planners of Python sources and the committers of Python sinks run on the driver's machine with the workers'
    interpreter, also on a cluster, so it can be checked here. The driver's own interpreter passes without a check.
    """
    found = shutil.which(executable)
    if found is not None and Path(found).absolute() == Path(sys.executable).absolute():
        return
    wrong = f"'{executable}' was not found" if found is None else _what_is_wrong_with(found)
    if wrong:
        raise missing(
            f"the workers' Python is not the driver's: {wrong}",
            "Spark's Python workers",
            f"set the environment variable PYSPARK_PYTHON to {sys.executable}, or unset it, before the "
            "session is created; spark_ext.session() then sets it itself",
        )


def _what_is_wrong_with(python: str) -> str:
    import pyspark

    asked = subprocess.run(
        [python, "-c", _PROBE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    try:
        version, has_package, spark = json.loads(asked.stdout)
    except ValueError:
        last = (asked.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return f"'{python}' cannot import pyspark ({last})"
    ours = list(sys.version_info[:2])
    if version != ours:
        return f"'{python}' is Python {_dotted(version)}, and the driver's is {_dotted(ours)}"
    if not has_package:
        return f"'{python}' has no spark_ext installed"
    if spark != pyspark.__version__:
        return f"'{python}' has pyspark {spark}, and the driver's is {pyspark.__version__}"
    return ""


def require_spark_version(version: str) -> None:
    """Raise an error if Spark is not the supported one, or has another version than this pyspark."""
    import pyspark

    running = release_of(version)
    if running not in VERSIONS or running != release_of(pyspark.__version__):
        do = (
            f"use one of Spark {_SUPPORTED} with the pyspark of the same version; "
            "a SPARK_HOME that points elsewhere is the usual cause"
        )
        raise missing(
            f"Spark is {version} and pyspark is {pyspark.__version__}",
            "the Spark session",
            do,
            "nothing was registered",
        )
