"""The history of a job, a value for `validators`: its operators' event log, its ledger, and Spark's logs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_ext.ledger import Ledger
from spark_ext.ledger.identity import lineages
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow, JobRow, Row
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import folder_at
from tests.support import operators


@dataclass(frozen=True)
class QueryLog:
    """Spark's write-ahead log of one query: the part that Spark still retains."""

    query_id: str | None
    planned: Mapping[int, LoggedOffsets]  # `offsets/N`, by N
    committed: frozenset[int]  # every N for which `commits/N` exists

    @property
    def newest(self) -> int:
        return max(self.committed, default=-1)

    @property
    def at_the_end(self) -> LoggedOffsets | None:
        return self.planned.get(self.newest)

    @classmethod
    def read(cls, checkpoint: Path | str) -> "QueryLog":
        log = SparkLog(str(checkpoint))
        planned = {number: log.offsets(number) for number in log.numbers("offsets")}
        return cls(
            log.query_id(),
            {number: offsets for number, offsets in sorted(planned.items()) if offsets is not None},
            frozenset(log.commits()),
        )


@dataclass(frozen=True)
class History:
    events: tuple[Mapping[str, Any], ...] = ()
    """The event log of the operators in `tests.support.operators`, in order; empty for other operators."""
    jobs: tuple[JobRow, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    finished: tuple[FinishedRow, ...] = ()
    epochs: tuple[EpochRow, ...] = ()
    states: tuple[ExecutionStateRow, ...] = ()
    incidents: tuple[IncidentRow, ...] = ()
    logs: Mapping[str, QueryLog] = field(default_factory=dict)
    """By query uid, without queries whose checkpoint no longer exists."""
    state_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows left in the state stores of the queries that finished in the last run, by uid."""

    @classmethod
    def read(cls, state: Path | str, event_logs: Iterable[str | Path] = (), **given: Any) -> "History":
        ledger = Ledger(str(state))

        def rows(row_type: type[Row]) -> tuple[Any, ...]:
            # A row that was written again after a failure is there twice and counts once.
            found: list[Row] = []
            for row in ledger.table(row_type).rows():
                if row not in found[-200:]:
                    found.append(row)
            return tuple(found)

        jobs: tuple[JobRow, ...] = rows(JobRow)
        known = lineages(jobs)
        names = {
            (old, event.lineage): event.query
            for event in known.events
            if event.renamed_from is not None and known.of(event.query) == event.lineage
            for old in known.names(event.query, event.lineage)
        }

        def of_queries(row_type: type[Row]) -> tuple[Any, ...]:
            """Rows under the present name of their query."""
            return tuple(replace(row, query=names.get((row.query, row.lineage), row.query)) for row in rows(row_type))

        return cls(
            events=tuple(event for log in dict.fromkeys(map(str, event_logs)) for event in operators.events(log)),
            jobs=jobs,
            checkpoints=of_queries(CheckpointRow),
            finished=of_queries(FinishedRow),
            epochs=of_queries(EpochRow),
            states=rows(ExecutionStateRow),
            incidents=rows(IncidentRow),
            logs={
                query: QueryLog.read(f"{state}/queries/{query}/checkpoint")
                for query in sorted(folder_at(f"{state}/queries").names())
                if SparkLog(f"{state}/queries/{query}").names("checkpoint")
            },
            **given,
        )

    def of(self, uid: str, *names: str) -> list[Mapping[str, Any]]:
        """An operator's events, in order; only those with the given names, if any are given."""
        return [event for event in self.events if event["uid"] == uid and (not names or event["event"] in names)]

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event["uid"] for event in self.events))

    def lineage(self, query: str) -> int:
        given = lineages(self.jobs).of(query)
        return min([row.lineage for row in self.epochs if row.query == query], default=1) if given is None else given

    def finals(self, query: str) -> list[CheckpointRow]:
        """The steps of the query's final checkpoint in its current lineage, oldest first."""
        steps = [
            row
            for row in self.checkpoints
            if row.kind == "final" and row.query == query and row.lineage == self.lineage(query)
        ]
        return sorted(steps, key=lambda row: row.at)

    @property
    def finished_queries(self) -> tuple[str, ...]:
        flags = (row for row in self.finished if row.kind == "query")
        return tuple(dict.fromkeys(row.query for row in flags if row.lineage == self.lineage(row.query)))
