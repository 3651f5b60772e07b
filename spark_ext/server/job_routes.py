"""Routes that show a job: its status, and the tables of its ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query

from spark_ext.server import answers, rows
from spark_ext.server.problems import documented
from spark_ext.views.status import status_from

if TYPE_CHECKING:
    from spark_ext.control.known import KnownJob
    from spark_ext.server.served import ServedJobs

JobName = Annotated[str, Path(description="The job's name, or its id.")]
QueryUid = Annotated[str | None, Query(description="Uid of a query.", max_length=200)]
Cursor = Annotated[str | None, Query(description="Cursor of the previous page.", max_length=2_000)]
Limit = Annotated[int, Query(description="Maximum number of rows in a page.", ge=1, le=1_000)]


def summary(known: KnownJob) -> dict[str, Any]:
    """A job as `JobSummary` shows it."""
    return {
        "job": known.name,
        "job_id": known.job_id,
        "incarnation": known.incarnation,
        "lineage": known.lineage,
        "running": known.running,
        "finished": known.finished,
        "queries": [
            {"uid": uid, "sources": sorted(one.sources), "sinks": sorted(one.sinks), "finished": one.finished}
            for uid, one in sorted(known.queries.items())
        ],
    }


def job_routes(jobs: ServedJobs) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1/jobs/{job}", tags=["jobs"], responses=documented(409))

    @router.get("", response_model=answers.JobStatusAnswer, summary="The status of a job")
    def status(job: JobName) -> dict[str, Any]:
        served, _ = jobs.find(job)
        return status_from(served.page.facts()).to_json()

    @router.get("/epochs", response_model=answers.Rows, summary="Committed epochs, newest first")
    def epochs(job: JobName, query: QueryUid = None, cursor: Cursor = None, limit: Limit = 100) -> dict[str, Any]:
        return rows.page(jobs.find(job)[0].ledger, rows.EPOCHS, {"query": query}, cursor, limit)

    @router.get("/finished", response_model=answers.Rows, summary="Finished flags")
    def finished(
        job: JobName,
        query: QueryUid = None,
        source: Annotated[str | None, Query(description="Uid of a source.", max_length=200)] = None,
        kind: Annotated[str | None, Query(description="channel, source or query.", max_length=20)] = None,
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> dict[str, Any]:
        wanted = {"query": query, "source": source, "kind": kind}
        return rows.page(jobs.find(job)[0].ledger, rows.FINISHED, wanted, cursor, limit)

    @router.get("/checkpoints", response_model=answers.Rows, summary="Steps of checkpoints")
    def checkpoints(
        job: JobName,
        query: QueryUid = None,
        kind: Annotated[str | None, Query(description="periodic, final or savepoint.", max_length=20)] = None,
        status: Annotated[str | None, Query(description="Such as COMPLETED.", max_length=20)] = None,
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> dict[str, Any]:
        wanted = {"query": query, "kind": kind, "status": status}
        return rows.page(jobs.find(job)[0].ledger, rows.CHECKPOINTS, wanted, cursor, limit)

    @router.get("/incidents", response_model=answers.Rows, summary="Notable events")
    def incidents(
        job: JobName,
        operator: Annotated[str | None, Query(description="Where it happened.", max_length=300)] = None,
        type: Annotated[str | None, Query(description="Such as failure.", max_length=100)] = None,
        label: Annotated[
            list[str] | None, Query(description="NAME=VALUE; several are combined with AND.", max_length=20)
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> dict[str, Any]:
        wanted = {"operator": operator, "type": type}
        return rows.page(jobs.find(job)[0].ledger, rows.INCIDENTS, wanted, cursor, limit, label or ())

    return router
