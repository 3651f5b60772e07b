"""Flink as a side: its settings, tables and processes, and what its logs and files tell of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._flink import SCRIPT
from benchmarks.nexmark.judge import part_files
from benchmarks.nexmark.queries import PUBLISHED, QUERIES, Query
from benchmarks.nexmark.sides import Case, Progress, Times
from tests.servers.ports import free_ports
from tests.support.processes import Member, Tree

_BUILT: Final = Path("out/flink").absolute()
_PYFLINK: Final = _BUILT / "pyflink"
_PYTHON: Final = _PYFLINK / "bin" / "python"
_READERS: Final = 2
_SETTINGS: Final = {
    "parallelism.default": _READERS, "taskmanager.numberOfTaskSlots": _READERS, "pipeline.object-reuse": "true",
    "execution.checkpointing.interval": "1 s", "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true", "state.backend.type": "hashmap", "table.local-time-zone": "UTC",
    "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1000,
    "restart-strategy.fixed-delay.delay": "0 s", "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.network.max": "128mb", "taskmanager.memory.managed.size": "512mb",
    "jobmanager.rpc.address": "127.0.0.1", "jobmanager.bind-host": "127.0.0.1", "taskmanager.host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1", "rest.address": "127.0.0.1", "rest.bind-address": "127.0.0.1",
    "rest.bind-port": 0,
}  # fmt: skip
_CLUSTER: Final = {
    "heartbeat.interval": "1 s", "heartbeat.timeout": "5 s", "high-availability.type": "zookeeper",
    "high-availability.zookeeper.client.session-timeout": "4 s", "high-availability.cluster-id": "/nexmark",
    "high-availability.zookeeper.client.connection-timeout": "3 s", "zookeeper.sasl.disable": "true",
    "taskmanager.cpu.cores": _READERS, "taskmanager.memory.task.heap.size": "1536mb",
    "taskmanager.memory.task.off-heap.size": "0", "taskmanager.memory.framework.heap.size": "128mb",
    "taskmanager.memory.framework.off-heap.size": "128mb", "taskmanager.memory.jvm-metaspace.size": "256mb",
    "taskmanager.memory.jvm-overhead.min": "192mb", "taskmanager.memory.jvm-overhead.max": "192mb",
}  # fmt: skip
_PUBLISHED: Final = {
    "state.backend.type": "rocksdb", "execution.checkpointing.interval": "3 min",
    "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": 50_000, "table.optimizer.distinct-agg.split.enabled": "true",
}  # fmt: skip
_OPENS: Final = " ".join(
    f"--add-opens=java.base/{one}=ALL-UNNAMED"
    for one in ("java.lang", "java.util", "java.nio", "java.util.concurrent", "java.time", "sun.nio.ch")
)
_LARGE: Final = ("q16", "q18")  # whose state of a day needs a larger heap than Spark's driver has
_TYPES: Final = {pa.int64(): "BIGINT", pa.string(): "STRING", pa.timestamp("us", "UTC"): "TIMESTAMP(3)"}
_COMPLETED: Final = re.compile(r"(?m)^(\S+ \S+) INFO  CheckpointCoordinator - Completed checkpoint \d+ ")
_ROLES: Final = {"TaskManagerRunner": "worker", "StandaloneApplicationClusterEntryPoint": "driver"}


class Flink:
    """A local process; with kills, a JobManager and a TaskManager, which the command that started them starts again."""

    queries: ClassVar[Sequence[str]] = tuple(QUERIES)
    parts: ClassVar[Sequence[str]] = ("table", "kills", "hot")
    judged: ClassVar[bool] = True

    def __init__(self, case: Case, source: Path, out: Path) -> None:
        self._case, self._source, self._out = case, source.absolute(), out.absolute()
        self._log = out / "driver.log"
        self._killed = 0.0

    def prepare(self) -> None:
        subprocess.run([SCRIPT, "build"], check=True)

    def start(self) -> Tree:
        conf = self._out / "conf"
        for folder in (conf, self._out / "tmp"):
            folder.mkdir(exist_ok=True)
        script = conf / "script.sql"
        tables = tables_of(QUERIES[self._case.query], self._source, self._out)
        script.write_text(";\n".join([*tables, self._text()]))
        (conf / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in self._settings().items()))
        return Tree(self._command(conf, script), self._log, self._env())

    def role(self, member: Member) -> str | None:
        return next((role for name, role in _ROLES.items() if member.is_jvm and name in member.command), None)

    def kill(self, tree: Tree, target: str) -> Tree:
        self._killed = time.time()
        for member in tree.members():
            _ = self.role(member) == target and member.kill()
        return tree

    def progress(self) -> Progress:
        """Files that were handed out are begun, and those but the last of each reader count for the next kill."""
        streams = [_steps(path) for path in self._logs()]
        begun = min(steps[-1].begun if steps else 0 for steps in streams)
        is_back = any(steps and steps[-1].at > self._killed for steps in streams)
        epochs = self._epochs()
        return Progress(max(0, begun - _READERS) if is_back else 0, epochs[-1][1] if epochs else 0, begun)

    def times(self) -> Times:
        streams = [_steps(path) for path in self._logs()]
        slowest = max(streams, key=lambda steps: len(steps) and steps[-1].at)
        ends = [step.at for steps in streams for step in steps if step.what == "none"]
        return Times(
            min((steps[0].at for steps in streams if steps), default=None),
            max(ends, default=None),
            self._epochs(),
            sorted(path.stat().st_ctime for path in part_files(self._out / "table")),  # they got their names
            [step.at for step in slowest if step.what == "file"][::_READERS],
        )

    def _text(self) -> str:
        return QUERIES[self._case.query].of_flink

    def _command(self, conf: Path, script: Path) -> list[str | Path]:
        arguments = [f"script={script}", *self._sink()]
        if self._case.kills is not None:
            return [SCRIPT, "cluster", conf, *arguments]
        heap = "8g" if self._case.query in _LARGE else "3g"
        return [SCRIPT, "java", f"-Xmx{heap}", "-Dbench.checkpoints=INFO", "bench.Nexmark", f"conf={conf}", *arguments]

    def _env(self) -> dict[str, str]:
        return {"TMPDIR": str(self._out / "tmp")}

    def _sink(self) -> list[str]:
        return [f"out={self._out / 'table'}"]

    def _settings(self) -> dict[str, Any]:
        found = {
            **_SETTINGS, "execution.checkpointing.dir": (self._out / "checkpoints").as_uri(),
            "io.tmp.dirs": self._out / "tmp",
        }  # fmt: skip
        if self._case.kills is None:
            return found
        (port,) = free_ports(1)
        (self._out / "conf" / "zoo.cfg").write_text(
            f"tickTime=1000\ndataDir={self._out / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n"
        )
        return {
            **found, **_CLUSTER, "high-availability.storageDir": (self._out / "ha").as_uri(),
            "high-availability.zookeeper.quorum": f"127.0.0.1:{port}",
        }  # fmt: skip

    def _logs(self) -> list[Path]:
        return [self._out / f"{stream}.log" for stream in QUERIES[self._case.query].reads]

    def _epochs(self) -> list[tuple[float, int]]:
        """When each checkpoint was complete, with the files that were handed out before it."""
        snapshots = [[step for step in _steps(path) if step.what == "snapshot"] for path in self._logs()]
        lines = _COMPLETED.findall(self._log.read_text(errors="replace"))
        times = [datetime.fromisoformat(line).timestamp() for line in lines]
        return [
            (at, min(next((step.begun for step in reversed(one) if step.at <= at), 0) for one in snapshots))
            for at in times
        ]


class Published(Flink):
    """Texts, settings and sink as Nexmark publishes them, for Flink's throughput."""

    queries: ClassVar[Sequence[str]] = tuple(PUBLISHED)
    parts: ClassVar[Sequence[str]] = ("table",)
    judged: ClassVar[bool] = False

    def times(self) -> Times:
        times = super().times()
        return times._replace(outputs=[at for at, _ in times.epochs[-1:]])

    def _text(self) -> str:
        return PUBLISHED[self._case.query]

    def _sink(self) -> list[str]:
        return ["sink=blackhole"]

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), **_PUBLISHED}


