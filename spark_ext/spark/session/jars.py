"""Delta's jars for a session, and any other packages: resolved once by Spark's own resolver, then cached by path.

`spark.jars.packages` runs the resolver at every start, with pages of output, for a second or more, and sometimes needs
a network. Here it runs once, in a process of its own, and the paths that it found are kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from spark_ext.spark.backend.process import PRINT_JARS, announced, installed_home
from spark_ext.spark.capabilities import capabilities, release_of
from spark_ext.spark.session import environment
from spark_ext.spark.session.spark_home import user_cache
from spark_ext.storage import LocalFolder

# Spark's settings for where packages come from; they are passed to the resolver.
RESOLVER_KEYS: Final = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.excludes")
_TIMEOUT_S: Final = 900  # a slow network needs minutes for some 100 MB; the resolver notices a dead connection
_SESSION: Final = "the Spark session"
_LONGEST_NAME: Final = 120  # characters of coordinates in the name of a file, which most file systems allow 255


def delta_coordinate(default: str = "") -> str:
    """Maven coordinate of Delta for the installed pyspark and delta-spark.

    `default` is the version if delta-spark is not installed, as on platforms that bring their own jars; else an error.
    """
    import pyspark

    try:
        version = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        if not default:
            raise environment.missing(
                "delta-spark is not installed in this Python, so the version of Delta's jar is not known",
                _SESSION,
                "pip install 'spark-ext[spark]'; or give the jars in session(conf={'spark.jars': ...}); or, where "
                "the platform makes the session, pass that to register()",
            ) from None
        version = default
    else:
        environment.require_delta_version(version)
    # Since 4.1 an artifact is for one version of Spark.
    spark = "" if release_of(version) == (4, 0) else "_" + ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark{spark}_2.13:{version}"


def delta_jars(conf: Mapping[str, str]) -> tuple[Path, ...]:
    """Delta's jars and their dependencies, without Spark's own jars, as local files; none if no Delta is for it yet."""
    import pyspark

    if not capabilities(pyspark.__version__).delta:
        return ()
    return session_jars(delta_coordinate(), conf)


def session_jars(coordinates: str, conf: Mapping[str, str]) -> tuple[Path, ...]:
    """Packages for the class path of a Spark session: without the jars that Spark includes itself."""
    own = {_artifact(path.name) for path in (installed_home() / "jars").glob("*.jar")}
    # The resolver stores a jar as <organisation>_<artifact>-<version>.jar.
    return tuple(jar for jar in package_jars(coordinates, conf) if _artifact(jar.name.split("_", 1)[-1]) not in own)


def package_jars(coordinates: str, conf: Mapping[str, str]) -> tuple[Path, ...]:
    """Packages and all their dependencies, as local files: a complete class path for a separate JVM."""
    home = installed_home()
    settings = {key: conf[key] for key in RESOLVER_KEYS if key in conf}
    note = _note(coordinates, home, settings)
    noted = _noted(note)
    if noted:
        return noted
    found = _resolve(coordinates, home, settings)
    # Without this file the next start resolves again, which is only slower.
    with contextlib.suppress(OSError):
        LocalFolder(note.parent).write(note.name, "\n".join(str(path) for path in found))
    return found


def jar_version(artifact: str) -> str:
    """The version of a jar that the installed pyspark has."""
    found = sorted((installed_home() / "jars").glob(f"{artifact}-[0-9]*.jar"))
    if not found:
        do = "install pyspark from its own package, which has Hadoop's client"
        raise environment.missing(f"the installed Spark has no jar {artifact}", _SESSION, do)
    return found[-1].stem.removeprefix(f"{artifact}-")


def _note(coordinates: str, home: Path, settings: Mapping[str, str]) -> Path:
    key = hashlib.sha256(repr((str(home), sorted(settings.items()))).encode()).hexdigest()[:12]
    name = coordinates.replace(":", "_")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(coordinates.encode()).hexdigest()[:12]}"
    return user_cache() / f"{name}-{key}.jars"


def _noted(note: Path) -> tuple[Path, ...]:
    """The jars resolved earlier; empty without such a record, or if one of its files no longer exists."""
    try:
        paths = tuple(Path(line) for line in note.read_text().splitlines())
    except OSError:
        return ()
    return paths if all(path.is_file() for path in paths) else ()


def _resolve(coordinates: str, home: Path, settings: Mapping[str, str]) -> tuple[Path, ...]:
    with (
        announced(f"spark-ext: downloading {coordinates} (once)"),
        tempfile.TemporaryDirectory(prefix="spark-ext-jars-") as folder,
    ):
        script = Path(folder) / "print_jars.py"
        script.write_text(PRINT_JARS)
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", coordinates]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        try:
            done = subprocess.run(
                [*command, str(script)],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            )
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            output = f"no answer within {_TIMEOUT_S} s"
    match = re.search(r"^jars=(?P<jars>\S*)$", output, re.MULTILINE)
    jars = tuple(Path(unquote(urlparse(jar).path)) for jar in match["jars"].split(",")) if match else ()
    there = {jar.name for jar in jars if jar.is_file()}
    if not all("{}_{}-{}.jar".format(*coordinate.split(":")) in there for coordinate in coordinates.split(",")):
        raise environment.missing(
            f"the jar of {coordinates} is not on this machine and could not be downloaded: {_reason(output)}",
            _SESSION,
            "check the network or proxy and try again; or name a mirror in "
            "session(conf={'spark.jars.repositories': ...}); or copy the jars here and give their paths in "
            "session(conf={'spark.jars': ...})",
        )
    return jars


def _reason(output: str) -> str:
    telling = re.compile(r"unresolved dependency|not found|error|exception|no answer", re.IGNORECASE)
    lines = [line.strip(" \t:") for line in output.splitlines() if telling.search(line)]
    return "; ".join(dict.fromkeys(lines[:3]))[:500] or "the resolver gave no reason"


def _artifact(name: str) -> str:
    return re.sub(r"-\d.*$", "", name)
