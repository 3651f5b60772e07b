"""The commands of a job's start: claims, hooks and Spark's starts, by the workers of all queries at the same time.

Before them, what an older incarnation left running in this session is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ext.errors import StorageError
from spark_ext.queries.worker import Outcome, Worker

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.queries.context import JobContext, WatchContext
    from spark_ext.queries.run import QueryRun

LOOK_EVERY = 0.05
"""Pause between two looks at the workers, s, if none of them reports."""


def begin(waiting: Sequence[QueryRun], context: JobContext, coordinator: Coordinator, *, late: bool) -> None:
    """Claim the targets of all queries, then open their operators; each step is done everywhere before the next one.

    Args:
        late: whether a target may be claimed when something is to be written; see `late_claim`.
    """
    within = context.settings.start_timeout / 1000
    in_all(waiting, lambda run: run.claim(late=late), context, coordinator, within)
    in_all(waiting, lambda run: run.open(), context, coordinator, within)


def in_all(
    runs: Sequence[QueryRun],
    command: Callable[[QueryRun], None],
    context: JobContext,
    coordinator: Coordinator,
    within: float,
) -> None:
    """Give a command to the workers of all queries, and wait until all have carried it out, or the job is stopped."""
    if coordinator.stopping:
        return
    for run in runs:
        command(run)
    by = time.monotonic() + within
    while not coordinator.stopping:
        for run in runs:
            run.deliver()
        late = next((run for run in runs if run.busy), None)
        if late is None:
            return
        if time.monotonic() >= by:
            raise _too_late(late.busy, late.who, within)
        context.wake.wait(LOOK_EVERY)
        context.wake.clear()


def stop_older(stops: Mapping[str, Callable[[], object]], context: WatchContext, stopping: Callable[[], bool]) -> bool:
    """Stop what an older incarnation runs, on threads that are left behind if a stop does not return.

    Args:
        stopping: whether the job has been asked to stop: the stops that are under way are then not waited for.

    Returns:
        Whether all have stopped; False when the job is stopping.
    """
    within = context.settings.start_timeout / 1000
    by = time.monotonic() + within
    workers = {query: Worker(f"spark-ext-older-{query}", context.wake.set) for query in stops}
    try:
        for query, stop in stops.items():
            workers[query].do(f"stop of query '{query}' of an older start", stop, _returned)
        while True:
            for worker in workers.values():
                worker.deliver()
            late = next((worker.busy for worker in workers.values() if worker.busy), "")
            if not late or stopping():
                return not late
            if time.monotonic() >= by:
                raise _too_late(late, f"job '{context.job}'", within)
            context.wake.wait(LOOK_EVERY)
            context.wake.clear()
    finally:
        for worker in workers.values():
            worker.close()


def _returned(outcome: Outcome[object]) -> None:
    outcome.result()


def _too_late(step: str, operator: str, within: float) -> StorageError:
    return StorageError(
        f"the step '{step}' of the start did not end within {within:g} s",
        operator=operator,
        kept="all committed epochs",
        do="find out what it is waiting for, and start the job again; the setting start_timeout is how long a start "
        "waits",
    )
