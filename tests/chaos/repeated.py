"""`python -m tests.chaos.repeated`: one job, run with `until="now"` on growing input again and again, and killed.

Each undisturbed run has read what was there when it began; in the end the output is the whole input, each row once.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import pandas as pd
import pyarrow as pa
import typer
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from spark_ext import failpoints
from spark_ext.failpoints import FailPoint
from spark_ext.views.status import read_status
from tests.chaos import turns
from tests.chaos.commands import workplace
from tests.chaos.scenario import ROOT
from tests.servers import postgres
from tests.servers.connect import ConnectServer
from tests.servers.kafka import Broker
from tests.servers.postgres import Database
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
Row = dict[str, Any]


def row(number: int) -> Row:
    return {"id": number, "at": START + timedelta(seconds=10 * number)}


def minutes(rows: int) -> Counter[datetime]:
    """How many of the first rows there are in each minute."""
    return Counter(row(number)["at"].replace(second=0) for number in range(rows))


def plain(rows: Sequence[Row]) -> list[str]:
    return [json.dumps({**one, "at": one["at"].strftime("%Y-%m-%dT%H:%M:%SZ")}) for one in rows]


class Inlet(Protocol):
    options: Mapping[str, Any]

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows; on return a reader finds them."""


class Folder:
    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir()
        self.options: Mapping[str, Any] = {"path": str(place)}

    def add(self, rows: Sequence[Row]) -> None:
        name = f"{rows[0]['id']:09}.json"
        draft = self._place.parent / f".{name}"
        draft.write_text("".join(f"{line}\n" for line in plain(rows)))
        draft.rename(self._place / name)


class Messy(Folder):
    """CSV files that have more columns over time, some of them with a bad line, and files that are no archives."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._random = random.Random(str(place))
        self.options = {**self.options, "schema_location": str(place.parent / "schema.json")}
        self.add([row(0)])

    def add(self, rows: Sequence[Row]) -> None:
        first = rows[0]["id"]
        names = [f"c{n}" for n in range(first // 5) if self._random.random() < 0.7]
        values = lambda id: [id + int(name[1:]) if name < "c2" else f"{name} {id}" for name in names]  # noqa: E731
        lines = [["id", *names, "at"], *([one["id"], *values(one["id"]), one["at"].isoformat()] for one in rows)]
        if self._random.random() < 0.3 and first > 30:  # behind the files by which the types are inferred
            lines.append(["bad", *values(0), START.isoformat()])
        if self._random.random() < 0.5 and first:
            (self._place / f"{first:09}.csv.gz").write_bytes(b"no archive")
        draft = self._place.parent / f".{first:09}.csv"
        draft.write_text("".join(f"{','.join(map(str, line))}\n" for line in lines))
        draft.rename(self._place / draft.name.removeprefix("."))

    def differences(self, rows: Sequence[Row], aside: Sequence[Row]) -> list[str]:
        """By pandas: what is in no row, in other columns, or not put aside once, by its position."""
        wanted = pd.concat([pd.read_csv(file, dtype=str) for file in self._place.glob("*.csv")]).drop(columns="at")
        bad = wanted["id"] == "bad"
        of_files = Counter(one["file"] for one in aside if "byte" not in one)
        pairs = {
            "rows": (_plain_rows(wanted[~bad]), _plain_rows(pd.DataFrame(rows))),
            "files": (Counter(file.name for file in self._place.glob("*.csv.gz")), of_files),
            "lines": (Counter(bad=int(bad.sum())), Counter(bad=len(aside) - of_files.total())),
        }
        return [f"{what}: {a - b} missing, {b - a} too many" for what, (a, b) in pairs.items() if a != b]


def _plain_rows(frame: pd.DataFrame) -> Counter[str]:
    """Without nulls, by which pandas makes numbers floats."""
    rows = [{name: str(one).removesuffix(".0") for name, one in row.items() if pd.notna(one)}
            for row in frame.to_dict("records")]  # fmt: skip
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


class Table:
    def __init__(self, place: Path) -> None:
        self._place = place
        self.options: Mapping[str, Any] = {"path": str(place)}
        self.add([row(0)])

    def add(self, rows: Sequence[Row]) -> None:
        schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
        write_deltalake(str(self._place), pa.Table.from_pylist(list(rows), schema), mode="append")


class Topic:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = broker.topic("in", partitions=2)
        self.options: Mapping[str, Any] = {"bootstrap_servers": broker.bootstrap, "topics": self._topic}

    def add(self, rows: Sequence[Row]) -> None:
        for partition in (0, 1):
            if values := plain(rows[partition::2]):
                self._broker.send(self._topic, values, partition)


class Stages(Topic):
    """A topic up to its present end, and then what comes."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.add([row(0), row(1)])
        common = {"format": "kafka_range", **self.options}
        history = {**common, "ending": "latest", "seam": "partition:offset"}
        stages = {"history": history, "live": {**common, "ending": "none"}}
        named = {f"{stage}.{name}": value for stage, given in stages.items() for name, value in given.items()}
        self.options = {"stages": "history,live", **named}


