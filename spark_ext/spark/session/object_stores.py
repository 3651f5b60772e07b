"""A session whose jobs keep things in object stores: the jars, and the options where all its processes find them.

They are environment variables of the driver, workers and planners, and Hadoop settings of the running session: never on
a command line, in Spark's web UI, or in a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.errors import EnvironmentProblem, refused
from spark_ext.masking import logger
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session.jars import jar_version, session_jars
from spark_ext.storage import StoreOptions, is_s3
from spark_ext.storage.options import S3A

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("spark_ext.session")

_SDK: Final = "2.35.4"  # the version of Amazon's SDK with which Hadoop's S3A was released
# All of Amazon's services in one jar of 600 MB; S3A needs the modules below, 14 MB with what they need.
EXCLUDED: Final = "software.amazon.awssdk:bundle"
_MODULES: Final = ("s3", "s3-transfer-manager", "sts", "netty-nio-client", "apache-client")
_S3: Final = "fs.s3.impl"

_ALWAYS: Final = {
    # A file that must not be there yet is written under that condition, not after a look.
    "fs.s3a.create.conditional.enabled": "true"
}


def s3_coordinates() -> str:
    """Maven coordinates of S3A for Spark's version of Hadoop, comma-separated; without `EXCLUDED`."""
    modules = [f"software.amazon.awssdk:{module}:{_SDK}" for module in _MODULES]
    return ",".join([f"org.apache.hadoop:hadoop-aws:{jar_version('hadoop-client-api')}", *modules])


def s3_jars(conf: Mapping[str, str]) -> tuple[Path, ...]:
    """The jars of S3A, as local files."""
    excludes = ",".join(filter(None, (conf.get("spark.jars.excludes"), EXCLUDED)))
    return session_jars(s3_coordinates(), {**conf, "spark.jars.excludes": excludes})


def use(spark: SparkSession, options: StoreOptions, who: str, *, s3: bool = False) -> bool:
    """Let all processes of a session find the options, or those of the environment for what is not in them.

    What the user has set for Hadoop in the session stays. `s3` says that S3 is used though no option is given. Returns
    whether the workers' environment has changed: sources and sinks have to be registered again.
    """
    variables = options.environment()
    workers = backend_of(spark).environment(spark)
    for name, value in variables.items():
        if workers.get(name, value) != value:
            raise refused(
                f"the storage option '{name.lower()}' has another value in this session, whose processes have one "
                "environment",
                who,
                "give the same options to the session and to all its jobs, or use a process for each store; for single "
                "buckets, Hadoop has the settings spark.hadoop.fs.s3a.bucket.NAME...., and delta_2pc the option "
                "storage_options",
                kept="nothing was started",
            )
    new = {name: value for name, value in variables.items() if name not in workers}
    options.enter(os.environ)
    workers.update(new)
    if options.for_s3 or s3:
        _configure_hadoop(spark, options.over(StoreOptions.of_environment(os.environ)))
    return bool(new)


def _configure_hadoop(spark: SparkSession, options: StoreOptions) -> None:
    backend = backend_of(spark)
    if backend.hadoop_option(spark, _S3) is None and backend.has_class(spark, S3A):
        # One URI for Spark, delta-rs and Arrow. A platform's own file system stays.
        backend.set_hadoop_option(spark, _S3, S3A)
    for key, value in {**_ALWAYS, **options.hadoop()}.items():
        if spark.conf.get(f"spark.hadoop.{key}", None) is None:
            backend.set_hadoop_option(spark, key, value)


def check_store(spark: SparkSession, uri: str, who: str) -> None:
    """Refuse a state directory in a store that this session's Hadoop cannot open."""
    scheme, found, _ = uri.partition("://")
    if not found or backend_of(spark).has_file_system(spark, scheme):
        return
    raise EnvironmentProblem(
        f"Spark has no file system for {scheme}://, where its checkpoints are to be"
        + (f": {S3A} is not on the class path" if is_s3(uri) else ""),
        operator=who,
        kept="nothing was started",
        do='make the session with spark_ext.session(..., storage="s3"), or by spark-ext run --storage s3; or set '
        f"spark.jars.packages to {s3_coordinates()} and spark.jars.excludes to {EXCLUDED} before the JVM starts"
        if is_s3(uri)
        else "add the jar of its Hadoop file system with spark.jars.packages before the JVM starts",
    )
