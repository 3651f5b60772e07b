"""Kills of an inbox's gateways and of the job that reads it: `python -m tests.chaos.push --gateways 20 --drivers 5`.

Clients push events to several gateways over HTTP alone, and redeliver some through another one. In the end, after the
job was drained, the table has each acknowledged event, and no event twice. A trial that was interrupted continues where
its journal ends: give it the same folder with `--keep`.
"""

import base64
import json
import os
import random
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.commands import arguments, end_on_sigterm, tail, verdict, workplace
from tests.chaos.push_client import Client, Journaled
from tests.chaos.push_job import INBOX, SECRET
from tests.chaos.scenario import ROOT
from tests.servers.ports import free_ports
from tests.support import cheap_jvm
from tests.support.cluster import Cluster
from tests.support.processes import Member, Tree
from tests.support.waiting import until

CLIENTS = 3
LIMIT = 300.0  # longest time that anything may take, s
MAX_FAILED_STARTS = 3
SEALS = 0.25  # how often the log of a killed gateway is sealed before it is started again
TARGETS = ("gateway", "planner", "executor", "driver")
SIGNING = b"a secret of thirty-two bytes...."
say = partial(print, flush=True)


def secret() -> dict[str, str]:
    """The environment that has the secret of the inbox."""
    return {SECRET: f"whsec_{base64.b64encode(SIGNING).decode()}"}


def ids(table: Path) -> list[str]:
    """The events in the job's table."""
    if not (table / "_delta_log").exists():
        return []
    return [str(one) for one in DeltaTable(table).to_pyarrow_table(columns=["id"])["id"].to_pylist()]


@dataclass(frozen=True)
class Found:
    """The table beside the journals."""

    attempted: int
    acknowledged: int
    lost: frozenset[str]  # acknowledged, and not in the table
    recovered: frozenset[str]  # in the table without an acknowledgement, which is allowed
    doubled: frozenset[str]  # in the table twice
    strangers: frozenset[str]  # in the table, and never sent

    @classmethod
    def of(cls, said: Journaled, table: Iterable[str]) -> "Found":
        rows = Counter(table)
        return cls(
            len(said.attempted), len(said.acknowledged), frozenset(said.acknowledged.keys() - rows.keys()),
            frozenset((rows.keys() & said.attempted) - said.acknowledged.keys()),
            frozenset(one for one, count in rows.items() if count > 1), frozenset(rows.keys() - said.attempted),
        )  # fmt: skip

    def problems(self) -> list[str]:
        wrong = {"acknowledged and missing": self.lost, "twice": self.doubled, "never sent": self.strangers}
        return [f"{len(some)} events {what}, such as {sorted(some)[:5]}" for what, some in wrong.items() if some]

    def __str__(self) -> str:
        return (
            f"{self.attempted} attempted, {self.acknowledged} acknowledged, {len(self.lost)} lost, "
            f"{len(self.recovered)} recovered, {len(self.doubled)} doubled"
        )


