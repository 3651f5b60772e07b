"""What the benchmarks of control events share: the times of a job's epochs, and servers of jobs that do not run."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._spark import committed_at, until
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import DefinitionRow, EpochRow
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from spark_ext.server.tokens import create
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

JOB = "bench"
"""Name of all jobs here."""

WITHOUT_LIMIT = Limits(rate=1e6, burst=10**6, change_rate=1e6, change_burst=10**6)
"""Of a server that refuses no request because of its rate."""


@dataclass(frozen=True)
class Epoch:
    """A committed epoch."""

    number: int
    began: float
    """s since 1970."""
    committed: float
    """s since 1970."""
    rows: int


def checkpoint_of(state: Path, query: str = "q") -> Path:
    """Spark's checkpoint directory of a query."""
    return state / "queries" / query / "checkpoint"


def epochs(state: Path, query: str = "q") -> list[Epoch]:
    """The committed epochs that the ledger has, in their order."""
    found = {}
    for row in Ledger(str(state)).table(EpochRow).rows([("query", "=", query)]):
        committed = row.committed_at.timestamp()
        found[row.epoch] = Epoch(row.epoch, committed - (row.duration_ms or 0) / 1000, committed, row.input_rows or 0)
    return [found[number] for number in sorted(found)]


def recorded(state: Path, number: int, query: str = "q", *, ended: Callable[[], bool] | None = None) -> list[Epoch]:
    """The epochs, as soon as the ledger has all up to one of them.

    Args:
        state: the job's state directory.
        number: of the epoch.
        query: its uid.
        ended: whether the job has ended, so that no epoch comes any more.

    Raises:
        RuntimeError: the job has ended without this epoch.
        TimeoutError: the epoch has not come.
    """
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
    """Mean time from commit to commit of the epochs that were committed in a window.

    Args:
        found: in their order.
        begin: s since 1970.
        end: s since 1970.

    Returns:
        ms.

    Raises:
        ValueError: there are fewer than two in the window.
    """
    times = [epoch.committed for epoch in found if begin <= epoch.committed <= end]
    if len(times) < 2:
        raise ValueError(f"{len(times)} epochs were committed in {end - begin:.1f} s")
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def with_epochs(checkpoint: Path, begin: float, end: float) -> tuple[float, float]:
    """A window that ends later if it has no period yet: on a slow machine an epoch takes seconds.

    Args:
        checkpoint: of the query.
        begin: s since 1970.
        end: s since 1970.
    """
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

    Args:
        found: in their order.
        begin: s since 1970; the first epoch behind it begins the time.
        end: s since 1970; the first epoch behind it ends the time.

    Raises:
        ValueError: there are fewer than two epochs.
    """
    chosen = [epoch for epoch in found if epoch.began >= begin]
    late = next((place for place, epoch in enumerate(chosen) if epoch.began >= end), len(chosen) - 1)
    chosen = chosen[: late + 1]
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} epochs began in {end - begin:.1f} s")
    return sum(epoch.rows for epoch in chosen[1:]) / (chosen[-1].began - chosen[0].began)


def beside(sides: Sequence[str], rounds: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    """Measure sides alternately, in an order that changes from round to round.

    Returns:
        For each side one value per round.
    """
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            found[side].append(measure(side))
    return found


def in_pairs(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each value to the other side's of the same round, which other load has affected alike."""
    return [one / other for one, other in zip(values, others, strict=True)]


def first_planned(planned: dict[int, float], moment: float) -> int | None:
    """The first epoch that was planned at a moment or later.

    Args:
        planned: by epoch, s since 1970.
        moment: s since 1970.
    """
    return min((number for number, at in planned.items() if at >= moment), default=None)


def ordered(sequences: Sequence[int]) -> bool:
    """Whether each sequence is greater than the one before it."""
    return all(one < other for one, other in itertools.pairwise(sequences))


# -- jobs that do not run ---------------------------------------------------------------------------------------------


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
    """A server of a job that does not run, in a process of its own, as `spark-ext serve` is.

    Yields:
        Its URL, and a token.
    """
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
