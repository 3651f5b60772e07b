"""Snapshots of jobs, for the tests of views."""

from datetime import datetime, timedelta, timezone
from typing import Any

from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot, SourceSnapshot

T0 = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def source(uid: str, finished: int, running: int | None = 0, *, ended: bool = False) -> SourceSnapshot:
    return SourceSnapshot(uid=uid, finished=ended, channels_finished=finished, channels_running=running)


def query(uid: str, state: State = State.RUNNING, **values: Any) -> QuerySnapshot:
    return QuerySnapshot(uid=uid, state=state, **{"state_rows": None, **values})


def job(*queries: QuerySnapshot, state: State = State.RUNNING, seconds: float = 10, **values: Any) -> JobSnapshot:
    given: dict[str, Any] = {
        "job": "flights", "state_directory": "out/state", "incarnation": 2, "lineage": 1, "started": T0, "ended": None,
        "at": T0 + timedelta(seconds=seconds), **values,
    }  # fmt: skip
    return JobSnapshot(state=state, queries=queries, **given)
