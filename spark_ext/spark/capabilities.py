"""What each version of Spark has of what jobs use. Nothing else in the package asks for a version.

What a version lacks either has a substitute, which is named here, or is refused by name where it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spark_ext.errors import EnvironmentProblem

Release: TypeAlias = tuple[int, ...]
"""Major and minor number."""

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"


@dataclass(frozen=True)
class Capabilities:
    """Of one version of Spark."""

    delta: tuple[Release, ...]
    """Releases of Delta that have a jar for it, newest first; empty: none yet."""
    available_now: bool = True
    """Python sources are told that a run ends with what is there; else a job ends its queries itself."""
    rescale: bool = True
    """Spark can distribute the state of a stopped query over another number of partitions."""
    evolution: bool = True
    """Sources and sinks can have names, and settings of Spark's that require them."""
    changelog_settings: bool = True
    """What reads the changelogs of state takes settings of the state store."""
    checkpointing: str = f"{_STREAMING}.checkpointing"
    """The package of Spark's logs and of what writes their files."""

    @property
    def local_files(self) -> str:
        """The class that writes the files of a checkpoint without starting a process for each."""
        return f"{self.checkpointing}.FileSystemBasedCheckpointFileManager"


_NEWEST: Final = Capabilities(delta=())
_OF_4_1: Final = replace(
    _NEWEST, delta=((4, 4), (4, 3), (4, 2), (4, 1)), available_now=False, rescale=False, evolution=False
)

VERSIONS: Final[Mapping[Release, Capabilities]] = {
    (4, 0): replace(
        _OF_4_1, delta=((4, 4), (4, 3), (4, 2), (4, 1), (4, 0)), changelog_settings=False, checkpointing=_STREAMING
    ),
    (4, 1): _OF_4_1,
    (4, 2): replace(_NEWEST, delta=((4, 4),)),
    (4, 3): _NEWEST,
}
"""Those that jobs run on."""

PREFERRED: Final[Release] = (4, 2)
"""The newest for which everything is there, Delta included."""


def release_of(version: str) -> Release:
    """Major and minor number of a version such as `4.1.1` or `4.0.1-amzn-0`."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def capabilities(version: str) -> Capabilities:
    """Of a version of Spark, if it is one of `VERSIONS`."""
    found = VERSIONS.get(release_of(version))
    if found is None:
        raise EnvironmentProblem(
            f"Spark is {version}, and jobs run on Spark {', '.join(f'{major}.{minor}' for major, minor in VERSIONS)}",
            operator="the Spark session",
            kept="nothing was started",
            do="use a release of Spark that the page 'Supported versions' names",
        )
    return found