class Relation:
    def __init__(self, database: Database, incremental: str) -> None:
        self._database = database
        database.run("CREATE TABLE rows (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
        common = {**database.options, "table": "rows", "incremental": incremental, "poll_interval": "10 ms"}
        self.options: Mapping[str, Any] = common | ({"incremental_column": "id"} if incremental == "column" else {})

    def add(self, rows: Sequence[Row]) -> None:
        values = ", ".join(f"({one['id']}, '{one['at'].isoformat()}')" for one in rows)
        self._database.run(f"INSERT INTO rows VALUES {values}")


@contextmanager
def _topic(folder: Path, kind: type[Topic] = Topic) -> Iterator[Inlet]:
    with Broker(folder / "broker") as broker:
        yield kind(broker)


@contextmanager
def _relation(folder: Path, incremental: str) -> Iterator[Inlet]:
    with postgres.running() as server:
        yield Relation(server.database(), incremental)


def _folder(folder: Path) -> AbstractContextManager[Inlet]:
    return nullcontext(Folder(folder / "in"))


# By name: the shape of the job, how many rows there are at the beginning, and what opens the input in a folder.
INLETS: Mapping[str, tuple[str, int, Callable[[Path], AbstractContextManager[Inlet]]]] = {
    "delta": ("delta", 1, lambda folder: nullcontext(Table(folder / "in"))),
    "early": ("early", 0, _folder),
    "files": ("files", 0, _folder),
    "hybrid": ("hybrid", 2, partial(_topic, kind=Stages)),
    "rules": ("rules", 0, _folder),
    "inferred": ("inferred", 1, lambda folder: nullcontext(Messy(folder / "in"))),
    "kafka": ("kafka", 0, _topic),
    "linked": ("linked", 0, _folder),
    "native": ("native", 0, _folder),
    "postgres-column": ("postgres", 0, partial(_relation, incremental="column")),
    "postgres-xmin": ("postgres", 0, partial(_relation, incremental="xmin")),
    "windows": ("windows", 0, _folder),
}

EARLY = {
    FailPoint.EARLY_COPIED: "kill", FailPoint.EARLY_BEFORE_COMMIT: "kill-driver",
    FailPoint.EARLY_COMMITTED: "kill-driver", FailPoint.EARLY_SHOWN: "kill",
}  # fmt: skip
"""How a driver is killed at the steps in which it shows open windows."""

WITHIN = 600.0  # a run takes less, s
ENDS_WITHIN = 120.0  # so does the end of the driver behind its last run, s


@dataclass
class Outcome:
    runs: int = 0
    kills: int = 0
    rows: int = 0
    seconds: list[float] = field(default_factory=list)  # of runs that were not killed
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)  # by run: files and bytes of the state directory
    problems: list[str] = field(default_factory=list)


class Drivers:
    """One driver for all series, as its start takes longer than a run; another one when it was killed."""

    def __init__(self, folder: Path, env: Mapping[str, str] = {}) -> None:
        self._log = folder / "driver.log"
        self._env = env
        self.dies = failpoints.VARIABLE in env  # at a step, once
        self._driver: Tree | None = None

    def __enter__(self) -> "Drivers":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self._driver is not None:
            self._driver.kill_all()

    def run(self, shape: str, folder: Path, options: Mapping[str, Any]) -> Tree:
        """The driver, which makes the runs of a job from now on that are not done."""
        if self._driver is None or self._driver.poll() is not None:
            command: list[str | Path] = [sys.executable, ROOT / "tests" / "chaos" / "repeated_job.py"]
            variables = {"SPARK_MASTER": "local[2]", **cheap_jvm.forking(ROOT), **self._env}
            self._driver = Tree(command, self._log, variables, stdin=subprocess.PIPE)
        self._driver.tell(json.dumps([shape, str(folder), dict(options)]))
        return self._driver

    def end(self) -> list[str]:
        """End the driver behind its last run; returns what is wrong with that."""
        if self._driver is None:
            return []
        self._driver.tell(None)
        code = self._driver.wait(ENDS_WITHIN)
        if code == 0:
            return []
        ended = f"the driver's exit code is {code}" if code is not None else "the driver does not end"
        return [f"{ended}: {self._driver.text()[-2000:]}"]


