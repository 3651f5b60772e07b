"""JVMs that start in a third of the time, for all Spark drivers of the tests and of processes that tests start.

The options reach every driver through the environment variable `SPARK_SUBMIT_OPTS`, which Spark's launcher reads. Spark
takes properties of the JVM that begin with `spark.` as settings. A short-lived JVM gains nothing from the second
compiler or from a parallel collector, and loading some 20,000 classes takes longer than most jobs of the tests: their
parsed form is archived once per machine (class data sharing). A JVM that cannot use the archive, such as one with
another class path, starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from spark_ext.spark.jars import delta_jars, package_jars

VARIABLE: Final = "SPARK_SUBMIT_OPTS"
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.databricks.delta.snapshotPartitions=1"
"""Options of every JVM that lives for seconds or minutes. Delta otherwise reads each log in 50 tasks."""

# Without any output: some tests check everything that a driver prints.
_QUIET: Final = "-Xlog:disable"

_WARM_UP: Final = """
import pathlib, tempfile
import spark_ext as sx

with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    spark = sx.session("warm-up", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    rows = spark.readStream.format("datagen").options(uid="in", rows=100).load()
    counts = sx.with_watermark(rows, "ts", "1 minute").groupBy("key").count()
    job = sx.Job(spark, "warm-up", state=place / "state")
    job.add("copy", rows.writeStream.format("delta_2pc").options(uid="copied", path=str(place / "copy")))
    job.run(progress=False)
    spark.read.format("delta").load(str(place / "copy")).groupBy("key").count().collect()
    job.ledger.epochs().count()
    spark.stop()
"""


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
        archive = cache / f"{_key(jars)}.jsa"
        if not archive.exists():
            _make(archive)
    use(archive)


def _key(jars: tuple[Path, ...]) -> str:
    java = Path(os.environ.get("JAVA_HOME") or "/usr", "bin", "java").resolve()
    parts = [pyspark.__version__, str(pyspark.__file__), *map(str, jars), str(java)]
    # A Java that was updated in place has another modification time.
    parts.append(str(java.stat().st_mtime_ns) if java.exists() else "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _make(archive: Path) -> None:
    for old in archive.parent.glob("*.jsa"):
        old.unlink()
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    options = f"{OPTIONS} {_QUIET} -XX:ArchiveClassesAtExit={draft}"
    subprocess.run([sys.executable, "-c", _WARM_UP], env={**os.environ, VARIABLE: options}, capture_output=True)
    # Without the archive everything works, only slower.
    if draft.exists():
        draft.rename(archive)


@contextmanager
def _alone() -> Iterator[None]:
    """Allow one test process of this user at a time."""
    with Path(tempfile.gettempdir(), f"spark-ext-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
