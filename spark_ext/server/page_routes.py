"""Routes of the web page: its files, and what it shows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi import Request as HttpRequest
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from spark_ext.errors import SparkExtError
from spark_ext.masking import logger
from spark_ext.server import answers, assets
from spark_ext.server.control_routes import HEARTBEAT, streamed
from spark_ext.server.guard import caller_of
from spark_ext.server.job_routes import JobName
from spark_ext.server.limits import Slots
from spark_ext.server.page_view import POLL_EVERY
from spark_ext.server.problems import Problem, documented

if TYPE_CHECKING:
    from spark_ext.server.guard import Caller
    from spark_ext.server.served import ServedJob, ServedJobs

log = logger("spark_ext.server")

Moment = Annotated[int | None, Query(description="ms since 1970, UTC.", ge=0, le=2**53)]


def page_routes(jobs: ServedJobs, slots: Slots) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["page"], responses=documented(409))

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file(assets.INDEX)

    @router.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in assets.names() or name == assets.INDEX:
            raise Problem(404, "not_found", "file not found", "open / in a browser")
        return _file(name)

    @router.get("/v1/jobs/{job}/page", response_model=answers.PageAnswer, summary="What the web page shows of a job")
    def document(job: JobName) -> Response:
        return Response(jobs.find(job)[0].page.poll().text, media_type="application/json")

    @router.get(
        "/v1/jobs/{job}/page/series",
        response_model=answers.SeriesAnswer,
        summary="Duration and rows of epochs in a period, thinned out",
    )
    def series(
        job: JobName,
        query: Annotated[str, Query(description="Uid of a query. Default: all queries.", max_length=200)] = "",
        since: Moment = None,
        until: Moment = None,
    ) -> dict[str, Any]:
        return jobs.find(job)[0].page.series(query, since, until).to_json()

    @router.get(
        "/v1/jobs/{job}/page/incidents/{incident}",
        response_model=answers.IncidentAnswer,
        summary="An incident with its evidence and stack",
    )
    def incident(job: JobName, incident: Annotated[str, Path(description="Its id.")]) -> Response:
        found = jobs.find(job)[0].page.incident(incident)
        if found is None:
            raise Problem(404, "not_found", "incident not found", "list them with GET .../incidents")
        return JSONResponse(found)

    @router.get(
        "/v1/jobs/{job}/page/stream",
        response_class=StreamingResponse,
        responses={200: {"description": "The document, then its changes.", "content": {"text/event-stream": {}}}},
        summary="Follow what the web page shows, as server-sent events",
    )
    async def stream(http: HttpRequest, job: JobName) -> Response:
        served, _ = await run_in_threadpool(jobs.find, job)
        caller = caller_of(http.scope)
        return streamed(slots, caller.name, _messages(served, caller))

    return router


def _file(name: str) -> Response:
    return Response(assets.asset(name), headers=dict(assets.HEADERS), media_type=assets.content_type(name))


async def _messages(served: ServedJob, caller: Caller) -> AsyncIterator[bytes]:
    """Who asks; the document; then a patch whenever there is a new one."""
    scopes = sorted(caller.token.scopes) if caller.token is not None else []
    yield _message("caller", json.dumps({"name": caller.name, "scopes": scopes}))
    before = None
    last = time.monotonic()
    while not served.watcher.closed:
        try:
            after = await run_in_threadpool(served.page.poll)
            if before is None:
                yield _message("page", after.text)
                last = time.monotonic()
            elif after.number != before.number:
                yield _message("change", await run_in_threadpool(served.page.patch, before, after))
                last = time.monotonic()
        except SparkExtError as problem:
            log.warning("stream closed, the client will reconnect: %s", problem)
            return
        before = after
        if time.monotonic() - last >= HEARTBEAT:
            last = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(POLL_EVERY)


def _message(event: str, data: str) -> bytes:
    return f"event: {event}\ndata: {data}\n\n".encode()