class Series:
    def __init__(self, name: str, folder: Path, seed: int, drivers: Drivers, workers: float = 0.0) -> None:
        self._shape, self._next, self._open = INLETS[name]
        self._folder, self._drivers = folder, drivers
        self._random, self._workers = random.Random(seed), workers
        self._usual = 3.0
        self._warm: list[float] = []
        self.outcome = Outcome()

    def run(self, runs: int, kills: int, say: Callable[[str], None] = lambda what: None) -> Outcome:
        """Make the runs; in `kills` of them the driver, or one of its workers, is killed at a random moment."""
        killed = set(self._random.sample(range(1, runs), min(kills, runs - 1)))
        with self._open(self._folder) as inlet:
            driver = self._drivers.run(self._shape, self._folder, inlet.options)
            try:
                for number in range(runs):
                    driver = self._one(number, inlet, driver, kill=number in killed, last=number == runs - 1)
                    if number % 10 == 9:
                        self.outcome.sizes[number + 1] = _size(self._folder / "state")
                        say(f"{number + 1} runs, {self.outcome.kills} kills, {self._next} rows")
            except BaseException:
                self._drivers.kill()  # it waits for a run that does not come
                raise
        self.outcome.runs, self.outcome.rows = runs, self._next
        self.outcome.problems += self._differences()
        if isinstance(inlet, Messy):
            tables = self._folder / "out", self._folder / "state" / "bad_rows" / "table"
            texts = zip(tables, ("row", "position"), strict=True)
            found = [
                DeltaTable(one).to_pyarrow_table()[name].to_pylist() if one.exists() else [] for one, name in texts
            ]
            self.outcome.problems += inlet.differences(*(list(map(json.loads, one)) for one in found))
        return self.outcome

    def _add(self, inlet: Inlet) -> None:
        count = self._random.choice([0, 1, 3, 12])
        if count:
            inlet.add([row(number) for number in range(self._next, self._next + count)])
            self._next += count

    def _one(self, number: int, inlet: Inlet, driver: Tree, *, kill: bool, last: bool) -> Tree:
        self._add(inlet)
        there = self._next
        done = turns.done(self._folder, number)
        turns.give(self._folder, number, last=last)
        if kill:
            if self._shape == "early" and self._random.random() < 0.6:
                # Most kills come while windows are shown, if the run shows any.
                until(lambda: self._copies.exists() or done.exists(), f"run {number}", WITHIN)
            time.sleep(self._random.uniform(0, 1.2 * self._usual))
            self.outcome.kills += 1
            hit = self._random.random() < self._workers
            found = [one for one in driver.members() if one.is_python_worker] if hit else []
            kill = not (found and self._random.choice(found).kill())
        if kill:
            driver.kill()
            until(lambda: not driver.members(), "the killed driver's processes have ended", 60)
            driver = self._drivers.run(self._shape, self._folder, inlet.options)
        if not last and self._random.random() < 0.3:
            # Comes while the run is under way: this run reads it, or the next one.
            self._add(inlet)
        until(lambda: done.exists() or driver.poll() is not None, f"run {number}", WITHIN)
        if not done.exists() and self._drivers.dies:
            self._drivers.dies = False
            self.outcome.kills += 1
            driver.kill()
            until(lambda: not driver.members(), "the killed driver's processes have ended", 60)
            driver = self._drivers.run(self._shape, self._folder, inlet.options)
            until(lambda: done.exists() or driver.poll() is not None, f"run {number}", WITHIN)
        if not done.exists():
            self.outcome.problems.append(f"run {number}: the driver has ended: {driver.text()[-3000:]}")
            raise typer.Exit(1)
        result = json.loads(done.read_text())
        self._check(number, there, result, last)
        if not kill:
            self.outcome.seconds.append(result["seconds"])
        if not kill and not result["first"]:  # the first run of a driver takes several times as long
            self._warm.append(result["seconds"])
            self._usual = sorted(self._warm)[len(self._warm) // 2]
        return driver

    def _check(self, number: int, there: int, result: dict[str, Any], last: bool) -> None:
        wanted = "FINISHED" if last else "SUSPENDED"
        if result["state"] != wanted:
            self.outcome.problems.append(f"run {number} is {result['state']} for {wanted}")
        if self._shape == "early":
            # A file that came while the run was under way is in it as a whole, or not at all.
            found = Counter(dict(self._output()))
            if self._copies.exists():
                self.outcome.problems.append(f"run {number} has left a copy of its state")
            if found not in (minutes(there), minutes(self._next)):
                self.outcome.problems.append(f"run {number} shows {found} for {minutes(there)}")
        elif self._shape != "windows":
            missing = set(range(there)) - set(self._output())
            if missing:
                self.outcome.problems.append(f"run {number} has not read {len(missing)} rows that were there")

    @property
    def _copies(self) -> Path:
        return self._folder / "state" / "queries" / "out" / "early"

    def _output(self) -> list[Any]:
        place = self._folder / "out"
        if not (place / "_delta_log").exists():
            return []
        table = DeltaTable(place).to_pyarrow_table()
        if self._shape in ("early", "windows"):
            return [(one["start"], one["n"]) for one in table.to_pylist()]
        aside = self._folder / "state" / "bad_rows" / "table"
        if self._shape != "rules" or not aside.exists():
            return list(table["id"].to_pylist())
        rows = map(json.loads, DeltaTable(aside).to_pyarrow_table()["raw"].to_pylist())
        assert not any(one % 3 == 0 for one in table["id"].to_pylist())
        return [*table["id"].to_pylist(), *(one["id"] for one in rows)]

    def _differences(self) -> list[str]:
        if self._shape in ("early", "windows"):
            wanted: Counter[Any] = Counter(minutes(self._next).items())
        else:
            wanted = Counter(range(self._next))
            if self._shape == "rules":
                told = read_status(str(self._folder / "state")).query("out").rule_failures
                if told["third"] > len(range(0, self._next, 3)) or told["odd"] > len(range(0, self._next, 2)):
                    return [f"{told} failures of {self._next} rows"]  # what was told last before a kill may be missing
        found = Counter(self._output())
        return [
            f"{what}: {sum(some.values())} rows, such as {next(iter(some))}"
            for what, some in (("missing", wanted - found), ("too many", found - wanted))
            if some
        ]


def _size(place: Path) -> tuple[int, int]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files if path.exists())


