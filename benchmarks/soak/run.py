"""A soak from its servers to its rows: producers, control events, restarts from outside, and a sample each 10 s."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from confluent_kafka import Producer
from deltalake import DeltaTable

import spark_ext as sx
from benchmarks.soak.job import KEYS, QUERIES, READ, WRITTEN
from benchmarks.soak.judge import Rows, compare
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.commands import tail
from tests.chaos.push import SIGNING, Gateway, secret
from tests.chaos.push_client import signed
from tests.chaos.push_job import INBOX
from tests.servers.kafka import Broker
from tests.servers.ports import free_ports
from tests.servers.postgres import running
from tests.support.processes import Member, Tree
from tests.support.waiting import until

EVERY: Final = 10.0  # s between two samples
COLLECT: Final = 6  # samples between two collections of the JVM's heap, after which it is measured
LIMIT: Final = 180.0  # s that a start, a control event or an epoch may take
READ_WITHIN: Final = 600.0  # age from which an input file may be removed, s
REPEATS: Final = 10  # each tenth request is sent twice
PAUSED: Final = 5.0  # s
FOLDERS: Final = {  # `{}` stands for the number of the driver
    "state": ("state",), "exchanges": ("state/exchanges",), "inbox": ("state/inboxes", "wal"), "append": ("append",),
    "upsert": ("upsert",), "savepoints": ("savepoints",), "temp": ("temp/{}",), "logs": ("logs",),
}  # fmt: skip
NESTED: Final = {"exchanges", "inboxes"}  # in the state, with rows of their own


@dataclass(frozen=True)
class Plan:
    minutes: float
    restart_every: float  # minutes
    steady: float  # minutes at the end without a restart
    rate: int  # numbers per second of each source


def steps(plan: Plan) -> list[tuple[float, str]]:
    """What is done to the job, each at a time in s: late steps follow at once."""
    end, every = 60 * plan.minutes, 60 * plan.restart_every
    due = {
        "change": (60, 60, end), "vacuum": (every / 2, every, end), "savepoint": (every, every, end),
        "restart": (every, every, end - 60 * plan.steady),
    }  # fmt: skip
    found = [(float(at), step) for step, (first, period, last) in due.items() for at in np.arange(first, last, period)]
    return [*sorted(found, key=lambda one: one[0]), (end, "end")]


class Journal:
    """What was measured, a line of JSON each, added to the file as it comes."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock = file.open("a"), threading.Lock()

    def add(self, **line: Any) -> None:
        with self._lock:
            self._file.write(f"{json.dumps({'at': time.time(), **line})}\n")
            self._file.flush()


def last_run(file: Path) -> list[dict[str, Any]]:
    """The whole lines of the newest run in a journal."""
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    return lines[max(place for place, line in enumerate(lines) if "plan" in line) :]


