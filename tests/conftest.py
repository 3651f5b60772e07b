"""Fixtures for all tests. Spark starts only for tests that ask for `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import spark_ext as sx

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_of_process() -> Iterator[SparkSession]:
    """The one Spark session of a test process; tests ask for `spark`, which also cleans up after them."""
    session = sx.session(
        "spark-ext-tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            # Tests are short: what the second compiler would gain, it costs several times over on two cores.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def spark(spark_of_process: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The process's Spark session; what a test leaves running or set is undone after it.

    The history of every job that the test has started is validated, see `tests.support.validators`.
    """
    from tests.support.validation import validated_jobs

    session = spark_of_process
    before = dict(session.conf.getAll)
    with validated_jobs(request.node):
        yield session
    for query in session.streams.active:
        query.stop()
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)
    after = session.conf.getAll
    for key in filter(session.conf.isModifiable, after.keys() - before.keys()):
        session.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)


# So that its assertions say what differs, as those of tests do.
pytest.register_assert_rewrite(
    "spark_ext.testing.sink_contract",
    "spark_ext.testing.sink_queries",
    "spark_ext.testing.source_contract",
    "spark_ext.testing.source_queries",
)

pytest_plugins = ["tests.support.jobs", "tests.servers.postgres", "tests.servers.kafka"]