def main(
    source: Annotated[str, typer.Option(help=f"comma-separated, or 'all': {', '.join(INLETS)}")] = "all",
    runs: Annotated[int, typer.Option(min=2)] = 100,
    kills: Annotated[int, typer.Option(min=0)] = 20,
    seed: Annotated[int, typer.Option()] = 1,
    steps: Annotated[bool, typer.Option(help="kill the job 'early' at each of its steps instead")] = False,
    workers: Annotated[float, typer.Option(help="share of kills that hit a Python worker, and not the driver")] = 0.0,
    remote: Annotated[bool, typer.Option(help="by clients of a server of Spark Connect")] = False,
    keep: Annotated[Path | None, typer.Option(help="work in this directory, and keep everything")] = None,
) -> None:
    """Run a job on growing input again and again, kill it, and compare its output."""
    console = Console()
    names = list(INLETS) if source == "all" else [name.strip() for name in source.split(",")]
    failed = False
    cheap_jvm.prepare()
    with workplace("repeated", keep) as folder, ExitStack() as stack:
        env = {}
        if remote:
            env[cheap_jvm.REMOTE] = stack.enter_context(ConnectServer(folder / "server.log")).address
        points = [f"{point}={how}" for point, how in EARLY.items()] if steps else [""]
        for name, point in [(name, point) for name in (["early"] if steps else names) for point in points]:
            place = folder / (point.partition("=")[0] or name)
            place.mkdir(parents=True)
            say = partial(console.print, f"{name}:", markup=False)
            if point:
                env = {**env, failpoints.VARIABLE: point, failpoints.ONCE_DIR: str(place)}
            with Drivers(place, env) as drivers:
                found = Series(name, place, seed, drivers, workers).run(runs, 0 if point else kills, say)
                if point and found.kills != 1:
                    found.problems.append(f"nothing was killed at {point}")
                found.problems += drivers.end()
            usual = sorted(found.seconds)[len(found.seconds) // 2] if found.seconds else 0
            grown = [f"{count} files, {size // 1024} KiB after {run}" for run, (count, size) in found.sizes.items()]
            console.print(
                f"{point or name}: {found.runs} runs, {found.kills} kills, {found.rows} rows, "
                f"median run {usual:.1f} s, {len(found.problems)} problems; state: {'; '.join(grown)}",
                markup=False,
            )
            for problem in found.problems:
                console.print(f"  {problem}", markup=False)
            failed = failed or bool(found.problems)
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
