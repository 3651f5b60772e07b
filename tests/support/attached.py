"""A driver that is killed while it runs no query, in the test's own JVM: a Python process with a session there."""

import os
import sys
from typing import TypeAlias

from pyspark.sql import SparkSession

from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.kinds import is_connect
from tests.support import cheap_jvm

Gateway: TypeAlias = tuple[int, str]  # port and secret of a JVM's gateway; 0, and the address of a server


def gateway_of(spark: SparkSession) -> Gateway:
    if is_connect(spark):
        return 0, os.environ[cheap_jvm.REMOTE]
    given = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return given.port, given.auth_token


def session(gateway: Gateway) -> SparkSession:
    """A session in another process's JVM. The ledger takes this process for that JVM, so that both end together.

    Sources and sinks are still to be registered.
    """
    port, secret = gateway
    if not port:
        return SparkSession.Builder().remote(secret).getOrCreate()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    os.environ["PYSPARK_PYTHON"] = sys.executable
    connected = launch_gateway()
    java = connected.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        connected.jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=connected, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    setattr(CLASSIC, "jvm_pid", lambda spark: os.getpid())  # noqa: B010
    running = connected.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, running.newSession())
