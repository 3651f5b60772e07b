"""Power failures of an inbox and its job: `python -m tests.chaos.unsynced --points 200`.

A library records each call with which gateways and the job change files, while clients push events and both are killed
at times. Then the folder is made again as a power failure at a random moment would have left it, with what was synced
and nothing else. Gateways recover there, and the job reads: each event that was acknowledged until that moment must be
in its table.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ext.errors import SparkExtError
from spark_ext.ingest.description import ABOUT, GATEWAYS, InboxDescription
from spark_ext.ingest.log import InboxLog, channels
from spark_ext.ingest.opening import seal
from spark_ext.storage import LocalFolder
from tests.chaos.commands import arguments, end_on_sigterm, verdict, workplace
from tests.chaos.push import Progress, Trial, ids, secret
from tests.chaos.push_client import Journaled
from tests.chaos.push_job import INBOX
from tests.chaos.scenario import ROOT
from tests.chaos.syncs import Call, Disk, Tree, calls
from tests.support import cheap_jvm, processes
from tests.support.waiting import until

say = partial(print, flush=True)
LIMIT = 180.0  # longest time that the job may take to read what is there, s
READ = "FINISHED"  # how it ends then
KEPT = 0.9  # with `--partly`, how often a file or folder keeps what was not synced


def compiled(folder: Path, root: Path, record: Path) -> dict[str, str]:
    """The environment of processes whose calls below `root` are appended to `record`."""
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "RECORDED_ROOT": str(root), "RECORDED_TO": str(record)}


def read_tree(root: Path) -> Tree:
    return {str(one.relative_to(root)): None if one.is_dir() else one.read_bytes() for one in root.rglob("*")}


def write_tree(root: Path, tree: Tree) -> None:
    """Make a folder that has this alone."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in tree.items():  # folders come before what is in them
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def record(folder: Path, seconds: float, kills: Counter[str], chance: random.Random) -> None:
    """Let gateways and a job work in `folder/job`, and be killed; `folder/record` has what they did."""
    root, to = folder / "job", folder / "record"
    env = compiled(folder, root, to)
    with ExitStack() as stack:
        trial = Trial(folder, Progress(folder / "progress.jsonl"), chance, stack, env=env)
        trial.begin()
        due = list(kills.elements())
        chance.shuffle(due)
        for target in due:
            time.sleep(seconds / (len(due) + 1))
            trial.kill(target)
        time.sleep(seconds / (len(due) + 1))
        trial.stop_clients()
        trial.drain()
        found = trial.judge()
        assert found.acknowledged and not trial.problems, trial.problems


def points(done: list[Call], said: Journaled, count: int, chance: random.Random) -> list[int]:
    """Random moments between the first acknowledgement and the last call."""
    first, last = min(said.acknowledged.values()), max(call.at for call in done)
    return sorted(chance.randint(first, last) for _ in range(count))


def trees(root: Path, done: list[Call], moments: list[int], lucky: Callable[[], bool]) -> Iterator[tuple[int, Tree]]:
    """What each of these moments would have left; in the end, what was there."""
    disk, place = Disk(str(root)), 0
    for moment in moments:
        while place < len(done) and done[place].at <= moment:
            disk.apply(done[place])
            place += 1
        yield moment, disk.left(lucky)
    for call in done[place:]:
        disk.apply(call)
    yield 0, disk.seen()


def readable(table: Path) -> set[str]:
    """The ids of the events in a table, also in one of whose files some are damaged."""
    found: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                with suppress(OSError, pa.ArrowInvalid):
                    place = table / unquote(action["add"]["path"])
                    found.update(pq.read_table(place, columns=["id"], partitioning=None)["id"].to_pylist())
    return found


