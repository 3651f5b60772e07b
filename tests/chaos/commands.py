"""What the commands of `tests.chaos`, their jobs and their reports have in common."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.jobs.result import JobResult
from spark_ext.sources.datagen import DataGen
from tests.support.cheap_jvm import client
from tests.support.processes import Tree


@contextmanager
def workplace(name: str, keep: Path | None) -> Iterator[Path]:
    """The folder to work in: `keep`, in which everything stays, or a temporary one."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with TemporaryDirectory(prefix=f"spark-ext-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


def session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of a job: a client's, if the environment names a server of Spark Connect."""
    return client(name, conf) or sx.session(name, conf=conf)


def killed_job(spark: SparkSession, name: str, state: Path | str, **settings: Any) -> sx.Job:
    common = {"restart_attempts": 20, "restart_backoff": 20, "checkpoint_interval": "1 s"}
    return sx.Job(spark, name, state=state, **{**common, **settings})


def generated(options: Mapping[str, Any], upto: Mapping[str, int]) -> pa.Table:
    """The rows of `datagen` up to a place of each channel, without Spark."""
    whole = DataGen({"uid": "expected", **{name: str(value) for name, value in options.items()}})
    channels = {channel.id: channel for channel in whole.discover()}
    batches = [batch for name, end in upto.items() for batch in whole.read(channels[name], 0, end)]
    return pa.Table.from_batches(batches) if batches else pa.table({"id": [], "key": [], "ts": []})


def ended(result: JobResult) -> int:
    print(result)
    if result.finished and all(query.finished_before for query in result.queries):
        print(f"finished: the job had ended before, {result.rows} rows read")
    return 0 if result.finished else 3


def tail(run: Tree, lines: int = 30) -> str:
    return "\n".join(run.text().splitlines()[-lines:])


def arguments(command: str, **numbers: tuple[int, str]) -> argparse.ArgumentParser:
    """The arguments of a command: numbers with their defaults and meanings, the seed, and where to work."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.chaos.{command}")
    for name, (default, meaning) in {**numbers, "seed": (1, "determines the order of events")}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=meaning)
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep everything")
    return parser


def verdict(problems: Sequence[str], otherwise: str) -> str:
    """Print each problem; returns how many there are, or what is true otherwise."""
    for problem in problems:
        print(f"PROBLEM {problem}")
    return f"{len(problems)} problems" if problems else otherwise


def end_on_sigterm() -> None:
    """A SIGTERM also terminates the processes that were started, as it raises SystemExit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def the_job(make: Callable[..., sx.Job], **kinds: Callable[[str], Any]) -> int:
    """The main function of a job's script: make it in the folder `--out`, with further arguments, and run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=lambda given: Path(given).resolve(), required=True)
    for name, kind in kinds.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    return ended(make(**vars(parser.parse_args())).run(progress=False))
