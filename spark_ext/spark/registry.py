"""The session registry: how a source's planner or a sink's committer finds its job.

A planner process knows only the options given at `load()`, which was before the job existed. `register` therefore puts
the path of a folder into the environment of all Python workers, and the start of a job writes one small file per uid
there. Planners and committers run on the driver's machine, so a local folder is enough; nothing durable is in it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.errors import ConfigurationError, FencedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "SPARK_EXT_REGISTRY"
"""Environment variable of driver and workers: the folder, which need not exist."""

_changing = threading.Lock()
"""Only the driver's process writes here; two jobs of a session may do so at once."""


@dataclass(frozen=True)
class Registration:
    """What a running job tells the workers of one of its operators."""

    uid: str
    role: str
    """`source`, `sink` or `end_of_input`."""
    job: str
    job_id: str
    """Drawn once, at the job's first start; tells two jobs of one name apart."""
    query: str
    state: str
    """Path or URI of the job's state directory."""
    checkpoint: str
    """Path or URI of Spark's checkpoint directory of the query."""
    incarnation: int
    lineage: int
    interval_ms: int = 0
    """Least time between the starts of two data epochs, ms; 0: as fast as possible."""


def folder() -> Path | None:
    """The registry's folder; None when nothing was registered in this session."""
    place = os.environ.get(VARIABLE)
    return Path(place) if place else None


def folder_of(spark: SparkSession) -> Path:
    """The registry's folder of a session.

    Raises:
        ConfigurationError: the session was never registered.
    """
    place = spark.sparkContext.environment.get(VARIABLE)
    if place is None:
        raise ConfigurationError(
            "spark-ext's sources and sinks are not registered in this session",
            operator=f"Spark application '{spark.sparkContext.appName}'",
            kept="nothing was started",
            do="call spark_ext.register(spark) once, right after the session was made",
        )
    return Path(place)


def lookup(uid: str, place: Path | None = None) -> Registration | None:
    """The registration of a uid; None outside a job."""
    place = place or folder()
    if place is None:
        return None
    try:
        text = (place / f"{uid}.json").read_text()
    except FileNotFoundError:
        return None
    return Registration(**json.loads(text))


def publish(entries: Iterable[Registration], place: Path) -> None:
    """Write registrations, each atomically.

    Raises:
        ConfigurationError: a uid is taken by another running job of this session.
        FencedError: it is taken by a newer incarnation of the same job.
    """
    with _changing:
        _publish(tuple(entries), place)


def _publish(entries: tuple[Registration, ...], place: Path) -> None:
    for entry in entries:
        other = lookup(entry.uid, place)
        if other is None:
            continue
        if other.job_id == entry.job_id and other.incarnation > entry.incarnation:
            raise FencedError(
                f"incarnation {other.incarnation} of the job has been started in this session; this is "
                f"{entry.incarnation}",
                operator=f"job '{entry.job}', query '{entry.query}'",
                kept="all committed epochs; the newer incarnation goes on from them",
                do="let the newer one run; nothing is to be done here",
            )
        if (other.job, other.job_id, other.query) != (entry.job, entry.job_id, entry.query):
            raise ConfigurationError(
                f"uid '{entry.uid}' is in use by query '{other.query}' of job '{other.job}' in this session",
                operator=f"job '{entry.job}', query '{entry.query}'",
                kept="nothing was started",
                do="give each operator a uid of its own, or stop the other job first",
            )
    place.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        target = place / f"{entry.uid}.json"
        draft = place / f".{entry.uid}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(entry)))
        draft.replace(target)


def withdraw(uids: Iterable[str], place: Path, owner: tuple[str, int] | None = None) -> None:
    """Remove registrations, and the folder after the last; those that are not there are passed over.

    Args:
        uids: whose.
        place: the registry's folder.
        owner: job id and incarnation; those of another are passed over too. None: whoever's.
    """
    with _changing:
        for uid in uids:
            there = lookup(uid, place)
            if there is not None and owner in (None, (there.job_id, there.incarnation)):
                (place / f"{uid}.json").unlink()
        with suppress(OSError):  # it has others', or is not there
            place.rmdir()
