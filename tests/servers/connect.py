"""A server of Spark Connect, on 127.0.0.1; jobs run in clients, which are processes of their own."""

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.backend.process import installed_home
from spark_ext.spark.session.jars import delta_jars
from spark_ext.spark.session.sessions import defaults
from tests.servers.ports import free_ports
from tests.support import cheap_jvm
from tests.support.cluster import Cluster
from tests.support.processes import Member, Tree
from tests.support.waiting import until

_SETTINGS: Final = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    FILE_MANAGER: local_files(),
    **cheap_jvm.SHORT,
}
_LOCAL: Final = {
    "spark.python.daemon.module": "tests.support.daemon",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",  # as `sx.session` sets both
    "spark.executor.heartbeat.maxFailures": "1000000",
}
_ON_CLUSTER: Final = {"spark.executor.memory": "512m"}
STARTS_WITHIN: Final = 180.0  # s, on a busy machine
_ROOT: Final = Path(__file__).parents[2]


class ConnectServer:
    """A server that can be killed and started again at its address; its tasks run in it, or on a cluster."""

    def __init__(self, log: Path, conf: Mapping[str, str] = {}, cluster: Cluster | None = None) -> None:
        (self._port,) = free_ports(1)
        self.address = f"sc://127.0.0.1:{self._port}"
        self.log, self._cluster = log, cluster
        own = _LOCAL if cluster is None else _ON_CLUSTER
        given = {**_SETTINGS, **own, **conf, "spark.connect.grpc.binding.port": str(self._port)}
        self._settings = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
        self._trees = ExitStack()
        self._started: list[Tree] = []

    def __enter__(self) -> "ConnectServer":
        try:
            self.start()
        except BaseException:
            self._trees.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._trees.close()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        home = installed_home()
        command: list[str | Path] = [home / "bin" / "spark-submit", "--master", self._master, *self._settings]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        env = {**cheap_jvm.environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
        server = self._trees.enter_context(Tree(command, self.log, env=env, cwd=_ROOT))
        self._started.append(server)
        until(lambda: self._answers() or server.poll() is not None, "the server of Spark Connect", STARTS_WITHIN)
        assert server.poll() is None, self.log.read_text()[-2000:]

    def kill(self) -> None:
        """`kill -9` its JVM; its Python processes and executors notice that."""
        self._started[-1].kill()

    def executors(self) -> list[Member]:
        return [] if self._cluster is None else self._cluster.executors()

    def python_workers(self) -> list[Member]:
        """Planners, committers and the workers of tasks."""
        members = self._started[-1].members()
        found = [one for one in members if one.is_python_worker]
        return found + ([] if self._cluster is None else self._cluster.python_workers())

    @property
    def _master(self) -> str:
        return "local[2]" if self._cluster is None else self._cluster.master

    def _answers(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self._port)) == 0


def delta_settings() -> dict[str, str]:
    """The settings for Delta, with which clients read the ledger's tables; none if no Delta is for this Spark yet."""
    jars = ":".join(map(str, delta_jars({})))
    own = {key: value for key, value in defaults().items() if "delta" in key + value}
    return {**own, "spark.driver.extraClassPath": jars} if jars else {}


@contextmanager
def connect_server(log: Path, conf: Mapping[str, str] = {}) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    with ConnectServer(log, conf) as server:
        yield server.address


def client_environment() -> dict[str, str]:
    """The environment of a client: nothing in it starts a JVM."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_REMOTE"))}
