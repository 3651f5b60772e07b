"""JVMs that start in a third of the time, for all Spark drivers of the tests and of processes that tests start.

Spark's launcher reads `SPARK_SUBMIT_OPTS`, and takes the JVM's properties that begin with `spark.` as settings. The
class archive of `spark-ext prepare` saves the most time; short-lived JVMs gain nothing from a second compiler.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.session.class_archive import SHORT_LIVED
from spark_ext.spark.session.class_archive import VARIABLE as VARIABLE
from spark_ext.spark.session.jars import delta_jars, package_jars

OPTIONS: Final = f"{SHORT_LIVED} -Dspark.databricks.delta.snapshotPartitions=1"
"""Options of every JVM that lives for seconds or minutes. Delta otherwise reads each log in 50 tasks."""

SHORT: Final = {
    "spark.ui.enabled": "false", "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip
"""Settings of a driver that is killed after a few epochs: it compiles no code, and serves no pages."""

FORKS: Final = "SPARK_EXT_TESTS_FORKS"
"""Environment variable: the socket at which a driver's Python processes are forked; see `tests.support.forks`."""

_ROOT: Final = Path(__file__).parents[2]


def prepare(*more_packages: str) -> None:
    """Use the options in all drivers that start from now on, and download jars if they are missing.

    Spark's resolver fails if it runs twice at the same time on one machine: the first process runs it, the others wait.
    """
    os.environ[VARIABLE] = OPTIONS
    with _alone():
        delta_jars({})
        for package in more_packages:
            package_jars(package, {})


REMOTE: Final = "SPARK_EXT_TESTS_REMOTE"
"""Environment variable: the address of a server of Spark Connect, whose clients drivers are to be."""


def client(name: str, conf: Mapping[str, str]) -> SparkSession | None:
    """A client's session, with those of the settings that it can set; None if the environment names no server."""
    remote = os.environ.get(REMOTE)
    own = {key: value for key, value in conf.items() if key.startswith("spark.sql.") and key not in SHORT}
    return None if remote is None else sx.session(name, remote=remote, conf=own)


def session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """A local session whose JVM forks all its Python processes from one that has imported what they need."""
    if (remote := client(name, conf)) is not None:
        return remote
    if not Path.cwd().samefile(_ROOT):  # Spark's `python -m` does not find the daemon
        return sx.session(name, master="local[2]", conf=conf)
    with pytest.MonkeyPatch.context() as given:
        for variable, value in forking().items():
            given.setenv(variable, value)
        return sx.session(name, master="local[2]", conf={"spark.python.daemon.module": "tests.support.daemon", **conf})


def forking(*folders: Path) -> dict[str, str]:
    """Variables with which a driver forks its planners, which may import from `folders`; see `tests.support.forks`."""
    path = [_ROOT / "tests/support/planners", *folders, os.environ.get("PYTHONPATH", "")]
    return {FORKS: f"spark-ext-tests-{uuid4()}", "PYTHONPATH": os.pathsep.join(filter(None, map(str, path)))}


def environment() -> dict[str, str]:
    """The environment of a process that starts a driver: it forks planners, and starts no process for each file."""
    options = f"{os.environ.get(VARIABLE, '')} -D{FILE_MANAGER}={local_files()}"
    return {**os.environ, **forking(_ROOT), VARIABLE: options}


@contextmanager
def _alone() -> Iterator[None]:
    with Path(tempfile.gettempdir(), f"spark-ext-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