class PyFlink(Flink):
    """The same texts through PyFlink, with a Python function in that of q0."""

    queries: ClassVar[Sequence[str]] = ("q0", "q5", "q20")
    parts: ClassVar[Sequence[str]] = ("table",)

    def prepare(self) -> None:
        super().prepare()
        if not (done := _PYFLINK / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", _PYFLINK], check=True)
            subprocess.run([_PYTHON, "-m", "pip", "install", "-q", "apache-flink==2.3.0"], check=True)
            done.touch()

    def _text(self) -> str:
        text = super()._text()
        return text.replace("price", "same(price) AS price") if self._case.query == "q0" else text

    def _command(self, conf: Path, script: Path) -> list[str | Path]:
        return [_PYTHON, Path(__file__).with_name("pyflink_query.py"), conf, script, self._out / "table"]

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "python.executable": _PYTHON}

    def _env(self) -> dict[str, str]:
        jars = [_BUILT / "target" / "flinkbench-1.jar"]
        for name in ("hadoop-client-*", "flink-sql-parquet-*"):
            jars += (_BUILT / "target" / "lib").glob(f"{name}.jar")
        return {
            **super()._env(), "FLINK_CONF_DIR": str(self._out / "conf"),
            "HADOOP_CLASSPATH": os.pathsep.join(map(str, jars)),
            "LOG4J_PROPERTIES": str(SCRIPT.parent / "src/main/resources/log4j2.properties"),
            "FLINK_ENV_JAVA_OPTS": f"-Xmx3g -Dbench.checkpoints=INFO -Djava.io.tmpdir={self._out / 'tmp'} {_OPENS}",
        }  # fmt: skip


class _Step(NamedTuple):
    """What `InOrder` has written: of file, none, snapshot and restored; and how many files were handed out by then."""

    at: float
    what: str
    begun: int


def _steps(log: Path) -> list[_Step]:
    if not log.exists():
        return []
    lines = [line.split() for line in log.read_text().splitlines()]
    steps = [_Step(int(at) / 1000, what, int(begun)) for at, what, begun in lines]
    # A JobManager that was started again hands out nothing of a source that had finished, and counts from 0.
    ended = max((number for number, step in enumerate(steps) if step.what in ("file", "none")), default=None)
    if ended is not None and steps[ended].what == "none":
        steps[ended:] = [step._replace(begun=steps[ended].begun) for step in steps[ended:]]
    return steps


def tables_of(query: Query, source: Path, out: Path) -> list[str]:
    """The statements that create a query's tables."""
    statements = []
    for stream in (*query.reads, "side"):
        schema = pq.read_schema(min((source / stream).glob("*.parquet")))
        columns = [f"`{field.name}` {_TYPES[field.type]}" for field in schema]
        if query.delay and stream in query.reads:
            columns.append("WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND")
        statements.append(
            f"CREATE TABLE {stream} ({', '.join(columns)}) WITH ('connector' = 'nexmark', "
            f"'path' = '{source / stream}', 'log' = '{out / f'{stream}.log'}')"
        )
    return statements
