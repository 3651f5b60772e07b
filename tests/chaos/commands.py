"""What the commands of `tests.chaos` and their jobs have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.jobs.result import JobResult
from spark_ext.sources.datagen import DataGen
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


def killed_job(spark: SparkSession, name: str, state: Path | str, **settings: Any) -> sx.Job:
    """A job that continues after kills."""
    common = {"restart_attempts": 20, "restart_backoff": 20, "checkpoint_interval": "1 s"}
    return sx.Job(spark, name, state=state, **{**common, **settings})


def generated(options: Mapping[str, Any], upto: Mapping[str, int]) -> pa.Table:
    """The rows of `datagen` up to a place of each channel, without Spark."""
    whole = DataGen({"uid": "expected", **{name: str(value) for name, value in options.items()}})
    channels = {channel.id: channel for channel in whole.discover()}
    batches = [batch for name, end in upto.items() for batch in whole.read(channels[name], 0, end)]
    return pa.Table.from_batches(batches) if batches else pa.table({"id": [], "key": [], "ts": []})


def ended(result: JobResult) -> int:
    """Report how a job has ended; returns the exit code."""
    print(result)
    if result.finished and all(query.finished_before for query in result.queries):
        print(f"finished: the job had ended before, {result.rows} rows read")
    return 0 if result.finished else 3


def tail(run: Tree, lines: int = 30) -> str:
    """The last lines of a run's output."""
    return "\n".join(run.text().splitlines()[-lines:])
