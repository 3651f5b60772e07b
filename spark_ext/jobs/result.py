"""The result of a job's run: its last snapshot, in which nothing is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_ext.model.lifecycle import State
from spark_ext.views.notebook import job_html, job_text
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot, SourceSnapshot


@dataclass(frozen=True, kw_only=True)
class SourceResult(SourceSnapshot):
    """A source of a query that this process supervises."""

    channels_running: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return _plain(self, "uid finished channels_finished channels_running lag_rows")


@dataclass(frozen=True, kw_only=True)
class QueryResult(QuerySnapshot):
    """A query that this process supervises. Rows and epochs are those of this run."""

    sources: tuple[SourceResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        names = "uid state finished finished_before epochs last_epoch parts_ms rows bad_rows rule_failures late_rows"
        return _plain(self, f"{names} early_rows state_rows lag_rows lag_at sources reason latencies")


@dataclass(frozen=True, kw_only=True)
class JobResult(JobSnapshot):
    """A job at the end of a run. Rows and epochs are those of this run."""

    queries: tuple[QueryResult, ...]
    started: datetime
    ended: datetime

    def query(self, uid: str) -> QueryResult:
        """The result of one query.

        Raises:
            KeyError: the job has no such query.
        """
        found = super().query(uid)
        assert isinstance(found, QueryResult)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`: times as ISO 8601 in UTC."""
        names = "job state incarnation lineage started ended queries error finished caught_up rows epochs"
        return _plain(self, names)

    def __str__(self) -> str:
        return job_text(self)

    def _repr_html_(self) -> str:
        return job_html(self)


def _plain(result: object, names: str) -> dict[str, Any]:
    """The named attributes in their order, as JSON has them."""
    found: dict[str, Any] = {}
    for name in names.split():
        value = getattr(result, name)
        if isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, tuple):
            value = [one.to_json() for one in value]
        elif isinstance(value, Mapping):
            value = dict(value)
        found[name] = value.value if isinstance(value, State) else value
    return found


def job_result(last: JobSnapshot) -> JobResult:
    """The result of a run, from a snapshot that was taken when the job had ended."""
    return JobResult(**{**vars(last), "ended": last.at})
