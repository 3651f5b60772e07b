"""The process in which benchmarks run with small sizes: all in one Spark session, and with one Kafka broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import spark_ext as sx
from benchmarks import _flink, _operators, _spark
from benchmarks._figures import Figure
from benchmarks._measure import measure
from spark_ext.spark.jars import session_jars
from tests.servers import kafka
from tests.servers.spark_kafka import spark_kafka_jars
from tests.support import cheap_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JDBC: Final = "org.postgresql:postgresql:42.7.8"

_OPEN: Final = ExitStack()


def prepare() -> None:
    """Before the first benchmark is imported: what they open for themselves is shared, and Flink is not run."""
    _spark.UNCOUNTED = 0
    _spark.session = _session
    kafka.Broker = _broker  # type: ignore[assignment, misc]
    os.environ.update(cheap_jvm.forking())
    # It needs Maven, and is downloaded.
    _flink.once = lambda name, arguments: {"emitRowsPerSec": 1000.0, "endToEndMedianMs": 10.0}


def measured(name: str, sizes: Mapping[str, Any]) -> list[Figure]:
    """The figures of one round of a benchmark."""
    return measure(name, 1, sizes)


def close() -> None:
    """Stop what is shared."""
    _OPEN.close()


@contextmanager
def _session(name: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    spark = _spark_of_process()
    changed = {key: value for key, value in (conf or {}).items() if spark.conf.isModifiable(key)}
    before = {key: str(spark.conf.get(key)) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    try:
        yield spark
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


@cache
def _spark_of_process() -> SparkSession:
    jars = [*spark_kafka_jars(), *session_jars(_JDBC, {})]
    conf = {
        **_spark.CONF,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        # Not by `extraClassPath`: with another class path the JVM could not use the archive of the tests.
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.extraJavaOptions": "-Xss64m",
        "spark.python.daemon.module": "tests.support.daemon",
    }
    spark = sx.session("benchmarks", master="local[2]", conf=conf)
    _OPEN.callback(spark.stop)
    _operators.register(spark)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@cache
def _running() -> kafka.Broker:
    folder = _OPEN.enter_context(_spark.workplace())
    return _OPEN.enter_context(_RealBroker(folder))


_RealBroker: Final = kafka.Broker


@contextmanager
def _broker(folder: Path) -> Iterator[kafka.Broker]:
    yield _running()
