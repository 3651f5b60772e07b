"""An archive of the classes that Spark loads, from which the JVM of a local session starts faster.

Java maps the parsed form of some 20,000 classes into later JVMs (class data sharing, JEP 350). `spark-ext prepare`
makes the file once for a Spark, Java and Delta; a JVM that cannot use it starts without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_ext.spark.session.environment import find_java
from spark_ext.spark.session.spark_home import user_cache
from spark_ext.storage import move

VARIABLE: Final = "SPARK_SUBMIT_OPTS"  # Spark's launcher passes the options in it to the driver's JVM
# Without the second compiler, which pays for itself after a minute of CPU time or so; one thread collects garbage.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Java says on standard output why it cannot use an archive; it then does without.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
_ARCHIVE: Final = "-XX:SharedArchiveFile="
_AT_EXIT: Final = "-XX:ArchiveClassesAtExit="
_OPTIONS: Final = (_ARCHIVE, _AT_EXIT, "-Xshare:")
_VARIABLES: Final = (VARIABLE, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")


def place(home: Path, jars: Sequence[Path], folder: Path | None = None) -> Path:
    """Path of the archive for a class path and this machine's Java, whether or not it is there; in the user's cache."""
    java = (find_java() or Path("java")).resolve()
    parts = [str(home), *map(str, jars), str(java)]
    # A Java that was updated in place has another modification time.
    parts.append(str(java.stat().st_mtime_ns) if java.exists() else "")
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return (folder or user_cache()) / f"classes-{key}.jsa"


def options(archive: Path, given: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """Options of a JVM that is to use an archive; empty if it is not there, or if other options name one."""
    said = " ".join([given, *(environment.get(name, "") for name in _VARIABLES)])
    if any(option in said for option in _OPTIONS) or not archive.is_file():
        return ""
    return f"{_QUIET} {_ARCHIVE}{archive}"


def make(archive: Path, program: Sequence[str], options: str = "") -> str:
    """Run a program that starts a session, and archive the classes that its JVM has loaded; returns why not, or "".

    Without it everything works, only slower.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f".{archive.name}.{os.getpid()}")
    said = " ".join(filter(None, [os.environ.get(VARIABLE), options, "-Xlog:disable", f"{_AT_EXIT}{draft}"]))
    try:
        # Returns when the JVM, which outlives the program, has closed the output: the archive is complete then.
        done = subprocess.run(program, env={**os.environ, VARIABLE: said}, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            move(draft, archive)
            return ""
        return f"exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
    except OSError as problem:
        return str(problem)
    finally:
        draft.unlink(missing_ok=True)