class Soak:
    def __init__(self, out: Path, plan: Plan, journal: Journal, stack: ExitStack) -> None:
        self._out, self._plan, self._journal, self._stack = out, plan, journal, stack
        for name in ("temp", "arriving", "logs", "savepoints"):
            (out / name).mkdir(parents=True)
        self._broker = stack.enter_context(Broker(out / "kafka"))
        self._database = stack.enter_context(running()).database()
        for topic in (READ, WRITTEN):
            self._broker.make(topic, 2)
        self._database.run(f"CREATE TABLE {READ} (n bigint PRIMARY KEY)")
        (port,) = free_ports(1)
        self._env = {**secret(), **self._database.environment(), "PYTHONPATH": str(Path.cwd())}
        self._gateway = Gateway(0, out / "state", out / "wal", port, self._env, out / "logs")
        self._producer = Producer({"bootstrap.servers": self._broker.bootstrap, "enable.idempotence": True})
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        self._ended = threading.Event()
        self._faults: list[Exception] = []
        self._incarnation = self._produced = 0
        self._driver = self._started()

    def run(self) -> None:
        """From the first start of the driver to its end; raises what is wrong."""
        self._until((self._out / "state/inboxes" / INBOX / "inbox.json").exists, "the job describes its inbox")
        gateway = self._stack.enter_context(self._gateway.start())
        self._gateway.up()
        works = (self._produce, lambda: self._sample(gateway))
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            self._moves()
            self._steer()
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
        self._finish()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:
            self._faults.append(problem)

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        def met() -> bool:
            if self._faults:
                raise self._faults[0]
            if (code := self._driver.poll()) is not None:
                raise RuntimeError(f"the driver has ended by itself, with code {code}:\n{tail(self._driver)}")
            return bool(condition())

        until(met, what, LIMIT)

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _started(self) -> Tree:
        self._incarnation, self._begun = self._incarnation + 1, time.time()
        command = [sys.executable, "-m", "benchmarks.soak.job", str(self._out), self._broker.bootstrap]
        log, temp = self._out / "logs" / f"driver-{self._incarnation}.log", self._out / "temp" / f"{self._incarnation}"
        temp.mkdir()
        return self._stack.enter_context(Tree(command, log, {**self._env, "TMPDIR": str(temp)}))

    def _moves(self) -> None:
        """Wait until each query has committed a further epoch."""
        logs = {query: SparkLog(str(self._out / "state/queries" / query / "checkpoint")) for query in QUERIES}
        left = {query: log.newest_commit() for query, log in logs.items()}

        def moved() -> bool:
            for query in [one for one, before in left.items() if logs[one].newest_commit() != before]:
                del left[query]
            return not left

        try:
            self._until(moved, "a further epoch of each query")
        except TimeoutError as problem:
            raise TimeoutError(f"{problem}: {', '.join(left)}") from None

    def _restart(self) -> None:
        begun, old, watchers = time.time(), self._driver, self._watchers()
        kind = "kill" if self._incarnation % 2 else "stop"
        if kind == "kill":
            old.kill()
        else:
            with sx.Control(self._out / "state") as control:
                control.checkpoint(wait=LIMIT)
                control.stop()
            if old.wait(LIMIT) != 3:
                raise RuntimeError(f"a stop has ended with code {old.poll()}:\n{tail(old)}")
        until(lambda: not (old.members() or watchers & self._watchers()), "the last driver leaves no process", LIMIT)
        self._driver = self._started()
        self._moves()
        self._journal.add(restart=kind, seconds=time.time() - begun)

    def _watchers(self) -> set[int]:
        """The processes, of sessions of their own, that end those of a killed driver."""
        found = ((one.pid, " ".join(one.info["cmdline"] or ())) for one in psutil.process_iter(["cmdline"]))
        return {pid for pid, command in found if "watch_workers" in command and str(self._out) in command}

    # -- what is done to the job --------------------------------------------------------------------------------------

    def _steer(self) -> None:
        begun = time.time()
        done = {"change": self._change, "vacuum": self._vacuum, "savepoint": self._savepoint, "restart": self._restart}
        for at, step in steps(self._plan):
            self._until(partial(passed, begun + at), f"the next {step}")
            done.get(step, lambda: None)()

    def _change(self) -> None:
        with sx.Control(self._out / "state") as control:
            control.set("step", round(time.time()), wait=LIMIT)
            control.rate_limit("source:files-in", 100 * self._plan.rate, wait=LIMIT)
            control.pause("source:kafka-in", wait=LIMIT)
            time.sleep(PAUSED)
            control.resume("source:kafka-in", wait=LIMIT)
            control.rate_limit("source:files-in", wait=LIMIT)
            control.checkpoint(wait=LIMIT)
        self._moves()

    def _savepoint(self) -> None:
        """Take one; the newest two are kept."""
        place = self._out / "savepoints"
        with sx.Control(self._out / "state") as control:
            control.savepoint(place / f"{time.time():.0f}", wait=LIMIT)
        for old in sorted(place.iterdir())[:-2]:
            shutil.rmtree(old)

    def _vacuum(self) -> None:
        """What is to be done by hand: see the page of `delta_2pc`; and files that were read long ago are removed."""
        for name in ("append", "upsert"):
            DeltaTable(self._out / name).vacuum(dry_run=False, full=True)
        for file in (self._out / "arriving").glob("*.json"):
            if time.time() - file.stat().st_mtime > READ_WITHIN:
                file.unlink()

    def _finish(self) -> None:
        """All rows arrive, the job ends, and then each sink has them once."""
        with contextlib.suppress(TimeoutError):  # what is lost is said below
            self._until(lambda: not any(one.lost for one in self._rows().values()), "all rows arrive")
        with sx.Control(self._out / "state") as control:
            control.drain()
        if self._driver.wait(LIMIT) != 0:
            raise RuntimeError(f"the drained job has not finished:\n{tail(self._driver)}")
        rows = self._rows()
        self._journal.add(rows={sink: asdict(one) for sink, one in rows.items()})
        if wrong := {sink: one for sink, one in rows.items() if not one.exact}:
            raise RuntimeError(f"rows differ: {wrong}")

    def _rows(self) -> dict[str, Rows]:
        numbers = range(self._produced)
        found = {
            f"delta_2pc, {name}": DeltaTable(self._out / name).to_pyarrow_table(columns=["n"])["n"].to_pylist()
            for name in ("append", "upsert")
        }
        found["postgres_2pc"] = self._database.column(f"SELECT n FROM {WRITTEN}")
        found["kafka_2pc"] = [int(one.value() or b"-1") for one in self._broker.messages(WRITTEN)]
        return {sink: compare(numbers[-KEYS:] if "upsert" in sink else numbers, some) for sink, some in found.items()}

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        """The same numbers to each source, some of them each second; in the end all sources have had the same."""
        begun, rate = time.monotonic(), self._plan.rate
        with self._database.connect() as connection:
            while not self._ended.wait(max(0.0, begun + self._produced / rate - time.monotonic())):
                new = range(self._produced, self._produced + rate)
                for number in new:
                    self._producer.produce(READ, b"%d" % number)
                if self._producer.flush(LIMIT):
                    raise TimeoutError("the broker has not taken the messages")
                connection.execute(f"INSERT INTO {READ} SELECT generate_series({new[0]}, {new[-1]})")
                lines = b"".join(b'{"n": %d}\n' % number for number in new)
                for _ in range(1 + (new[0] // rate % REPEATS == 0)):
                    self._post(f"msg_{new[0]}", lines)
                hidden = self._out / "arriving" / f".{new[0]:012}.json"
                hidden.write_bytes(lines)
                hidden.rename(hidden.with_name(hidden.name[1:]))
                self._produced += rate

    def _post(self, identity: str, body: bytes, attempts: int = 3) -> None:
        headers = {"Content-Type": "application/x-ndjson", **signed(SIGNING, identity, body)}
        try:
            self._http.request("POST", self._gateway.url[2], body, headers)
            answer = self._http.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()  # such as one that was idle for too long
            if attempts == 1:
                raise
            return self._post(identity, body, attempts - 1)
        if answer.status != 202:
            raise ConnectionError(f"the gateway has answered {answer.status}: {said!r}")

    # -- what is looked at --------------------------------------------------------------------------------------------

    def _sample(self, gateway: Tree) -> None:
        number = 0
        while not self._ended.wait(EVERY):
            number += 1
            driver, incarnation, begun = self._driver, self._incarnation, self._begun
            roles = [(one, *self._role(one, driver.pid)) for one in driver.members()]
            roles += [(one, "gateway", "") for one in gateway.members()]
            found = [measured(one, role, kind, number % COLLECT == 0) for one, role, kind in roles if role]
            self._journal.add(
                incarnation=incarnation, begun=begun, produced=self._produced, processes=[one for one in found if one],
                folders={
                    name: size_of(self._out / one.format(incarnation) for one in parts)
                    for name, parts in FOLDERS.items()
                },
            )  # fmt: skip

    def _role(self, member: Member, driver: int) -> tuple[str, str]:
        """The role and the kind of a process of the driver's session; empty for a shell that starts others."""
        if member.pid == driver or member.is_jvm:
            return "driver" if member.pid == driver else "JVM", ""
        if member.plans:
            with contextlib.suppress(OSError):
                for note in self._out.glob(f"temp/*/spark-ext-stacks-*/{member.pid}.json"):
                    return "planner", json.loads(note.read_text())["uid"]
            return "planner", ""
        return "worker" if member.is_python_worker else "", member.command.rpartition(".")[2]


def passed(moment: float) -> bool:
    return time.time() >= moment


def measured(member: Member, role: str, kind: str, collect: bool) -> dict[str, Any]:
    """A process's figures; nothing if it has gone."""
    with contextlib.suppress(psutil.Error, OSError):
        process = member.process
        memory, times = process.memory_full_info(), process.cpu_times()
        return {
            "role": role, "kind": kind, "pid": member.pid, "started": process.create_time(), "rss": memory.rss,
            "pss": memory.pss, "descriptors": process.num_fds(), "threads": process.num_threads(),
            "cpu": times.user + times.system,
            **(heap(member.pid) if collect and role == "JVM" else {}),
        }  # fmt: skip
    return {}


def heap(pid: int) -> dict[str, int]:
    """What a JVM's heap has after a collection, bytes; nothing without the JDK's `jcmd`."""
    for what in ("GC.run", "GC.heap_info") if shutil.which("jcmd") else ():
        said = subprocess.run(["jcmd", str(pid), what], capture_output=True, text=True, check=False, timeout=LIMIT)
        if used := re.search(r"heap .*?used (\d+)K", said.stdout):
            return {"heap": int(used[1]) * 1024}
    return {}


def size_of(places: Iterable[Path]) -> dict[str, int]:
    files = size = 0
    for folder, folders, names in (one for place in places for one in os.walk(place)):
        folders[:] = set(folders) - NESTED
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files, size = files + 1, size + (Path(folder) / name).lstat().st_size
    return {"files": files, "bytes": size}
