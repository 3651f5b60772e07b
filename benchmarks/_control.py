"""What the benchmarks of control events share: the times of a job's epochs, and servers of jobs that do not run."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks._spark import committed_at, until
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import DefinitionRow, EpochRow
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from spark_ext.server.tokens import create
from spark_ext.spark.logs.spark_log import SparkLog

JOB = "bench"  # name of all jobs here
WITHOUT_LIMIT = Limits(rate=1e6, burst=10**6, change_rate=1e6, change_burst=10**6)
"""Of a server that refuses no request because of its rate."""


@dataclass(frozen=True)
class Epoch:
    number: int
    began: float  # s since 1970
    committed: float  # s since 1970
    rows: int


def epochs(state: Path, query: str = "q") -> list[Epoch]:
    found = {}
    for row in Ledger(str(state)).table(EpochRow).rows([("query", "=", query)]):
        committed = row.committed_at.timestamp()
        found[row.epoch] = Epoch(row.epoch, committed - (row.duration_ms or 0) / 1000, committed, row.input_rows or 0)
    return [found[number] for number in sorted(found)]


def recorded(state: Path, number: int, query: str = "q", *, ended: Callable[[], bool] | None = None) -> list[Epoch]:
    """The epochs, as soon as the ledger has all up to `number`; raises if the job has `ended` without it."""
    table = Ledger(str(state)).table(EpochRow)

    def there() -> bool:
        over = ended is not None and ended()
        found = table.rows([("query", "=", query), ("epoch", ">=", number)])
        if over and not found:
            raise RuntimeError(f"the job has ended without epoch {number}")
        return bool(found)

    until(there, f"the ledger has epoch {number}")
    return epochs(state, query)


def period(found: Sequence[Epoch], begin: float, end: float) -> float:
    """Mean time in ms from commit to commit of the epochs that were committed in a window (s since 1970)."""
    times = [epoch.committed for epoch in found if begin <= epoch.committed <= end]
    if len(times) < 2:
        raise ValueError(f"{len(times)} epochs were committed in {end - begin:.1f} s")
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def with_epochs(checkpoint: Path, begin: float, end: float) -> tuple[float, float]:
    """A window that ends later if it has no period yet: on a slow machine an epoch takes seconds."""
    log = SparkLog(str(checkpoint))

    def enough() -> bool:
        newest = log.newest_commit() or 0
        return newest > 2 and committed_at(checkpoint, newest - 2) >= begin

    if enough():
        return begin, end
    until(enough, "epochs are committed in the window")
    return begin, time.time()


def rate(found: Sequence[Epoch], begin: float, end: float) -> float:
    """Rows per second that a query has read.

    What an epoch reads is decided when it begins: it is what the time since the epoch before has allowed.
    """
    chosen = [epoch for epoch in found if epoch.began >= begin]
    late = next((place for place, epoch in enumerate(chosen) if epoch.began >= end), len(chosen) - 1)
    chosen = chosen[: late + 1]
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} epochs began in {end - begin:.1f} s")
    return sum(epoch.rows for epoch in chosen[1:]) / (chosen[-1].began - chosen[0].began)


def first_planned(planned: dict[int, float], moment: float) -> int | None:
    return min((number for number, at in planned.items() if at >= moment), default=None)


def made(state: Path) -> Ledger:
    """The ledger of a job that was started, and does not run: with a query `q` of one source, `in`."""
    ledger = Ledger(str(state))
    incarnation = start_incarnation(ledger, JOB)
    definition = QueryDefinition((OperatorDefinition("in", Role.SOURCE, "files"),)).to_json()
    LedgerWriter(ledger, incarnation).append(
        DefinitionRow(query="q", lineage=1, incarnation=1, at=datetime.now(timezone.utc), definition=definition)
    )
    return ledger


@contextmanager
def served(folder: Path, limits: Limits) -> Iterator[tuple[str, str]]:
    """A server of a job that does not run, in its own process, as `spark-ext serve` is; yields its URL and a token."""
    made(folder / "state")
    tokens = folder / "tokens"
    token = create(tokens, "bench")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(str(folder / "state"), str(tokens), limits, theirs))
    process.start()
    try:
        yield ours.recv(), token
    finally:
        ours.send("stop")
        process.join()


def _serve(state: str, tokens: str, limits: Limits, pipe: Connection[Any, Any]) -> None:
    with ControlServer(state, tokens=tokens, limits=limits) as server:
        pipe.send(server.url)
        pipe.recv()
