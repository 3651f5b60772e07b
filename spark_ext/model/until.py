"""A run of a job that ends with what is there: `job.run(until="now")`. Pure.

Each source reads up to what it holds when the run begins. A query that reads what others write follows them: it has
caught up when it has found nothing left to read after those that feed it had ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from spark_ext.model.lifecycle import State


@dataclass(frozen=True)
class Upstream:
    """What a query needs to know about those that feed it."""

    ended: bool = True
    """Whether they commit nothing more in this run."""
    epochs: int = 0
    """A number that grows with each epoch that they commit."""


@dataclass(frozen=True)
class UntilNow:
    """What the queries of such a run share."""

    upstream: Callable[[str], Upstream] = lambda query: Upstream()
    """By the uid of a query: about those that feed it."""
    unread: Callable[[str], str] = lambda query: ""
    """By the uid of a query: what has kept it from reading all that is there; "" for nothing. May read the ledger."""


@dataclass(frozen=True)
class Stands:
    """Where a query of the run stands."""

    state: State
    committed: int = -1
    """Its newest committed epoch."""


def upstream_of(
    producers: Collection[str], runs: Mapping[str, Stands], waiting: Mapping[str, Collection[str]]
) -> Upstream:
    """About the queries that feed another one.

    Args:
        waiting: those that are not, each with the queries for whose end it waits.
    """

    def over(uid: str) -> bool:
        if uid in runs:
            return runs[uid].state.ended
        # Not built: it has finished and left the job, or never will be in this run.
        return uid not in waiting or any(stays_open(one) for one in waiting[uid])

    def stays_open(uid: str) -> bool:
        """Whether a query ends this run without having finished, so that what waits for its end is not built."""
        if uid in runs:
            return runs[uid].state.ended and runs[uid].state is not State.FINISHED
        return uid in waiting and over(uid)

    return Upstream(
        ended=all(over(uid) for uid in producers),
        epochs=sum(runs[uid].committed + 1 for uid in producers if uid in runs),
    )
