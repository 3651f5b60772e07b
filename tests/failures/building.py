"""Jars of the user's own, compiled for a case."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_java(spark: SparkSession, name: str, body: str) -> None:
    """Compile a Java class, `package.Name`, and add its jar to the session, which keeps it: Spark cannot remove one."""
    spark.sql(f"ADD JAR '{_jar(name, body)}'")


@functools.cache
def _jar(name: str, body: str) -> Path:
    package, kind = name.rsplit(".", 1)
    folder = _folder() / kind
    folder.mkdir()
    source = folder / f"{kind}.java"
    source.write_text(f"package {package};\n{body}")
    jars = Path(pyspark.__file__).parent / "jars"
    subprocess.run(["javac", "-proc:none", "-cp", f"{jars}/*", "-d", f"{folder}/classes", str(source)], check=True)
    jar = folder / f"{kind.lower()}.jar"
    subprocess.run(["jar", "cf", str(jar), "-C", f"{folder}/classes", "."], check=True)
    return jar


@functools.cache
def _folder() -> Path:
    """Lives as long as the process: each task of a session opens the jars that were added to it."""
    folder = tempfile.mkdtemp(prefix="failures-jars-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
