"""What a job is refused for when it is made: its name, its settings, and a state directory that Spark cannot open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.errors import ConfigurationError
from spark_ext.failures.classifier import load
from spark_ext.metrics.exporters import check_measuring
from spark_ext.observing.dump_folder import check_dumps
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.options import UID
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.settings import JobSettings
from spark_ext.spark.backend.kinds import require_classic
from spark_ext.spark.session import formats, object_stores
from spark_ext.spark.session.sessions import register
from spark_ext.storage import Location, StoreOptions, check_for_delta, is_s3, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from spark_ext.incidents.registry import Registry


@dataclass(frozen=True)
class JobIdentity:
    """A job whose settings have been checked."""

    settings: JobSettings
    state_directory: str
    """Absolute path or URI."""
    registry: Registry
    """Types of its incidents."""


def checked_job(spark: SparkSession, job: str, state: str, given: Mapping[str, Any]) -> JobIdentity:
    """Check what a user makes a job of, and let all processes find its storage options."""
    who = f"job '{job}'"
    if not UID.fullmatch(job):
        raise ConfigurationError(
            f"'{job}' cannot be a job's name",
            operator=who,
            kept=NOTHING_STARTED,
            do="use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
        )
    require_classic(spark, who, kept=NOTHING_STARTED)
    settings = JobSettings.of(job, given)
    # Refused here rather than by the start, which reads both again.
    load(settings.failures)
    registry = JobIncidents.load(settings.incidents).registry
    check_measuring(job, settings)
    place = local_path(state)
    state_directory = state if place is None else str(place.expanduser().resolve())
    if place is None and settings.on_damage == "restore":
        raise ConfigurationError(
            "on_damage='restore' needs a state directory on a file system, where what is damaged can be moved aside",
            operator=who,
            kept=NOTHING_STARTED,
            do="leave it out; after a failure restore the job into another state directory",
        )
    check_dumps(settings, state_directory, f"{who}, setting 'dumps'")
    _use_stores(spark, who, settings, state_directory)
    check_for_delta(Location(state_directory), f"{who}, state directory")
    return JobIdentity(settings, state_directory, registry)


def _use_stores(spark: SparkSession, operator: str, settings: JobSettings, state: str) -> None:
    options = StoreOptions.of(settings.storage_options, f"{operator}, storage_options", kept=NOTHING_STARTED)
    remote = local_path(state) is None
    if not (options or remote):
        return
    if object_stores.use(spark, options, f"{operator}, storage_options", s3=is_s3(state)):
        # Spark has copied the environment of the workers when sources and sinks were registered; the user's own too.
        register(spark, *formats.known().values(), require_delta=False)
    if remote:
        object_stores.check_store(spark, state, f"{operator}, state directory")