class Progress:
    """The journal of a trial: what was done, line by line."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._file, self._lock = file.open("w"), threading.Lock()
        for line in self.lines:  # without the half of a line that a kill has left
            self._write(line)

    def note(self, **line: Any) -> None:
        with self._lock:
            self.lines.append(line)
            self._write(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(f"{json.dumps(line)}\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def kills(self) -> Counter[str]:
        return Counter(line["kill"] for line in self.lines if "kill" in line)

    def seals(self) -> list[tuple[int, int]]:
        return [(line["seal"], line["at"]) for line in self.lines if "seal" in line]


@dataclass
class Gateway:
    """A gateway that is started, killed and sealed, always at the same port."""

    number: int
    state: Path | str
    wal: Path
    port: int
    env: Mapping[str, str]
    logs: Path
    tree: Tree | None = None

    @property
    def name(self) -> str:
        return f"g{self.number}"

    @property
    def url(self) -> tuple[str, int, str]:
        return "127.0.0.1", self.port, f"/v1/inboxes/{INBOX}"

    def start(self) -> Tree:
        command = self._command("serve", "--gateway", self.name, "--port", str(self.port))
        self.tree = Tree(command, self._log("serve"), self.env)
        return self.tree

    def up(self) -> None:
        """Wait until it answers."""
        tree = self.tree
        assert tree is not None

        def answers() -> bool:
            if tree.poll() is not None:
                raise AssertionError(f"gateway {self.name} has ended: {_tail(tree)}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        until(answers, f"gateway {self.name} answers", LIMIT)

    def kill(self) -> None:
        if self.tree is not None:
            self.tree.kill_all()

    def seal(self) -> str:
        """Seal its log by the command; returns what is wrong with that."""
        with Tree(self._command("seal", self.name), self._log("seal"), self.env) as run:
            return "" if run.wait(LIMIT) == 0 else f"gateway {self.name} was not sealed: {_tail(run)}"

    def _command(self, what: str, *more: str) -> list[str | Path]:
        place = [str(self.state), INBOX, *more, "--wal", str(self.wal)]
        return [sys.executable, "-m", "spark_ext", "ingest", what, *place]

    def _log(self, what: str) -> Path:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self.logs / f"{self.name}-{what}-{time.monotonic_ns()}.log"


@dataclass
class Trial:
    """One job from its first start to its end, with its gateways and clients."""

    folder: Path
    progress: Progress
    chance: random.Random
    stack: ExitStack
    gateways: int = 2
    env: Mapping[str, str] = field(default_factory=dict)  # for gateways and drivers alone
    cluster: Cluster | None = None  # on which the job runs; its executors are killed instead of Python workers

    def __post_init__(self) -> None:
        if not self.progress.lines:
            self.progress.note(ports=free_ports(self.gateways))
        runs = sum("run" in line for line in self.progress.lines)
        self.progress.note(run=runs)
        self.out = self.folder / "job"
        self.out.mkdir(exist_ok=True)
        self.problems: list[str] = []
        self._env = env = {"PYTHONPATH": str(ROOT), "SPARK_MASTER": "local[2]", **secret(), **self.env}
        if self.cluster is not None:
            env |= self.cluster.environment
        self.served = [
            Gateway(number, self.out / "state", self.out / "wal", port, env, self.folder / "logs")
            for number, port in enumerate(self.progress.lines[0]["ports"])
        ]
        urls = [gateway.url for gateway in self.served]
        self.clients = [
            Client(f"r{runs}c{number}", self.folder / "journal", urls, SIGNING, f"{self.chance.random()}")
            for number in range(CLIENTS)
        ]
        self.driver = self.start()

    def start(self) -> Tree:
        command = [sys.executable, "-m", "tests.chaos.push_job", "--out", str(self.out)]
        (self.folder / "logs").mkdir(exist_ok=True)
        log = self.folder / "logs" / f"driver-{time.monotonic_ns()}.log"
        forks = {} if self.cluster is not None else cheap_jvm.forking(ROOT)
        return self.stack.enter_context(Tree(command, log, {**self._env, **forks}))

    def begin(self) -> None:
        """Start the gateways and clients."""
        until(lambda: self._described() or self.driver.poll() is not None, "the job has described its inbox", LIMIT)
        if self.driver.poll() is not None:
            raise AssertionError(f"the driver has ended: {_tail(self.driver)}")
        for gateway in self.served:
            self.stack.callback(gateway.kill)
            gateway.start()
        for gateway in self.served:
            gateway.up()
        for client in self.clients:
            client.start()

    def _described(self) -> bool:
        return (self.out / "state" / "inboxes" / INBOX / "inbox.json").exists()

    def committed(self) -> int:
        newest = SparkLog(str(self.out / "state" / "queries" / "q" / "checkpoint")).newest_commit()
        return 0 if newest is None else newest + 1

    # -- kills --------------------------------------------------------------------------------------------------------

    def kill_each(self, targets: Sequence[str]) -> None:
        """Kill gateways beside the job's processes, which take longer."""
        given_up = threading.Event()

        def beside() -> None:
            for _ in range(targets.count("gateway")):
                if not given_up.is_set():
                    self.kill("gateway")

        with ThreadPoolExecutor(1) as pool:
            gateways = pool.submit(beside)
            try:
                for target in targets:
                    if target != "gateway":
                        self.kill(target)
            except BaseException:
                given_up.set()
                raise
            gateways.result()

    def kill(self, target: str) -> None:
        began = time.monotonic()
        if target == "gateway":
            time.sleep(self.chance.uniform(0, 1.5))
            self._kill_gateway(self.chance.choice(self.served))
        elif target == "driver" and self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0, 15))  # while it starts, mostly
            self._kill_driver()
        else:
            self._moves(self.chance.choice((0, 0, 1, 3)))
            time.sleep(self.chance.uniform(0, 0.8))
            if target == "driver":
                self._kill_driver()
            else:
                until(lambda: self._kill_one(target), f"a {target} was killed", LIMIT)
        self.progress.note(kill=target)
        say(f"  {self.progress.kills().total()}: kill -9 {target}, {time.monotonic() - began:.1f} s")

    def _kill_gateway(self, gateway: Gateway) -> None:
        gateway.kill()
        time.sleep(self.chance.choice((0, self.chance.uniform(0, 1))))
        if self.chance.random() < SEALS:
            if wrong := gateway.seal():
                self.problems.append(wrong)
            else:
                self.progress.note(seal=gateway.number, at=time.monotonic_ns())
        gateway.start()
        if self.chance.random() < 0.7:  # else it may be killed while it recovers
            gateway.up()

    def _kill_driver(self) -> None:
        self.driver.kill()
        old, self.driver = self.driver, self.start()
        until(lambda: not old.members(), "the killed driver's processes have ended", LIMIT)

    def _kill_one(self, target: str) -> bool:
        self._alive()
        if target == "executor" and self.cluster is not None:
            victims = self.cluster.executors()
        else:
            victims = [one for one in self.driver.members() if _is(target, one)]
        return bool(victims) and self.chance.choice(victims).kill()

    def _moves(self, epochs: int) -> None:
        """Wait for some more epochs of a job that runs."""
        wanted = self.committed() + max(1, epochs)

        def moved() -> bool:
            self._alive()
            return self.committed() >= wanted

        until(moved, "epochs are committed", LIMIT)

    def _alive(self) -> None:
        """Start the driver again if it has ended by itself."""
        if self.driver.poll() is not None:
            self.problems.append(f"the driver has ended by itself: {_tail(self.driver)}")
            if len(self.problems) >= MAX_FAILED_STARTS:
                raise AssertionError("the driver ends again and again")
            self.driver = self.start()

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_clients(self) -> None:
        for client in self.clients:
            client.stop()
            if client.failure is not None:
                self.problems.append(f"{client.name} has failed: {client.failure!r}")

    def drain(self) -> None:
        """Let the job read what is there, and end."""
        self._moves(1)
        for gateway in self.served:
            gateway.up()
        command = [sys.executable, "-m", "spark_ext", "control", str(self.out / "state"), "drain"]
        with Tree(command, self.folder / "logs" / "drain.log", self._env) as run:
            if run.wait(LIMIT) != 0:
                self.problems.append(f"the drain was not accepted: {_tail(run)}")
        if self.driver.wait(LIMIT) != 0:
            self.problems.append(f"the drained job has not finished: {_tail(self.driver)}")

    def judge(self) -> Found:
        said = Journaled.read(self.folder / "journal")
        found = Found.of(said, ids(self.out / "out"))
        self.problems += found.problems()
        seals = self.progress.seals()
        refused = sum((Counter(client.refused) for client in self.clients), Counter())
        say(f"  {found}; {said.redelivered()} redelivered to another gateway, {said.after_seals(seals)} of them after")
        say(f"  one of {len(seals)} seals; requests without success: {dict(refused)}")
        return found


