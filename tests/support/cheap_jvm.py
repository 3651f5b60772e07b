"""JVMs that start in a third of the time, for all Spark drivers of the tests and of processes that tests start.

The options reach every driver through the environment variable `SPARK_SUBMIT_OPTS`, which Spark's launcher reads. Spark
takes properties of the JVM that begin with `spark.` as settings. A short-lived JVM gains nothing from the second
compiler or from a parallel collector, and loading some 20,000 classes takes longer than most jobs of the tests: their
parsed form is archived once per machine (class data sharing). A JVM that cannot use the archive, such as one with
another class path, starts without it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

import spark_ext as sx
from spark_ext.spark import class_archive
from spark_ext.spark.class_archive import SHORT_LIVED
from spark_ext.spark.class_archive import VARIABLE as VARIABLE
from spark_ext.spark.jars import delta_jars, installed_home, package_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS: Final = f"{SHORT_LIVED} -Dspark.databricks.delta.snapshotPartitions=1"
"""Options of every JVM that lives for seconds or minutes. Delta otherwise reads each log in 50 tasks."""

_ROOT: Final = Path(__file__).parents[2]

# Without any output: some tests check everything that a driver prints.
_QUIET: Final = "-Xlog:disable"


def use(archive: Path | None) -> None:
    """Make all drivers that start from now on use the cheap options, and the archive if there is one."""
    shared = f" {_QUIET} -XX:SharedArchiveFile={archive}" if archive is not None and archive.exists() else ""
    os.environ[VARIABLE] = OPTIONS + shared


def prepare(cache: Path | None, *more_packages: str) -> None:
    """Download jars and create the archive if they are missing, then use it. Concurrent calls are allowed.

    Spark's resolver fails if it runs twice at the same time on one machine: the first process runs it, the others wait.

    Args:
        cache: directory for the archive; None: no archive.
        more_packages: Maven coordinates of packages that servers need.

    Raises:
        EnvironmentProblem: jars are not on this machine and could not be downloaded.
    """
    use(None)
    with _alone():
        jars = delta_jars({})
        for package in more_packages:
            package_jars(package, {})
        if cache is None:
            return
        archive = class_archive.place(installed_home(), jars, cache)
        if not archive.exists():
            _make(archive)
    use(archive)


def session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """A local session whose JVM forks all its Python processes from one that has imported what they need."""
    if not Path.cwd().samefile(_ROOT):  # Spark's `python -m` does not find the daemon
        return sx.session(name, master="local[2]", conf=conf)
    with pytest.MonkeyPatch.context() as given:
        for variable, value in forking().items():
            given.setenv(variable, value)
        return sx.session(name, master="local[2]", conf={"spark.python.daemon.module": "tests.support.daemon", **conf})


def forking() -> dict[str, str]:
    """Variables of the environment with which a driver forks its planners; see `tests.support.forks`."""
    path = os.pathsep.join(filter(None, [str(_ROOT / "tests/support/planners"), os.environ.get("PYTHONPATH")]))
    return {"SPARK_EXT_TESTS_FORKS": f"spark-ext-tests-{uuid4()}", "PYTHONPATH": path}


def _make(archive: Path) -> None:
    for old in archive.parent.glob("*.jsa"):
        old.unlink()
    # Without the archive everything works, only slower.
    class_archive.make(archive, [sys.executable, "-m", "spark_ext.commands.warm_up"], OPTIONS)


@contextmanager
def _alone() -> Iterator[None]:
    """Allow one test process of this user at a time."""
    with Path(tempfile.gettempdir(), f"spark-ext-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
