"""What queries of others do as a whole: the state of an Observer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_ext.model.execution import Shown, job_execution
from spark_ext.model.lifecycle import State


def observed_execution(queries: Sequence[tuple[str, Shown]]) -> Shown:
    """The state in which queries are together.

    As that of a job, with a difference: nobody knows whether a query that has ended is started again. Those that have
    failed count until they are.
    """
    failed = [(uid, shown) for uid, shown in queries if shown.state is State.FAILED]
    if any(not shown.state.ended for _, shown in queries):
        together = job_execution(State.RUNNING, queries, ran=True)
        if not failed:
            return together
        names = ", ".join(f"'{uid}' is {State.FAILED}" for uid, _ in failed)
        reason = f"{together.reason}, {names}" if together.reason.startswith("degraded: ") else f"degraded: {names}"
        return replace(together, reason=reason)
    if failed:
        uid, shown = failed[-1]
        return Shown(State.FAILED, f"query '{uid}' has failed, and no query is running", incident=shown.incident)
    if queries:
        return Shown(State.RUNNING, "no query is running")
    return Shown(State.CREATED, "no query has been started")
