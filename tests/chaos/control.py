"""Kills of a job that four clients change meanwhile: `python -m tests.chaos.control --count 100 --seed 1`.

Afterwards each accepted event is there once, at one epoch; each row saw the configuration that `/config?epoch` says,
and is there once; no event is without a final status; a restored checkpoint has the rows of the first time.
"""

import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spark_ext.control.client import LocalClient
from spark_ext.control.requests import Request
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.server import tokens
from spark_ext.spark.logs.spark_log import SparkLog
from tests.chaos.commands import arguments, end_on_sigterm, tail, verdict, workplace
from tests.chaos.control_clients import Client, Sent
from tests.chaos.control_job import EMITS
from tests.chaos.scenario import ROOT
from tests.chaos.verify import ledger_problems
from tests.support import cheap_jvm
from tests.support.cluster import Cluster
from tests.support.controlled import FINAL, Told
from tests.support.processes import Member, Tree
from tests.support.waiting import until

QUERIES = ("a", "b")
CLIENTS = 4
LIMIT = 600.0  # longest time that anything may take, s
MAX_FAILED_STARTS = 3


class Recorder:
    """Watches the offsets of planned epochs: once they are there, they never change."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._seen: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            self.look(newest=3)

    def look(self, newest: int | None = None) -> None:
        """Compare what is there with what was; only the newest epochs, if a number is given."""
        with self._lock:
            for query in QUERIES:
                folder = Path(self._told.checkpoint(query)) / "offsets"
                numbers = sorted(int(file.name) for file in folder.glob("[0-9]*"))
                for number in numbers[-newest:] if newest else numbers:
                    try:
                        text = (folder / str(number)).read_text()
                    except FileNotFoundError:
                        continue  # Spark has deleted it
                    if self._seen.setdefault((query, number), text) != text:
                        self.problems.append(f"the offsets of epoch {query}/{number} have changed")

    @contextmanager
    def restoring(self, cut: dict[str, int]) -> Iterator[None]:
        """Meanwhile epochs behind a cut are forgotten."""
        with self._lock:
            yield
            self._seen = {key: text for key, text in self._seen.items() if key[1] <= cut[key[0]]}

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.look()


class Trial:
    def __init__(
        self, folder: Path, chance: random.Random, env: dict[str, str], stack: ExitStack, cluster: Cluster | None
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.chance, self.cluster = folder, chance, cluster
        self._env, self._stack = {"PYTHONPATH": str(ROOT), **env}, stack
        self.told = Told(folder / "state", {query: folder / query for query in QUERIES})
        self.problems: list[str] = []
        self.kills: Counter[str] = Counter()
        self.starts = self._servers = 0
        self._began = 0.0
        self.token = tokens.create(folder / "tokens", "chaos")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.server = self._serve()
        self.driver = self.start()
        self.recorder = Recorder(self.told)
        self.clients = [self._client(f"client{number}") for number in range(CLIENTS)]

    def _client(self, name: str) -> Client:
        seed = f"{self.chance.random()}"
        url = f"http://127.0.0.1:{self.port}"
        return Client(name, self.told.state, url, self.token, seed, self.folder / "savepoints")

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, *more: str) -> Tree:
        self.starts += 1
        self._began = time.monotonic()
        command = [sys.executable, "-m", "tests.chaos.control_job", "--out", str(self.folder), *more]
        return self._stack.enter_context(Tree(command, self.folder / f"driver-{self.starts}.log", self._env))

    def _serve(self) -> Tree:
        self._servers += 1
        command = [sys.executable, "-m", "spark_ext", "serve", str(self.told.state), "--port", str(self.port)]
        command += ["--tokens", str(self.folder / "tokens")]
        return self._stack.enter_context(Tree(command, self.folder / f"server-{self._servers}.log", self._env))

    def running(self) -> None:
        failed = 0
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if self.driver.poll() is not None:
                failed += 1
                if failed >= MAX_FAILED_STARTS:
                    raise AssertionError(f"the driver has ended {failed} times: {_tail(self.driver)}")
                self.problems.append(f"the driver has ended by itself: {_tail(self.driver)}")
                self.driver = self.start()
            if any(member.is_python_worker for member in self.driver.members()) and self.committed():
                return
            time.sleep(0.2)
        raise AssertionError(f"no epoch in {LIMIT} s: {_tail(self.driver)}")

    def committed(self) -> int:
        began = time.time() - (time.monotonic() - self._began)
        folders = (Path(self.told.checkpoint(query)) / "commits" for query in QUERIES)
        files = [file for folder in folders if folder.exists() for file in folder.glob("[0-9]*")]
        return sum(1 for file in files if _modified(file) >= began)

    def kill(self, target: str) -> None:
        if target == "driver" and self.chance.random() < 0.2:
            time.sleep(self.chance.uniform(0, 5))
        else:
            self.running()
            wanted, limit = self.committed() + self.chance.choice((0, 0, 1, 3)), time.monotonic() + 5
            while self.committed() < wanted and time.monotonic() < limit:
                time.sleep(0.02)
            time.sleep(self.chance.uniform(0, 0.8))
        at = f"{time.monotonic() - self._began:.1f} s after the start"
        if target == "server":
            self.server.kill_all()
            time.sleep(self.chance.uniform(0, 1))
            self.server = self._serve()
        elif target == "driver":
            self.driver.kill()
            old = self.driver
            self.driver = self.start()
            until(lambda: not old.members(), "the killed driver's processes have ended", LIMIT)
        else:
            victims = sorted(self._victims(target), key=lambda one: one.pid)
            if not victims or not self.chance.choice(victims).kill():
                return self.kill(target)
        self.kills[target] += 1
        print(f"  kill -9 {target}, {at}; {len(self.told.events())} events", flush=True)
        return None

    def _victims(self, target: str) -> Sequence[Member]:
        if target == "executor":
            assert self.cluster is not None
            return self.cluster.executors()
        found = [member for member in self.driver.members() if member.is_python_worker]
        return found + (self.cluster.python_workers() if self.cluster is not None else [])

    def run(self, targets: Sequence[str]) -> None:
        """Kill all of these; compare; restore an older checkpoint, kill the driver once more, compare, and drain."""
        self.running()
        with self._changing():
            for target in targets[1:]:
                self.kill(target)
        self._settle()
        self._stop()
        self._compare("stopped")
        self._restore(targets[:1])
        self._client("last").send(_request("drain"))
        code = self.driver.wait(LIMIT)
        if code != 0:
            self.problems.append(f"the drained job has exited with {code}: {_tail(self.driver)}")
        self._compare("drained", final=True)
        self.recorder.close()
        self.problems += self.recorder.problems
        # The restore is an incarnation of its own, before that of its start.
        self.problems += ledger_problems(self.told.state, QUERIES, self.starts + 1)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        for client in self.clients:
            client.start()
        try:
            yield
        finally:
            for client in self.clients:
                client.stop()
                if client.failure is not None:
                    self.problems.append(f"{client.name} has failed: {client.failure!r}")

    def _settle(self) -> None:
        """Lift all limits, and wait until each event has its final status."""
        self.clients[0].calm()
        self.running()

        def settled() -> bool:
            if self.driver.poll() is not None:
                self.running()
            return not self._open()

        try:
            until(settled, "a final status of each event", LIMIT)
        except TimeoutError:
            left = self._open()
            self.problems.append(f"{len(left)} events without a final status: {left[:10]}")

    def _open(self) -> list[str]:
        every = (row for rows in self.told.steps().values() for row in rows)
        done = {row.event_id for row in every if not row.query and row.status in FINAL}
        rows = (row for row in self.told.events() if row.event_id not in done)
        return [f"{row.sequence} {row.kind} for {row.target}, {row.delivery}" for row in rows]

    def _stop(self) -> None:
        self._client(f"stop{self.starts}").send(_request("stop"))
        code = self.driver.wait(LIMIT)
        if code != 3:
            self.problems.append(f"the stopped job has exited with {code}: {_tail(self.driver)}")

    def _restore(self, kills: Sequence[str]) -> None:
        """Continue from an older checkpoint: up to its cut there are the rows of the first time."""
        number, cut = self._cut()
        first = {query: _upto(self.told.table(query), cut[query]) for query in QUERIES}
        events = len(self.told.events())
        with self.recorder.restoring(cut):
            self.driver = self.start("--restore", str(number))
            until(lambda: "restored" in self.driver.text() or self.driver.poll() is not None, "the restore", LIMIT)
        self.running()
        for client in self.clients:
            client.name += "-again"
        with self._changing():
            for target in kills:
                self.kill(target)
            self.running()
        self._settle()
        self._stop()
        print(f"  restored checkpoint {number} of {cut}; {len(self.told.events()) - events} events since", flush=True)
        for query in QUERIES:
            again = _upto(self.told.table(query), cut[query])
            if again != first[query]:
                more, less = again - first[query], first[query] - again
                self.problems.append(
                    f"{query}: up to epoch {cut[query]} the restored table has {more.total()} rows more and "
                    f"{less.total()} rows less than the first time, such as {next(iter(more or less))}"
                )
        self._compare("restored")
        self.driver = self.start()
        self.running()

    def _cut(self) -> tuple[int, dict[str, int]]:
        rows = self.told.ledger.table(CheckpointRow).rows([("query", "=", ""), ("kind", "=", "periodic")])
        gone = {row.checkpoint_id for row in rows if row.status == "RELEASED"}
        kept = {row.checkpoint_id: row for row in rows if row.status == "COMPLETED" and row.checkpoint_id not in gone}
        usable = {number: _epochs(kept[number]) for number in sorted(kept)}
        number = self.chance.choice([one for one, cut in usable.items() if set(cut) == set(QUERIES)])
        return number, usable[number]

    # -- comparison ---------------------------------------------------------------------------------------------------

    def _compare(self, when: str, *, final: bool = False) -> None:
        found = [*self.told.problems(), *self._wrong_configurations(), *self._wrong_answers(), *self._wrong_emitted()]
        if final and self._open():
            found.append(f"{len(self._open())} events without a final status")
        self.problems += [f"{when}: {problem}" for problem in found]

    def _wrong_configurations(self) -> Iterator[str]:
        with LocalClient(str(self.told.state)) as client:
            for query in QUERIES:
                for epoch, config in sorted({(row["epoch"], row["config"]) for row in self.told.table(query)}):
                    said = client.config(query, epoch).to_json()["config"]
                    if json.loads(config) != said:
                        yield f"rows of {query}/{epoch} saw {config}, and /config?epoch={epoch} says {said}"

    def _wrong_answers(self) -> Iterator[str]:
        """Requests that are not in the ledger as they were answered, or are in it although they were refused."""
        rows = {row.idempotency_key: row for row in self.told.events() if row.idempotency_key}
        for client in self.clients:
            last = 0
            for one in client.sent:
                row = rows.get(one.request.idempotency_key or "")
                if one.wanted is not None or one.refusal is not None:
                    yield from _wrong_refusal(one, row)
                    continue
                if one.state is None or row is None or row.event_id != one.state.event_id:
                    yield f"{one.request} was answered with {one.state}, and the ledger has {row}"
                elif row.sequence <= last:
                    yield f"event {row.sequence} was requested after event {last} was accepted"
                else:
                    last = row.sequence

    def _wrong_emitted(self) -> Iterator[str]:
        """What tasks have emitted: once for each of their epochs, whatever was tried again."""
        emitted = Counter(
            (one["query"], one["epoch"], one["part"])
            for one in (row.value["value"] for row in self.told.events() if row.origin == "emit")
        )
        if any(row.event == "restored" for row in self.told.ledger.jobs()):
            return  # epochs behind the cut were there twice, and have emitted twice
        committed = {query: SparkLog(self.told.checkpoint(query)).newest_commit() or 0 for query in QUERIES}
        wanted = {
            (query, row["epoch"], row["part"])
            for query in QUERIES
            for row in self.told.table(query)
            if row["epoch"] % EMITS == 0 and row["epoch"] <= committed[query]
        }
        for one in sorted(wanted | emitted.keys()):
            if emitted[one] != (one in wanted):
                yield f"the task {one} has rows: {one in wanted}; its event was accepted {emitted[one]} times"


def _wrong_refusal(one: Sent, row: Any) -> Iterator[str]:
    if one.refusal is not one.wanted and one.refusal is not None and one.wanted is not None:
        yield f"{one.request} was refused as {one.refusal}, and should be as {one.wanted}"
    if one.refusal is None:
        yield f"{one.request} was accepted, and should be refused as {one.wanted}"
    elif row is not None and one.refusal.value != "key_reused":
        yield f"{one.request} was refused as {one.refusal}, and is in the ledger as event {row.sequence}"


def _request(kind: str) -> Request:
    return Request(kind, idempotency_key=f"{kind}-{time.time_ns()}")


def _epochs(row: CheckpointRow) -> dict[str, int]:
    raw = row.metadata if isinstance(row.metadata, dict) else json.loads(row.metadata)
    return {uid: one.epoch for uid, one in CheckpointMetadata.from_json(raw).queries.items() if one.epoch is not None}


def _upto(rows: Sequence[dict[str, Any]], epoch: int) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows if row["epoch"] <= epoch)


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _tail(run: Tree) -> str:
    return f"exit code {run.poll()}\n{tail(run)}"


def run(folder: Path, count: int, per_round: int, seed: int, cluster: bool) -> tuple[list[str], Counter[str], int]:
    """Kill that many times, over as many rounds as needed; returns what was wrong, what was killed, and events."""
    chance = random.Random(seed)
    cheap_jvm.prepare()
    kinds = ("driver", "worker", "server", "worker", "driver", *(("executor", "executor") if cluster else ()))
    due = [kinds[number % len(kinds)] for number in range(count)]
    chance.shuffle(due)
    problems: list[str] = []
    kills: Counter[str] = Counter()
    events = number = 0
    while due:
        share, due = due[:per_round], due[per_round:]
        number += 1
        began = time.monotonic()
        with ExitStack() as stack:
            place = folder / f"cluster-{number}"
            place.mkdir()
            machines = stack.enter_context(Cluster(place)) if cluster else None
            env = machines.environment if machines is not None else {"SPARK_MASTER": "local[2]"}
            trial = Trial(folder / f"round-{number}", chance, env, stack, machines)
            try:
                trial.run(share)
            except (AssertionError, TimeoutError) as problem:
                trial.problems.append(str(problem))
        kills += trial.kills
        events += len(trial.told.events())
        problems += [f"round {number}: {problem}" for problem in trial.problems]
        rows = {query: len(trial.told.table(query)) for query in QUERIES}
        print(
            f"round {number}: {trial.kills.total()} kills, {trial.starts} starts, {len(trial.told.events())} events, "
            f"rows {rows}, {time.monotonic() - began:.0f} s: {trial.problems or 'exact'}",
            flush=True,
        )
    return problems, kills, events


def main() -> int:
    parser = arguments("control", count=(100, "kills"), per_round=(20, "kills of one job"))
    parser.add_argument("--cluster", action="store_true", help="on a cluster of two workers; kills executors, too")
    given = parser.parse_args()
    began = time.monotonic()
    with workplace("control", given.keep) as folder:
        problems, kills, events = run(folder, given.count, given.per_round, given.seed, given.cluster)
    said = verdict(problems, "each event once, at one epoch; all rows exact")
    killed = ", ".join(f"{name} {number}" for name, number in sorted(kills.items()))
    print(
        f"{kills.total()} kills ({killed}) under {events} events of {CLIENTS} clients, seed {given.seed}, "
        f"{time.monotonic() - began:.0f} s: {said}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
