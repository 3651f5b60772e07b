"""Fixtures for all tests. Spark starts only for tests that ask for `spark`."""

import contextlib
import gc
import os
import warnings
from collections.abc import Generator, Iterator

import hypothesis
import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext import masking
from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.backend.kinds import is_connect
from tests.support import cheap_jvm

# How long an example takes says nothing on a busy machine. The profile `ci` draws the same examples each time.
# `--hypothesis-profile` chooses another one; tests that state a number of examples keep it.
for _name, _examples in (("quick", 20), ("spark-ext", 100), ("thorough", 1_000)):
    hypothesis.settings.register_profile(
        _name,
        hypothesis.settings.get_profile("ci" if "CI" in os.environ else "default"),
        deadline=None,
        max_examples=_examples,
    )
hypothesis.settings.load_profile("spark-ext")


@pytest.fixture(autouse=True)
def secrets_of_one_test() -> Iterator[None]:
    """The secrets of one test are words of another one's messages."""
    yield
    masking.forget()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--remote", action="store_true", help="let `spark` be a session of Spark Connect")


@pytest.fixture(scope="session")
def spark_of_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The one Spark session of a test process; tests ask for `spark`, which also cleans up after them."""
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    # As jobs do for their own queries: also for those outside of a job, and for the files of each start.
    conf[FILE_MANAGER] = local_files()
    if request.config.getoption("remote"):
        from tests.servers.connect import connect_server, delta_settings

        with (
            connect_server(tmp_path_factory.mktemp("connect") / "log", {**delta_settings(), **conf}) as address,
            pytest.MonkeyPatch.context() as given,
        ):
            given.setenv(cheap_jvm.REMOTE, address)
            client = sx.session("spark-ext-tests", remote=address, conf={"spark.sql.shuffle.partitions": "2"})
            yield client
            client.stop()
        return
    session = cheap_jvm.session("spark-ext-tests", conf)
    gateway = session.sparkContext._gateway
    assert gateway is not None
    yield session
    try:
        session.stop()
    except OSError:  # what py4j raises, once it has tried again
        # No test asks for it any more, and the one that happens to be the last is not to blame.
        status = gateway.proc.wait()
        warnings.warn(f"the JVM of this process has ended by itself, with exit status {status}", stacklevel=1)


@pytest.fixture
def spark(spark_of_process: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The process's Spark session; what a test leaves running or set is undone after it.

    The history of every job that the test has started is validated, see `tests.support.validators`.
    """
    from tests.support.validation import validated_jobs

    session = spark_of_process
    if is_connect(session):
        before = dict(session.conf.getAll)
        try:
            with validated_jobs(request.node):
                yield session
        finally:
            _end(session, with_views=True)
            _put_back(session, before, dict(session.conf.getAll))
        return
    # Java's own maps and lists: Python's copies of them, and a Spark job for the views, would cost each test 0.1 s.
    java = session._jsparkSession
    before = java.conf().getAllAsJava()
    try:
        with validated_jobs(request.node):
            yield session
    finally:
        # Also after a history that is not valid: the next test of this process is not to inherit anything.
        _end(session, with_views=not java.sessionState().catalog().listLocalTempViews("*").isEmpty())
        after = java.conf().getAllAsJava()
        if not after.equals(before):
            _put_back(session, dict(before), dict(after))


def _end(session: SparkSession, *, with_views: bool) -> None:
    for query in session.streams.active:
        query.stop()
    for table in session.catalog.listTables() if with_views else ():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)


def _put_back(session: SparkSession, before: dict[str, str], after: dict[str, str]) -> None:
    for key in filter(session.conf.isModifiable, after.keys() - before.keys()):
        session.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay: looking for garbage among them takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test: jars, and JVMs that start quickly, when a selected test needs any."""
    needs = {name for item in session.items for name in ("spark", "process", "server") if item.get_closest_marker(name)}
    if needs and not session.config.option.collectonly:
        from tests.servers import kafka  # by now a plugin

        # Without jars the tests say what is missing, each for itself.
        with contextlib.suppress(EnvironmentProblem):
            packages = [kafka.PACKAGES] if "server" in needs else []
            cheap_jvm.prepare(*packages)


# So that its assertions say what differs, as those of tests do.
pytest.register_assert_rewrite(
    "spark_ext.testing.sink_bad_rows", "spark_ext.testing.sink_contract",
    "spark_ext.testing.sink_queries", "spark_ext.testing.source_contract", "spark_ext.testing.source_queries",
)  # fmt: skip

pytest_plugins = [
    "tests.support.slices",  # before those that import it
    "tests.support.budget",
    "tests.support.jobs",
    "tests.support.saved",
    "tests.support.selection",
    "tests.servers.postgres",
    "tests.servers.kafka",
    "tests.servers.object_store",
]