class Replay:
    """The folder of a job and its gateways, made again after each power failure."""

    def __init__(self, root: Path, said: Journaled) -> None:
        self._root, self._said = root, said
        self._driver: processes.Tree | None = None
        self._turns = 0
        self.outcomes: Counter[str] = Counter()

    def judged(self, moment: int, tree: Tree) -> list[str]:
        """What is wrong with what a power failure at a moment has left."""
        write_tree(self._root, tree)
        promised = {one for one, at in self._said.acknowledged.items() if at <= moment}
        wrong = []
        kept = readable(self._root / "out")
        try:
            kept |= self._recovered()
        except (SparkExtError, OSError) as problem:
            wrong.append(f"a gateway does not recover: {problem}")
        if lost := promised - kept:
            wrong.append(f"{len(lost)} events are neither saved nor in the table, such as {min(lost)}")
        how = self._read()
        if how == READ:
            try:
                rows = Counter(ids(self._root / "out"))
            except OSError as problem:
                rows = Counter(promised)
                wrong.append(f"the job has finished, and its table cannot be read: {str(problem).splitlines()[0]}")
            how += ", and events are there twice" if max(rows.values(), default=0) > 1 else ""
            if missing := promised - rows.keys():
                wrong.append(f"{len(missing)} events are not in the table, such as {min(missing)}")
        self.outcomes[how] += 1
        return wrong

    def _recovered(self) -> set[str]:
        """The ids of the events in the logs of all gateways, which recover and seal them."""
        inbox = LocalFolder(self._root / "state" / "inboxes" / INBOX)
        about = InboxDescription.from_json(inbox.read(ABOUT).decode(), "the inbox")
        found: set[str] = set()
        for name in channels(inbox):
            seal(about, inbox, self._root / "wal", name.partition("~")[0], accept_loss=False)
        for name in channels(inbox):
            log = InboxLog(inbox.below(f"{GATEWAYS}/{name}"), name)
            entries = [log.entry(number) for number in log.numbers()]
            for entry in (one for one in entries if one is not None and one.rows):
                bodies = log.read_segment(entry.name, 0, entry.rows).column("body").to_pylist()
                found.update(json.loads(body)["id"] for body in bodies)
        return found

    def _read(self) -> str:
        """Let the job read all that gateways have saved, in one driver for all turns; returns how it ended."""
        if self._driver is None or self._driver.poll() is not None:
            command = [sys.executable, "-m", "tests.chaos.push_job", "--out", str(self._root)]
            env = {"SPARK_MASTER": "local[2]", **secret(), **cheap_jvm.forking(ROOT)}
            log = self._root.parent / f"driver-{time.monotonic_ns()}.log"
            self._driver = processes.Tree([*command, "--turns", "yes"], log, env, stdin=subprocess.PIPE)
        self._turns += 1
        driver, answer = self._driver, f"turn {self._turns}: "
        driver.tell(str(self._turns))
        until(lambda: answer in driver.text() or driver.poll() is not None, "the job has read what is there", LIMIT)
        return driver.text().partition(answer)[2].partition("\n")[0] or f"the driver has ended with {driver.poll()}"

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill_all()


def main() -> int:
    parser = arguments("unsynced", points=(200, "power failures"), seconds=(30, "for which clients push events"))
    partly = "a random part of what was not synced is there as well, in any order"
    parser.add_argument("--partly", action="store_true", help=partly)
    given = parser.parse_args()
    chance, problems, began = random.Random(given.seed), [], time.monotonic()
    cheap_jvm.prepare()
    with workplace("unsynced", given.keep) as folder:
        if not (folder / "record").exists():
            record(folder, given.seconds, Counter({"gateway": 3, "driver": 1}), random.Random(given.seed))
        done, said = list(calls((folder / "record").read_bytes())), Journaled.read(folder / "journal")
        say(f"{len(done)} calls, {len(said.acknowledged)} events acknowledged, {time.monotonic() - began:.0f} s")
        root = folder / "job"
        if not (folder / "whole").exists():
            root.rename(folder / "whole")  # as it was at the end
        replay = Replay(root, said)
        lucky = (lambda: chance.random() < KEPT) if given.partly else (lambda: False)
        try:
            for moment, tree in trees(root, done, points(done, said, given.points, chance), lucky):
                if not moment:
                    wrong = sorted(differences(tree, read_tree(folder / "whole")))
                    problems += [f"the record differs in {name}" for name in wrong]
                    continue
                wrong = replay.judged(moment, tree)
                problems += [f"at {moment}: {one}" for one in wrong]
                say(f"  {sum(replay.outcomes.values())}: {len(tree)} files and folders: {wrong or 'complete'}")
        finally:
            replay.close()
        for how, count in replay.outcomes.most_common():
            say(f"{count} times the job: {how}")
    said_ = verdict(problems, "no acknowledged event is missing")
    say(f"{given.points} power failures, seed {given.seed}, {time.monotonic() - began:.0f} s: {said_}")
    return 1 if problems else 0


def differences(one: Tree, other: Tree) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name, b"?") != other.get(name, b"?")}


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
