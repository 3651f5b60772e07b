"""Plays a history with real drivers, and judges it: the output is exact, or the start was refused, for a reason."""

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from spark_ext.errors import ConfigurationError
from spark_ext.sinks.files_2pc import committed_files
from tests.histories import definition as script
from tests.histories.definition import Change, Definition, Run, Step, changed, windows_closed
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

ACTIONS = {"take a savepoint": "savepoint", "restore the savepoint": "restore", "follow the target": "follow"}
LIMIT = 180.0  # time within which each run has to end, s
FOLLOWED = "../followed"  # the target of the follower, beside the others
FIRST_ID = {"a": 0, "b": 10_000, "c": 20_000}


class Driver:
    """One driver process, kept for any number of runs; its whole tree dies at the end of the `with`."""

    def __init__(self, temporary: Path, log: Path) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self.temporary = temporary
        command, env = [sys.executable, "-m", "tests.histories.driver"], cheap_jvm.forking()
        env["TMPDIR"] = str(temporary)
        self._tree = Tree(command, log, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._said: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self._taken = 0
        self._next("the driver's start")

    @property
    def alive(self) -> bool:
        return self._tree.poll() is None

    def _listen(self) -> None:
        for line in self._tree.said():
            self._said.append(json.loads(line))

    def _next(self, what: str) -> dict[str, Any]:
        until(lambda: len(self._said) > self._taken or not self.alive, what, LIMIT)
        if len(self._said) <= self._taken:
            return {"outcome": "KILLED"}
        self._taken += 1
        return self._said[self._taken - 1]

    def start(self, definition: Definition, root: Path, state: Path, do: str = "run", **how: Any) -> None:
        self._send(do=do, definition=asdict(definition), root=str(root), state=str(state), **how)

    def outcome(self) -> dict[str, Any]:
        return self._next("the end of a run")

    @property
    def ended(self) -> bool:
        return len(self._said) > self._taken or not self.alive

    def stop(self, do: str = "stop") -> None:
        self._send(do=do)

    def clean(self) -> None:
        for found in self.temporary.glob("spark-ext-*"):
            shutil.rmtree(found, ignore_errors=True)

    def kill(self) -> None:
        self._tree.kill_all()

    def _send(self, **what: Any) -> None:
        self._tree.tell(json.dumps(what))


class Garage:
    """Drivers that are reused from history to history, as a start of Spark takes longer than a run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._idle: list[Driver] = []
        self._made = 0

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        driver = self._idle.pop() if self._idle else self._new()
        try:
            yield driver
        except BaseException:
            driver.kill()
            raise
        if driver.alive:
            self._idle.append(driver)

    def _new(self) -> Driver:
        self._made += 1
        return Driver(self._root / f"tmp-{self._made}", self._root / f"driver-{self._made}.log")

    def close(self) -> None:
        for driver in self._idle:
            driver.kill()


@dataclass
class World:
    root: Path
    definition: Definition
    garage: Garage
    log: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: int = 0
    number: int = 0
    moves: int = 0
    lost: str = ""  # why the history ended early: the newest state was lost, and the start was refused for it

    def __post_init__(self) -> None:
        for folder, first in FIRST_ID.items():
            place = self.root / "input" / folder
            place.mkdir(parents=True)
            for index in range(script.FILES):
                self._write(place / f"part-{index}.csv", first + index * script.ROWS)
        self.good = self.definition  # the definition of the last start that was not refused
        self.finished: dict[str, Counter[int]] = {}
        """What the target of a finished query held when it finished, per target."""
        self.names: set[str] = set()  # uids with which the first query has been started
        self.writers: dict[str, int] = {}  # how many queries have written into a target, one after the other
        self.copied = False
        """Whether a copy of the state was ever started: the state that is left may not be the newest."""
        self.untried = False
        """Whether it is unknown if the definition and state of the last start would have been refused."""
        self.saved: dict[str, Counter[int]] = {}  # what the targets held when the savepoint was taken
        self.saved_more = False  # whether the job had its second query then
        self.checkpoint: dict[str, Any] = {}
        """The newest checkpoint: its number, the uid of the sink, its target, and what this held then."""
        self.before_restore: Path | None = None
        self.checkpoint_aside: tuple[Path, Path] | None = None

    @staticmethod
    def _write(path: Path, first: int) -> None:
        path.write_text("".join(f"{first + n},w{n}\n" for n in range(script.ROWS)))

    @property
    def state(self) -> Path:
        return self.root / f"state-{self.moves}"

    def content(self, target: str) -> Counter[int]:
        path = self.root / "output" / target
        if not path.exists():
            return Counter()
        if self.definition.format == "delta_2pc" or target == FOLLOWED:
            if not DeltaTable.is_deltatable(str(path)):
                return Counter()
            return Counter(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())
        try:
            files = committed_files(path)
        except ConfigurationError:
            return Counter()
        if not files:
            return Counter()
        return Counter(ds.dataset([str(file) for file in files]).to_table(columns=["id"])["id"].to_pylist())

    def there(self, folder: str) -> set[int]:
        files = (self.root / "input" / folder).glob("*.csv")
        return {int(line.split(",")[0]) for file in files for line in file.read_text().splitlines()}

    def epochs(self, state: Path | None = None) -> int:
        return sum(
            max((int(item.name) for item in folder.iterdir() if item.name.isdigit()), default=-1) + 1
            for folder in (state or self.state).glob("queries/*/checkpoint/commits")
        )

    def judge(self, outcome: dict[str, Any], now: Definition) -> None:
        """No row twice, no row of another folder; a finished query has all."""
        kind = outcome["outcome"]
        if kind in ("CRASHED", "HUNG") or (kind == "FAILED" and outcome.get("error") != "FencedError"):
            self.problems.append(f"{kind}: {outcome.get('error')}: {outcome.get('text', '')[:600]}")
        # A query that had finished is not started, whatever names its operators have now.
        had_finished = outcome.get("finished_before", {}).get(now.query, kind == "KILLED" and bool(self.finished))
        if kind != "REFUSED" and not had_finished:
            self.count_queries(now)
        queries = [(now.query, now.target, now.folder), *([("more", "more", "c")] if now.more else [])]
        for query, target, folder in queries:
            content = self.content(target)
            double = sorted(row for row, count in content.items() if count > self.writers.get(target, 1))
            if double:
                self.problems.append(f"{target}: {len(double)} rows twice, such as {double[:3]}")
            if kind != "FINISHED":
                continue
            if outcome["finished_before"].get(query):
                before = self.finished.get(target)
                if before is not None and content != before:
                    self.problems.append(f"{target}: changed after it had finished")
                continue
            if not double and len(set(content.values())) > 1:
                self.problems.append(f"{target}: FINISHED with some rows more often than others")
            there = self.there(folder) if target == "more" else now.expected(self.there(folder))
            missing, foreign = there - content.keys(), content.keys() - there
            if missing or foreign:
                self.problems.append(f"{target}: FINISHED with {len(missing)} rows missing, {len(foreign)} others")
            self.finished[target] = content

    def count_queries(self, now: Definition) -> None:
        """One whose names are all new is another query, which writes its rows beside those of the former one."""
        uids = {now.query, now.source, now.sink}
        if not uids & self.names:
            self.writers[now.target] = self.writers.get(now.target, 0) + 1
        self.names |= uids

    def play(self, step: Step) -> None:
        self.number += 1
        if isinstance(step, Change):
            self.log.append(step.what)
            kinds = ((ACTIONS, self.act), (script.READS, self.read), (script.HOURLY, self.hourly))
            next((play for names, play in kinds if step.what in names), self.change)(step.what)
            return
        self.log.append(f"{step.how} after {step.after}" if step.how != "end" else "run")
        self.copied = self.copied or step.how == "copies"
        taken_back = self.before_restore is None and self.checkpoint_aside is None
        as_it_was = self.definition == self.good and taken_back and not self.untried
        outcome = self.copies(step) if step.how == "copies" else self.run(step)
        self.log.append(f"-> {outcome['outcome']} {outcome.get('error', '')}".rstrip())
        if outcome["outcome"] != "REFUSED":
            # A driver that was killed may not have come so far as to be refused.
            self.untried = outcome["outcome"] == "KILLED" and not as_it_was
            self.good = replace(self.definition, renamed_from=None)
            self.definition = self.good
            self.before_restore = self.checkpoint_aside = None
            return
        self.refused += 1
        if as_it_was and not self.copied:
            text = f"{outcome.get('error')}: {outcome.get('text', '')[:600]}"
            self.problems.append(f"refused although nothing had changed: {text}")
        self.undo(outcome)

    def run(self, step: Run) -> dict[str, Any]:
        before = self.epochs()
        with self.garage.driver() as driver:
            driver.start(self.definition, self.root, self.state)
            if step.how != "end":
                until(lambda: driver.ended or self.epochs() >= before + step.after, "epochs of a run", LIMIT)
                if step.how == "kill":
                    driver.kill()
                elif step.how in ("stop", "checkpoint") and not driver.ended:
                    driver.stop(step.how)
                elif step.how == "clean":
                    driver.clean()
            if step.how == "takeover" and not driver.ended:
                with self.garage.driver() as other:
                    other.start(self.definition, self.root, self.state, takeover=True)
                    outcome = other.outcome()
                self.judge(driver.outcome(), self.definition)
            else:
                outcome = driver.outcome()
        self.judge(outcome, self.definition)
        for taken in outcome.get("taken", []):
            now, held = self.definition, Counter(taken["ids"])
            self.checkpoint = {**taken, "sink": now.sink, "target": now.target, "held": held}
            if held - self.content(now.target):
                self.problems.append(f"{now.target}: held other rows at checkpoint {taken['checkpoint']}")
        return outcome

    def copies(self, step: Run) -> dict[str, Any]:
        """The job is started from its state and from a copy of it, at the same time; the one that got on stays."""
        copy = self.root / f"copy-{self.number}"
        if self.state.exists():
            shutil.copytree(self.state, copy)
        with self.garage.driver() as one, self.garage.driver() as other:
            one.start(self.definition, self.root, self.state)
            other.start(self.definition, self.root, copy)
            mine, theirs = one.outcome(), other.outcome()
        self.log.append(f"(the copy: {theirs['outcome']} {theirs.get('error', '')})")
        for outcome in (theirs, mine):
            self.judge(outcome, self.definition)
        if mine["outcome"] != "FINISHED" and theirs["outcome"] == "FINISHED":
            shutil.rmtree(self.state, ignore_errors=True)
            copy.rename(self.state)
            return theirs
        return mine

    def act(self, what: str) -> None:
        do, now, place = ACTIONS[what], self.definition, self.root / "savepoint"
        as_it_is = self.before_restore is None and self.checkpoint_aside is None
        ready = {"savepoint": self.state.exists(), "restore": place.exists(), "follow": now.format == "delta_2pc"}
        if not ready[do] or not as_it_is:
            return
        if do == "savepoint":
            shutil.rmtree(place, ignore_errors=True)
            self.saved_more = now.more
            self.saved = {target: self.content(target) for target in (now.target, "more")}
        outcome = self.done(what, do)
        if outcome["outcome"] == "FOLLOWED" and self.content(FOLLOWED) != self.content(now.target):
            self.problems.append(f"{what}: the follower has {self.content(FOLLOWED).total()} rows, or other ones")
        elif outcome["outcome"] == "RESTORED":
            self.good = self.definition = replace(now, renamed_from=None)
            for target in (now.target, *(["more"] if now.more else [])):
                # An epoch that the target had, and Spark's log had not, is taken away: none of a removed query.
                open_rows = 0 if target == "more" and not self.saved_more else now.rows
                lost = (self.saved[target] - self.content(target)).total()
                if lost > open_rows or self.content(target) - self.saved[target]:
                    self.problems.append(f"{target}: not what it held at the savepoint, {lost} rows are missing")

    def done(self, what: str, do: str, *, refusable: bool = True, **how: Any) -> dict[str, Any]:
        with self.garage.driver() as driver:
            driver.start(self.definition, self.root, self.state, do, **how)
            outcome = driver.outcome()
        self.log.append(f"-> {outcome['outcome']} {outcome.get('error', '')}".rstrip())
        if outcome["outcome"] in ("CRASHED", "KILLED", *(() if refusable else ("REFUSED",))):
            self.problems.append(f"{what}: {outcome.get('error')}: {outcome.get('text', '')[:600]}")
        return outcome

    def read(self, what: str) -> None:
        """A user reads the newest checkpoint: rows of another table in the place of the target are none of it."""
        if not self.checkpoint:
            return
        target, aside = self.root / "output" / self.checkpoint["target"], self.root / "aside"
        if other := what.endswith("another table"):
            versions = DeltaTable(target).version() + 1
            target.rename(aside)
            for number in range(versions):
                write_deltalake(target, pa.table({"id": [-number]}), mode="append")
        how = {name: self.checkpoint[name] for name in ("checkpoint", "sink")}
        outcome = self.done(what, "read", refusable=other, **how)
        if outcome["outcome"] == "READ" and Counter(outcome["ids"]) != self.checkpoint["held"]:
            self.problems.append(f"{what}: read {sorted(outcome['ids'])[:3]}, which it did not hold")
        if other:
            shutil.rmtree(target)
            aside.rename(target)

    def hourly(self, what: str) -> None:
        """A run of the hourly job: it ends, has read all that is there, and has emitted what is closed."""
        paused, last = what.endswith("pause"), what.startswith("last")
        left, right = self.there("a"), self.there("b")
        expected = {
            "own": left,
            "windows": self.content("windows").keys() if paused else windows_closed(left, right, last),
            "gated": right if last else set(),
        }
        self.done(what, what, refusable=False)
        for target, ids in expected.items():
            found = self.content(target)
            missing, more = Counter(ids) - found, found - Counter(ids)
            if missing or more:
                self.problems.append(f"{what}: {target}: {missing.total()} rows missing, {more.total()} too many")

    def change(self, what: str) -> None:
        self.definition = changed(self.definition, what, self.number)
        state, backup = self.state, self.root / "backup"
        if what == "another file" or what in script.ARRIVALS:
            folder = script.ARRIVALS.get(what, self.definition.folder)
            place = self.root / "input" / folder
            count = len(list(place.glob("*.csv")))
            self._write(place / f"part-{count}.csv", FIRST_ID[folder] + count * script.ROWS)
        elif what == "back up the state" and state.exists():
            shutil.rmtree(backup, ignore_errors=True)
            shutil.copytree(state, backup)
        elif what == "restore the state" and backup.exists() and state.exists():
            if self.before_restore is None:
                self.before_restore = self.root / f"newest-{self.number}"
                state.rename(self.before_restore)
            else:
                shutil.rmtree(state)
            shutil.copytree(backup, state)
        elif what == "delete the checkpoint" and self.checkpoint_aside is None:
            checkpoint = state / "queries" / self.good.query / "checkpoint"
            if checkpoint.exists():
                aside = self.root / f"checkpoint-{self.number}"
                checkpoint.rename(aside)
                self.checkpoint_aside = (aside, checkpoint)
        elif what == "move the state" and state.exists() and self.checkpoint_aside is None:
            self.moves += 1
            state.rename(self.state)

    def undo(self, outcome: dict[str, Any]) -> None:
        """After a refusal the user takes everything back, and the history continues."""
        self.definition = self.good
        if self.before_restore is not None:
            shutil.rmtree(self.state, ignore_errors=True)
            self.before_restore.rename(self.state)
            self.before_restore = None
            # A checkpoint that was deleted in the restored state went with it.
            if self.checkpoint_aside is not None and self.checkpoint_aside[1].exists():
                self.checkpoint_aside = None
        if self.checkpoint_aside is not None:
            aside, checkpoint = self.checkpoint_aside
            if checkpoint.exists():
                shutil.rmtree(checkpoint)
            aside.rename(checkpoint)
            self.checkpoint_aside = None
        self.log.append("(all taken back)")
