"""A job that is changed while it runs: `python -m tests.support.steered FOLDER`, or in the process of a test.

Query `q` reads two channels that do not end and one that does; `r` a source of its own.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.control.client import LocalClient
from spark_ext.control.event_state import EventState
from spark_ext.control.requests import Request
from spark_ext.jobs.job import Job
from tests.support import cheap_jvm
from tests.support.controlled import Told, generated, pickled_by_value, told
from tests.support.processes import Tree
from tests.support.waiting import until

RATE = 100  # rows per second of each source that does not end
ENDS = 30  # rows of the one that does


def steered(spark: SparkSession, folder: Path, **settings: Any) -> Job:
    pickled_by_value()
    live = {"rows_per_second": RATE, "max_rows_per_epoch": RATE, "readers": 2}
    q = generated(spark, "in", channels=2, **live).union(generated(spark, "ends", rows=ENDS))
    r = generated(spark, "other", channels=1, **live)
    given = {"interval": "50 ms", "checkpoint_interval": "200 ms", "retained_checkpoints": 3, "restart_backoff": 20}
    made = sx.Job(spark, "lab", state=folder / "state", **{**given, **settings})
    if not DeltaTable.is_deltatable(str(folder / "versions")):
        write_version(folder)
    lookup = made.lookup("versions", folder / "versions", key="name")
    for query, frame in (("q", q), ("r", r)):
        rows = told(frame, query, emits=3, stages=True, lookup=lookup)
        made.add(query, rows.writeStream.format("delta_2pc").options(uid=f"{query}-table", path=str(folder / query)))
    return made


def write_version(folder: Path) -> int:
    """Write the next version of the table `versions`; its only row has the version's number, which is returned."""
    place = str(folder / "versions")
    number = DeltaTable(place).version() + 1 if DeltaTable.is_deltatable(place) else 0
    write_deltalake(place, pa.table({"name": ["version"], "number": [number]}), mode="overwrite")
    return number


class Steering:
    def __init__(self, folder: Path, queries: tuple[str, ...] = ("q", "r")) -> None:
        self.folder = folder
        self.client = LocalClient(str(folder / "state"))
        self.told = Told(folder / "state", {query: folder / query for query in queries})

    def send(self, kind: str, target: str = "job", value: Any = None, **more: Any) -> EventState:
        return self.client.send(Request(kind, target, value, **more))

    def set(self, key: str, value: Any, target: str = "job", **more: Any) -> EventState:
        return self.send("set_config", target, {"key": key, "value": value}, **more)

    def reload(self, **more: Any) -> EventState:
        """Write a version of the lookup's table, and ask for it."""
        value = {"lookup": "versions", "version": write_version(self.folder)}
        return self.send("reload", value=value, **more)

    def over(self, *events: EventState) -> list[EventState]:
        """Wait until events have their final status."""
        return [self._over(event) for event in events]

    def _over(self, event: EventState) -> EventState:
        found = self.client.wait(event.event_id, 300)
        assert found.final, f"no end of {found}"
        return found

    def committed(self, query: str = "q") -> int:
        """The newest committed epoch; -1 before the first."""
        folder = Path(self.told.checkpoint(query)) / "commits"
        return max((int(file.name) for file in folder.glob("[0-9]*")), default=-1)

    def sees(self, key: str, value: Any, query: str = "q") -> None:
        wanted = f'"{key}": {value}'
        until(lambda: any(wanted in row["config"] for row in self.told.table(query)), f"rows that saw {wanted}")

    def counts(self) -> Mapping[str, int]:
        return {query: len(self.told.table(query)) for query in self.told.queries}


@contextmanager
def driver(folder: Path, **env: str) -> Iterator[Tree]:
    given = {"PYTHONPATH": str(Path(__file__).parents[2]), **env}
    command: list[str | Path] = [sys.executable, "-m", "tests.support.steered", folder]
    with Tree(command, folder / "driver.log", given) as run:
        yield run


def main(folder: str) -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    conf |= cheap_jvm.SHORT
    master = os.environ.get("SPARK_MASTER")
    spark = sx.session("steered", master=master, conf=conf) if master else cheap_jvm.session("steered", conf)
    steered(spark, Path(folder)).run(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
