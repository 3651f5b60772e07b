"""A real standalone Spark cluster on loopback: one Master and some Workers, each a process with its executors."""

import json
import os
import re
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pyspark

from spark_ext.spark.session.spark_home import home_without_zip
from tests.support import cheap_jvm
from tests.support.processes import Member, Tree
from tests.support.waiting import until

# In pyspark's own directory each Python process would compile pyspark again.
SPARK_HOME = Path(home_without_zip() or Path(pyspark.__file__).parent)
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_UI_PORT = re.compile(r"Successfully started service 'MasterUI' on port (\d+)")


class Cluster:
    """A cluster of `workers` Worker processes; the end of the `with` terminates all its processes.

    With `apart` each worker has its own address: Spark repeats a slow task only on another machine.
    """

    def __init__(
        self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g", apart: bool = False
    ) -> None:
        self._apart = apart
        self._folder = folder
        self._count, self._cores, self._memory = workers, cores, memory
        self._stack = ExitStack()
        self.master = ""  # the address for `spark.master`
        self._ui = ""
        self.workers: list[Tree] = []

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SPARK_MASTER": self.master, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip

    def registered(self) -> int:
        with urllib.request.urlopen(f"{self._ui}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])

    def executors(self) -> list[Member]:
        return [member for worker in self.workers for member in worker.members() if member.is_executor]

    def python_workers(self) -> list[Member]:
        return [member for worker in self.workers for member in worker.members() if not member.is_jvm]

    def _start(self) -> None:
        master = self._launch("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

        def address() -> tuple[str, str] | None:
            text = master.text()
            if master.poll() is not None:
                raise RuntimeError(f"the Master has exited:\n{text}")
            found, port = _MASTER.search(text), _UI_PORT.search(text)
            up = "I have been elected leader" in text
            return (found[1], f"http://127.0.0.1:{port[1]}") if up and found and port else None

        found = until(address, "the Master is up")
        assert found is not None
        self.master, self._ui = found
        for _ in range(self._count):
            self.add_worker()
        until(lambda: self.registered() == self._count, f"{self._count} workers registered")

    def add_worker(self) -> None:
        """Start a further worker, without waiting until it is registered."""
        self.workers.append(self._worker(len(self.workers)))

    def _worker(self, number: int) -> Tree:
        host = f"127.0.0.{number + 1}" if self._apart else "127.0.0.1"
        options = ["--host", host, "--port", "0", "--webui-port", "0"]
        options += ["--cores", str(self._cores), "--memory", self._memory]
        options += ["--work-dir", str(self._folder / f"work-{number}")]
        return self._launch(f"worker-{number}", "worker.Worker", *options, self.master)

    def _launch(self, name: str, kind: str, *options: str) -> Tree:
        env = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(self._folder),
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            # Executors inherit it from their worker.
            "JDK_JAVA_OPTIONS": os.environ.get(cheap_jvm.VARIABLE, cheap_jvm.OPTIONS),
        }
        (self._folder / "log4j2.properties").write_text(_LOG)
        command: list[str | Path] = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *options]
        tree = Tree(command, self._folder / f"{name}.log", {key: value for key, value in env.items() if value})
        return self._stack.enter_context(tree)


_LOG = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
