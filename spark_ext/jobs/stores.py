"""The object stores of a job: options in all processes of its session, and a state directory that Spark can open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.session import formats, object_stores
from spark_ext.spark.session.sessions import register
from spark_ext.storage import StoreOptions, is_s3, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.settings import JobSettings


def use_stores(spark: SparkSession, job: str, settings: JobSettings, state: str) -> None:
    """Let all processes find the storage options of a job, and check that Spark can open its state directory.

    Args:
        spark: the job's session.
        job: its name.
        settings: the job's.
        state: path or URI of the state directory.

    Raises:
        ConfigurationError: a storage option is unknown or invalid, or the session has others already.
        EnvironmentProblem: the jar of the store's file system is missing.
    """
    options = StoreOptions.of(settings.storage_options, f"job '{job}', storage_options", kept=NOTHING_STARTED)
    remote = local_path(state) is None
    if not (options or remote):
        return
    changed = object_stores.use(spark, options, f"job '{job}', storage_options", s3=is_s3(state))
    if changed:
        # Spark has copied the environment of the workers when sources and sinks were registered; the user's own too.
        register(spark, *formats.known().values(), require_delta=False)
    if remote:
        object_stores.check_store(spark, state, f"job '{job}', state directory")
