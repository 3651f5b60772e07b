"""The result of a job's run: its last snapshot, in which nothing is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_ext.views.notebook import job_html, job_text
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot, SourceSnapshot


@dataclass(frozen=True, kw_only=True)
class SourceResult(SourceSnapshot):
    """A source of a query that this process supervises."""

    channels_running: int


@dataclass(frozen=True, kw_only=True)
class QueryResult(QuerySnapshot):
    """A query that this process supervises. Rows and epochs are those of this run."""

    state_rows: int
    """Rows left in the state stores."""
    sources: tuple[SourceResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "uid": self.uid,
            "state": self.state.value,
            "finished": self.finished,
            "finished_before": self.finished_before,
            "epochs": self.epochs,
            "last_epoch": self.last_epoch,
            "parts_ms": None if self.parts_ms is None else dict(self.parts_ms),
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "late_rows": self.late_rows,
            "state_rows": self.state_rows,
            "lag_rows": self.lag_rows,
            "lag_at": None if self.lag_at is None else self.lag_at.isoformat(),
            "sources": [
                {
                    "uid": source.uid,
                    "finished": source.finished,
                    "channels_finished": source.channels_finished,
                    "channels_running": source.channels_running,
                    "lag_rows": source.lag_rows,
                }
                for source in self.sources
            ],
            "reason": self.reason,
            "latencies": [one.to_json() for one in self.latencies],
        }


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
        return {
            "job": self.job,
            "state": self.state.value,
            "incarnation": self.incarnation,
            "lineage": self.lineage,
            "started": self.started.isoformat(),
            "ended": self.ended.isoformat(),
            "queries": [query.to_json() for query in self.queries],
            "error": self.error,
            "finished": self.finished,
            "caught_up": self.caught_up,
            "rows": self.rows,
            "epochs": self.epochs,
        }

    def __str__(self) -> str:
        return job_text(self)

    def _repr_html_(self) -> str:
        return job_html(self)


def job_result(last: JobSnapshot) -> JobResult:
    """The result of a run.

    Args:
        last: a snapshot of the job that was taken when it had ended.
    """
    return JobResult(**{**vars(last), "ended": last.at})
