"""The process in which benchmarks run with small sizes: all in one Spark session, with one server of each kind.

Their drivers, servers of control events and clients are threads of it: each process would need a JVM, or imports.
"""

import io
import multiprocessing.dummy
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Final

import pandas as pd
from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks import _control, _control_clients, _flink, _operators, _spark
from benchmarks._figures import Figure
from benchmarks._measure import measure
from examples import flights
from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.session.jars import session_jars
from tests.servers import kafka, postgres
from tests.servers.spark_kafka import spark_kafka_jars
from tests.support import cheap_jvm

_JDBC: Final = "org.postgresql:postgresql:42.7.8"
_OPEN: Final = ExitStack()


def prepare() -> None:
    """Before the first benchmark is imported: what they open for themselves is shared, and Flink is not run."""
    _spark.UNCOUNTED = 0
    _spark.session = _session
    kafka.Broker = _broker  # type: ignore[assignment, misc]
    postgres.running = _server
    _control.multiprocessing = SimpleNamespace(get_context=lambda how: multiprocessing.dummy)  # type: ignore
    _control_clients.ProcessPoolExecutor = lambda size, mp_context: ThreadPoolExecutor(size)  # type: ignore
    for table in ("package_flights", "package_weather"):
        setattr(flights, table, partial(_two_days, getattr(flights, table)))
    os.environ.update(cheap_jvm.forking())
    # It needs Maven, and is downloaded.
    _flink.once = lambda name, arguments: {"emitRowsPerSec": 1000.0, "endToEndMedianMs": 10.0}
    for name in ("control_change", "recovery"):
        import_module(f"benchmarks.{name}").Tree = _Driver  # type: ignore[attr-defined]
    ours: Any = import_module("benchmarks.short_lived")
    ours.subprocess = SimpleNamespace(run=_ran, PIPE=None)


def measured(name: str, sizes: Mapping[str, Any]) -> list[Figure]:
    return measure(name, 1, sizes)


def close() -> None:
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
    conf = {
        **_spark.CONF,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        # Not by `extraClassPath`: with another class path the JVM could not use the archive of the tests.
        "spark.jars": ",".join(map(str, [*spark_kafka_jars(), *session_jars(_JDBC, {})])),
        "spark.driver.extraJavaOptions": "-Xss64m",
        "spark.python.daemon.module": "tests.support.daemon",
        FILE_MANAGER: local_files(),
        "spark.sql.shuffle.partitions": "1",
        # Each plan runs for a few epochs of a few rows: to compile it would take longer.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    spark = sx.session("benchmarks", master="local[2]", conf=conf)
    _OPEN.callback(spark.stop)
    _operators.register(spark)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@cache
def _running() -> kafka.Broker:
    return _OPEN.enter_context(_RealBroker(_OPEN.enter_context(_spark.workplace())))


_RealBroker: Final = kafka.Broker


@contextmanager
def _broker(folder: Path) -> Iterator[kafka.Broker]:
    yield _running()


_real_server: Final = postgres.running


@cache
def _database_server() -> postgres.PostgresServer:
    return _OPEN.enter_context(_real_server())


@contextmanager
def _server(settings: Mapping[str, str] | None = None) -> Iterator[postgres.PostgresServer]:
    yield _database_server()


def _two_days(whole: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    table = whole()
    return table[(table["month"] == 1) & (table["day"] <= 2)]


def _main(command: Sequence[str], env: Mapping[str, str] | None) -> None:
    os.environ.update(env or {})
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


def _ran(command: Sequence[str], env: Mapping[str, str], **_: Any) -> SimpleNamespace:
    with redirect_stdout(io.StringIO()) as said:
        _main(command, env)
    return SimpleNamespace(stdout=said.getvalue())


class _Driver:
    """A driver, as a `Tree` starts it, whose job and queries are stopped in place of being killed."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._code: int | None = None
        self._folder = Path(command[-1])
        self._thread = Thread(target=self._run, args=(command, env), daemon=True)
        self._thread.start()

    def __enter__(self) -> "_Driver":
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def _run(self, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        self._code = 1
        _main(command, env)
        self._code = 0

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def wait(self, seconds: float = 60) -> int | None:
        self._thread.join(seconds)
        return self.poll()

    def text(self) -> str:
        return "the driver has failed"

    def terminate(self, seconds: float = 60) -> None:
        for state in (self._folder / "state", self._folder / "job" / "state"):
            if state.exists() and self._thread.is_alive():
                sx.Control(state).stop(wait=60)
        for query in _spark_of_process().streams.active:
            query.stop()
        self.wait(seconds)
