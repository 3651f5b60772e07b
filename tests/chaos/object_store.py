"""`python -m tests.chaos.object_store`: kills a job in an object store; exits with 1 on a difference.

Its tables must be those of pandas, and the store must hold no object that nothing needs.
"""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from deltalake import DeltaTable
from rich.console import Console

from tests.chaos import object_store_flights, object_store_job
from tests.chaos.__main__ import show
from tests.chaos.commands import end_on_sigterm
from tests.chaos.harness import Reference, random_kills
from tests.chaos.scenario import FLIGHTS, Scenario
from tests.chaos.verify import Content, dead_files
from tests.servers.object_store import Bucket, running

_UNFINISHED = re.compile(r"/\.[^/]+\.tmp$")  # files that Spark or Hadoop was about to rename


@dataclass(frozen=True, kw_only=True)
class InStore(Scenario):
    """A job in a bucket: each of its output folders is one there, of the same name."""

    bucket: Bucket

    def place(self, out: Path) -> str:
        return f"{self.bucket.uri}/{out.name}"

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        keys = self.bucket.keys(f"{out.name}/")
        found = [f"unfinished: {key}" for key in keys if _UNFINISHED.search(key)]
        found += [f"upload in parts: {key}" for key in self.bucket.uploads() if key.startswith(f"{out.name}/")]
        for name, uid in self.tables.items():
            own = [key for key in keys if key.startswith(f"{out.name}/{name}/")]
            log = [self.bucket.get(key).decode() for key in own if re.search(r"/_delta_log/\d{20}\.json$", key)]
            found += dead_files(DeltaTable(f"{self.place(out)}/{name}"), uid, log, own)
        for name in self.exchanges:
            rows = f"{out.name}/state/exchanges/{name}/data/i"
            found += [f"rows that all have read: {key}" for key in keys if key.startswith(rows)]
        drafts = f"{out.name}/state/restoring/"
        return found + [f"left by a restore: {key}" for key in keys if key.startswith(drafts)]


def small(bucket: Bucket) -> InStore:
    module, uids, queries = "tests.chaos.object_store_job", object_store_job.UIDS, object_store_job.QUERIES
    return InStore(module, uids, queries, exchanges=("x",), look_every=1.0, bucket=bucket)


def flights(bucket: Bucket, data: Path) -> InStore:
    """The flights example, with its state, its input and its outputs in the store."""
    uids = {name: f"{name}-table" for name in FLIGHTS}
    return InStore("tests.chaos.object_store_flights", uids, FLIGHTS, data, look_every=1.0, bucket=bucket)


def main(
    kills: Annotated[int, typer.Option(min=0, help="random kills")] = 25,
    seed: Annotated[int, typer.Option(help="random seed; determines the order of events")] = 1,
    job: Annotated[str, typer.Option(help="flights, or small")] = "flights",
    per_round: Annotated[int | None, typer.Option(min=1, help="random kills per round of the job at most")] = None,
    minutes: Annotated[float | None, typer.Option(help="after which nothing is killed any more")] = None,
    data: Annotated[Path, typer.Option(help="prepared input of the flights job")] = Path("data"),
) -> None:
    if job not in ("flights", "small"):
        raise typer.BadParameter(f"unknown job '{job}'; choose flights or small")
    console = Console()
    with running() as store, tempfile.TemporaryDirectory(prefix="spark-ext-chaos-") as place:
        bucket = store.bucket()
        env = {**bucket.environment, "SPARK_MASTER": "local[2]"}
        os.environ.update(env)
        scenario = flights(bucket, data.resolve()) if job == "flights" else small(bucket)
        tables = (object_store_flights if job == "flights" else object_store_job).expected()
        report = random_kills(
            Reference(scenario, {name: Content(table) for name, table in tables.items()}), Path(place), kills=kills,
            targets=["driver", "all", "worker"], seed=seed, env=env, per_round=per_round,
            seconds=None if minutes is None else 60 * minutes,
            say=lambda what: console.print(what, markup=False, highlight=False),
        )  # fmt: skip
    if show(report, console):
        raise typer.Exit(1)


if __name__ == "__main__":
    end_on_sigterm()
    typer.run(main)