def _is(target: str, one: Member) -> bool:
    """Spark plans for a Python source in a process of its own; the others of its Python processes run tasks."""
    return one.is_python_worker and one.plans == (target == "planner")


def _tail(run: Tree) -> str:
    return f"exit code {run.poll()}\n{tail(run)}"


def round_of(folder: Path, due: Counter[str], chance: random.Random, cluster: Cluster | None) -> list[str]:
    """Kill what is due and was not killed yet, drain, and compare; returns what is wrong."""
    progress = Progress(folder / "progress.jsonl")
    if ended := [line for line in progress.lines if "problems" in line]:
        return [str(one) for one in ended[0]["problems"]]
    with ExitStack() as stack:
        trial = Trial(folder, progress, chance, stack, cluster=cluster)
        left = list((due - progress.kills()).elements())
        chance.shuffle(left)
        try:
            trial.begin()
            trial.kill_each(left)
            trial.stop_clients()
            trial.drain()
            trial.judge()
        except (AssertionError, TimeoutError) as problem:
            trial.problems.append(str(problem))
        trial.progress.note(problems=trial.problems)
        return trial.problems


def main() -> int:
    of = {f"{target}s": (number, f"{target}s killed") for target, number in zip(TARGETS, (20, 5, 5, 5), strict=True)}
    parser = arguments("push", **of, per_round=(60, "kills of one job"))
    parser.add_argument("--cluster", action="store_true", help="on a cluster of two workers; kills its executors")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    due = [target for target in TARGETS for _ in range(getattr(given, f"{target}s"))]
    chance.shuffle(due)
    began, problems = time.monotonic(), []
    cheap_jvm.prepare()
    with workplace("push", given.keep) as folder, ExitStack() as stack:
        cluster = None
        if given.cluster:
            (folder / "cluster").mkdir(exist_ok=True)
            cluster = stack.enter_context(Cluster(folder / "cluster"))
        for number in range(0, len(due), given.per_round):
            share = Counter(due[number : number + given.per_round])
            name = f"round-{number // given.per_round + 1}"
            wrong = round_of(folder / name, share, chance, cluster)
            say(f"{name}: {dict(share)}, {time.monotonic() - began:.0f} s: {wrong or 'exact'}")
            problems += [f"{name}: {one}" for one in wrong]
    killed = ", ".join(f"{count} {target}s" for target, count in Counter(due).items())
    said = verdict(problems, "each acknowledged event is in the table, once")
    say(f"{killed}, seed {given.seed}, {time.monotonic() - began:.0f} s: {said}")
    return 1 if problems else 0


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
