"""What a job has to say when it has ended."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.model.lifecycle import State
from spark_ext.model.query_offsets import source_offsets

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun


@dataclass(frozen=True)
class SourceResult:
    """A source at the end of a run."""

    uid: str
    finished: bool
    channels_finished: int
    """Over all runs."""
    channels_running: int


@dataclass(frozen=True)
class QueryResult:
    """A query at the end of a run."""

    uid: str
    state: State
    finished: bool
    """Whether its final checkpoint is complete: a further run starts nothing of it and reads nothing."""
    finished_before: bool
    """Whether it had finished in an earlier run."""
    epochs: int
    """Committed in this run."""
    last_epoch: int | None
    """Number of the newest committed epoch, over all runs; None when there is none."""
    rows: int
    """Rows read by this run as Spark counted them: a marker of the end of input counts, and a repeated epoch."""
    state_rows: int
    """Rows left in the state stores."""
    sources: tuple[SourceResult, ...]
    reason: str


@dataclass(frozen=True)
class JobResult:
    """A job at the end of a run."""

    job: str
    state: State
    incarnation: int
    lineage: int
    started: datetime
    ended: datetime
    queries: tuple[QueryResult, ...]
    error: str = ""
    """Why it failed; empty otherwise."""

    @property
    def finished(self) -> bool:
        """Whether all queries have finished."""
        return self.state is State.FINISHED

    @property
    def rows(self) -> int:
        """Rows read by this run."""
        return sum(query.rows for query in self.queries)

    @property
    def epochs(self) -> int:
        """Epochs committed in this run."""
        return sum(query.epochs for query in self.queries)

    @property
    def seconds(self) -> float:
        """How long this run took."""
        return (self.ended - self.started).total_seconds()

    def query(self, uid: str) -> QueryResult:
        """The result of one query.

        Raises:
            KeyError: the job has no such query.
        """
        for query in self.queries:
            if query.uid == uid:
                return query
        raise KeyError(f"job '{self.job}' has no query '{uid}'; it has {[query.uid for query in self.queries]}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        out = asdict(self)
        out["state"] = self.state.value
        out["started"], out["ended"] = self.started.isoformat(), self.ended.isoformat()
        out["finished"], out["rows"], out["epochs"] = self.finished, self.rows, self.epochs
        for query in out["queries"]:
            query["state"] = query["state"].value
        return out

    def __str__(self) -> str:
        lines = [
            f"job '{self.job}' {self.state.value}: {self.rows:,} rows in {self.epochs} epochs, "
            f"{self.seconds:.1f} s, incarnation {self.incarnation}"
        ]
        for query in self.queries:
            past = " in an earlier run" if query.finished_before else ""
            lines.append(f"  {query.uid}: {query.state.value}{past}, {query.rows:,} rows in {query.epochs} epochs")
        if self.error:
            lines.append(self.error)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(query.uid)}</td><td>{query.state.value}</td><td>{query.epochs}</td>"
            f"<td>{query.rows:,}</td><td>{query.last_epoch if query.last_epoch is not None else ''}</td>"
            f"<td>{query.state_rows:,}</td></tr>"
            for query in self.queries
        )
        error = f"<pre>{html.escape(self.error)}</pre>" if self.error else ""
        return (
            f"<b>{html.escape(self.job)}</b> {self.state.value} &middot; {self.rows:,} rows &middot; "
            f"{self.epochs} epochs &middot; {self.seconds:.1f} s &middot; incarnation {self.incarnation}"
            "<table><tr><th>query</th><th>state</th><th>epochs</th><th>rows</th><th>last epoch</th>"
            f"<th>rows in state</th></tr>{rows}</table>{error}"
        )


def job_result(name: str, coordinator: Coordinator, context: JobContext, started: datetime) -> JobResult:
    """The result of an incarnation that has ended."""
    return JobResult(
        job=name,
        state=coordinator.state,
        incarnation=context.incarnation.number,
        lineage=context.incarnation.lineage,
        started=started,
        ended=datetime.now(timezone.utc),
        queries=tuple(_query_result(run) for run in coordinator.runs),
        error=str(coordinator.failure) if coordinator.failure is not None else "",
    )


def _query_result(run: QueryRun) -> QueryResult:
    offsets = source_offsets(run.offsets) if run.offsets is not None else {}
    return QueryResult(
        uid=run.spec.uid,
        state=run.state,
        finished=run.state is State.FINISHED,
        finished_before=run.had_finished,
        epochs=run.figures.epochs,
        last_epoch=run.committed if run.committed >= 0 else None,
        rows=run.figures.input_rows,
        state_rows=run.figures.state_rows,
        sources=tuple(
            SourceResult(uid, offset.ended, offset.sequence, len(offset.running)) for uid, offset in offsets.items()
        ),
        reason=run.reason,
    )
