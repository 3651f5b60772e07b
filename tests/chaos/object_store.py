"""`python -m tests.chaos.object_store`: kills a job in an object store; exits with 1 on a difference.

The job is started again until it ends. Then its tables must be those of pandas, and the store must hold no object that
nothing needs: no file of a dead incarnation, no unfinished file of Spark's logs, no upload in parts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import pyarrow as pa
import typer
from deltalake import DeltaTable
from rich.console import Console

from spark_ext.datafiles.writer import owner_of
from tests.chaos import object_store_flights, object_store_job
from tests.chaos.__main__ import show
from tests.chaos.harness import Known, random_kills
from tests.chaos.scenario import ROOT, Scenario
from tests.chaos.verify import Content
from tests.servers.object_store import Bucket, running

_UNFINISHED = re.compile(r"/\.[^/]+\.tmp$")
"""Files that Spark or Hadoop was about to rename."""


@dataclass(frozen=True)
class InStore(Scenario):
    """A job in a bucket: each of its output folders is one there, of the same name."""

    bucket: Bucket | None = None

    def uri(self, out: Path) -> str:
        """Where everything of it is."""
        assert self.bucket is not None
        return f"{self.bucket.uri}/{out.name}"

    def command(self, out: Path) -> list[str]:
        """See `Scenario`."""
        given = ["--data", str(self.data)] if self.data is not None else []
        return [sys.executable, str(self.script), "--out", self.uri(out), *given]

    def state(self, out: Path) -> str:
        """See `Scenario`."""
        return f"{self.uri(out)}/state"

    def content(self, out: Path) -> dict[str, Content]:
        """See `Scenario`."""
        return {name: Content(DeltaTable(f"{self.uri(out)}/{name}").to_pyarrow_table()) for name in self.tables}

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        """See `Scenario`."""
        assert self.bucket is not None
        found = [f"unfinished: {key}" for key in self.bucket.keys(f"{out.name}/") if _UNFINISHED.search(key)]
        found += [f"upload in parts: {key}" for key in self.bucket.uploads() if key.startswith(f"{out.name}/")]
        for name, uid in self.tables.items():
            found += dead_files(self.bucket, f"{out.name}/{name}", uid)
        for name in self.exchanges:
            place = f"{out.name}/state/exchanges/{name}"
            found += [f"rows that all have read: {key}" for key in self.bucket.keys(f"{place}/data/i")]
        drafts = self.bucket.keys(f"{out.name}/state/restoring/")
        return found + [f"left by a restore: {key}" for key in drafts]


def dead_files(bucket: Bucket, table: str, uid: str) -> list[str]:
    """Data files of dead incarnations that no commit of a table refers to.

    Args:
        bucket: that has the table.
        table: its folder.
        uid: of its sink.
    """
    keys = bucket.keys(f"{table}/")
    lines = [
        json.loads(line)
        for key in keys
        if re.search(r"/_delta_log/\d{20}\.json$", key)
        for line in bucket.get(key).splitlines()
    ]
    referred = {unquote(line["add"]["path"]).rpartition("/")[2] for line in lines if "add" in line}
    holder = DeltaTable(f"{bucket.uri}/{table}").transaction_version(f"fence:{uid}") or 0
    out = []
    for key in keys:
        name = key.rpartition("/")[2]
        owner = owner_of(name)
        if owner is not None and name not in referred and owner[1] < holder:
            out.append(f"{key} of dead incarnation {owner[1]} was left; the table is incarnation {holder}'s")
    return out


def small(bucket: Bucket) -> InStore:
    """The job of `object_store_job`."""
    return InStore(
        "store",
        ROOT / "tests" / "chaos" / "object_store_job.py",
        None,
        object_store_job.UIDS,
        object_store_job.QUERIES,
        exchanges=("x",),
        look_every=1.0,
        bucket=bucket,
    )


def flights(bucket: Bucket, data: Path) -> InStore:
    """The flights example, with its state, its input and its outputs in the store."""
    names = ("daily", "hourly", "with_weather")
    return InStore(
        "flights",
        ROOT / "tests" / "chaos" / "object_store_flights.py",
        data,
        {name: f"{name}-table" for name in names},
        names,
        look_every=1.0,
        bucket=bucket,
    )


def known(scenario: InStore, tables: dict[str, pa.Table]) -> Known:
    """What the tables must hold."""
    return Known(scenario, {name: Content(table) for name, table in tables.items()})


def main(
    kills: Annotated[int, typer.Option(min=0, help="random kills")] = 25,
    seed: Annotated[int, typer.Option(help="random seed; determines the order of events")] = 1,
    job: Annotated[str, typer.Option(help="flights, or small")] = "flights",
    per_round: Annotated[int | None, typer.Option(min=1, help="random kills per round of the job at most")] = None,
    minutes: Annotated[float | None, typer.Option(help="after which nothing is killed any more")] = None,
    data: Annotated[Path, typer.Option(help="prepared input of the flights job")] = Path("data"),
) -> None:
    """Kill a job in an object store with SIGKILL, start it again until it ends, and compare all output."""
    if job not in ("flights", "small"):
        raise typer.BadParameter(f"there is no job '{job}'; choose flights or small")
    console = Console()
    with running() as store, tempfile.TemporaryDirectory(prefix="spark-ext-chaos-") as place:
        bucket = store.bucket()
        env = {**bucket.environment, "SPARK_MASTER": "local[2]"}
        os.environ.update(env)
        if job == "flights":
            scenario = flights(bucket, data.resolve())
            tables = object_store_flights.expected()
        else:
            scenario, tables = small(bucket), object_store_job.expected()
        report = random_kills(
            known(scenario, tables),
            Path(place),
            kills=kills,
            targets=["driver", "all", "worker"],
            seed=seed,
            env=env,
            per_round=per_round,
            seconds=None if minutes is None else 60 * minutes,
            say=lambda what: console.print(what, markup=False, highlight=False),
        )
    show(report, console)
    if report.problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    typer.run(main)
