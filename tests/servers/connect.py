"""A server of Spark Connect, on 127.0.0.1; jobs run in clients, which are processes of their own."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.backend.process import installed_home
from tests.servers.ports import free_ports
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

_SETTINGS: Final = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "tests.support.daemon",
    FILE_MANAGER: local_files(),
    **cheap_jvm.SHORT,
}
STARTS_WITHIN: Final = 180.0  # s, on a busy machine
_ROOT: Final = Path(__file__).parents[2]


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    (port,) = free_ports(1)
    given = {**_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    settings = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
    home = installed_home()
    command: list[str | Path] = [home / "bin" / "spark-submit", "--master", "local[2]", *settings]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    python = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    with Tree(command, log, env={**cheap_jvm.environment(), **python}, cwd=_ROOT) as server:
        until(lambda: _answers(port) or server.poll() is not None, "the server of Spark Connect", STARTS_WITHIN)
        assert server.poll() is None, log.read_text()[-2000:]
        yield f"sc://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def client_environment() -> dict[str, str]:
    """The environment of a client: nothing in it starts a JVM."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_REMOTE"))}
