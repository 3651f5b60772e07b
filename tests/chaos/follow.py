"""A job that reads the change data feed of a table while others commit to it, under `kill -9` of driver and workers.

Replayed in the order of their epochs, the changes make a copy of the table; a reading without Spark has the same ones.
"""

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.testing.source_kit import SourceRun
from tests.chaos.harness import Kill, Report, Say
from tests.support.killable import followed, running
from tests.support.processes import Tree
from tests.support.waiting import until

KEYS: Final = 200  # keys of the table
PAUSE_S: Final = 0.7  # between two commits, s
COLUMNS: Final = ("id", "v")  # of the table; all are in its rows' key


class Writer:
    def __init__(self, table: Path, seed: int) -> None:
        self._table, self._rng = table, random.Random(seed)
        self._stopped = threading.Event()
        self.problems: list[str] = []
        write_deltalake(table, self._rows(range(0, KEYS, 2), 0), configuration={"delta.enableChangeDataFeed": "true"})
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop it with a row that comes last; returns the version that it has left."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            write_deltalake(self._table, self._rows([KEYS], 0), mode="append")
        return int(DeltaTable(self._table).version())

    @staticmethod
    def _rows(keys: Any, value: int) -> pa.Table:
        found = list(keys)
        return pa.table({"id": pa.array(found, pa.int64()), "v": pa.array([value] * len(found), pa.int64())})

    def _write(self) -> None:
        value = 0
        while not self._stopped.wait(PAUSE_S):
            value += 1
            try:
                self._commit(value)
            except Exception as problem:
                self.problems.append(f"the writer of the table failed: {problem!r}")
                return

    def _commit(self, value: int) -> None:
        table, rng = DeltaTable(self._table), self._rng
        some = self._rows(rng.sample(range(KEYS), 15), value)
        what = rng.choice(["merge", "merge", "update", "delete", "overwrite", "compact"])
        if what == "merge":
            merge = table.merge(some, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        elif what == "update":
            table.update(updates={"v": str(value)}, predicate=f"id % 7 = {rng.randrange(7)}")
        elif what == "delete":
            table.delete(f"id % 11 = {rng.randrange(11)}")
        elif what == "overwrite" and value % 4 == 0:
            write_deltalake(self._table, self._rows(range(value % 5, KEYS, 5), value), mode="overwrite")
        else:
            table.optimize.compact()


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))


def arrived(folder: Path) -> list[dict[str, Any]]:
    return [row for file in _files(folder) for row in json.loads(file.read_text())["rows"]]


def chaos(folder: Path, *, kills: int, seed: int = 1, say: Say = print) -> Report:
    """Kill a worker, and now and then the driver, while the table is changed; then compare."""
    report, began = Report(f"following a table, seed {seed}", rounds=1), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    writer = Writer(folder / "table", seed)
    left = kills
    while True:
        with running(followed, folder) as driver:
            report.starts += 1
            left = _kills(driver, folder, report, left, rng, say)
            if left == 0 and driver.poll() is None and _arrives(writer.stop(), driver, folder):
                break
            until(lambda: not driver.members(), "the killed driver's JVM and workers have ended", 120)
        if report.starts > kills + 20:
            report.problems.append(f"the job does not start: {(folder / 'driver.log').read_text()[-3000:]}")
            break
    report.problems += [*writer.problems, *_differences(folder)]
    report.tables = {"out": len(arrived(folder))}
    report.seconds = time.monotonic() - began
    return report


def _arrives(version: int, driver: Tree, folder: Path) -> bool:
    until(lambda: _newest(folder) >= version or driver.poll() is not None, f"version {version} has arrived", 900)
    return _newest(folder) >= version


def _epoch(driver: Tree, folder: Path) -> bool:
    """Wait for an epoch; whether it came before the driver ended."""
    before = len(_files(folder))
    until(lambda: len(_files(folder)) > before or driver.poll() is not None, "an epoch", 600)
    return driver.poll() is None


def _kills(driver: Tree, folder: Path, report: Report, left: int, rng: random.Random, say: Say) -> int:
    """Kill workers of a driver, and then it; returns how many kills are left."""
    workers = rng.randint(3, 8)
    while left:
        # Each kill comes after an epoch: it is the job that is killed, and not its start.
        if not _epoch(driver, folder):
            return left
        time.sleep(rng.random())
        what = "worker" if workers else "driver"
        workers -= 1
        if what == "driver":
            driver.kill()
        else:
            found = [member for member in driver.members() if member.is_python_worker]
            if not found or not rng.choice(found).kill():
                continue
        left -= 1
        report.kills.append(Kill(what, f"version {_newest(folder)}", "continues"))
        say(f"{len(report.kills)}: kill -9 {what} at version {_newest(folder)}")
        if what == "driver":
            return left
    return left


def _newest(folder: Path) -> int:
    for file in reversed(_files(folder)):
        if rows := json.loads(file.read_text())["rows"]:
            return int(rows[-1]["_commit_version"])
    return -1


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def _differences(folder: Path) -> list[str]:
    problems, held = [], Counter[Any]()
    found = arrived(folder)
    last = _newest(folder)
    for row in found:
        held[_key(row)] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
        if held[_key(row)] < 0:
            problems.append(f"a row is taken away that is not there: {row}")
    if +held != Counter(map(_key, DeltaTable(folder / "table", version=last).to_pyarrow_table().to_pylist())):
        problems.append(f"the copy differs from version {last} of the table")
    options = {"uid": "in", "path": str(folder / "table"), "follow": "true", "changes": "true", "version": "0"}
    run = SourceRun(DeltaSnapshot, options, limits=[{}])
    while run.epoch():
        pass
    expected = Counter(json.dumps(_plain(row), sort_keys=True) for row in run.trace.all_rows().to_pylist())
    got = Counter(json.dumps(_plain(row), sort_keys=True) for row in found)
    if expected != got:
        more, less = (got - expected).total(), (expected - got).total()
        problems.append(f"{more} changes too many, {less} too few")
    return problems[:20]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_commit_timestamp"}
