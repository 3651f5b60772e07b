"""Routes of control events: request one, list them, wait for one, follow all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query
from fastapi import Request as HttpRequest
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from spark_ext.control.epoch_configuration import epoch_configuration
from spark_ext.control.event_state import EventState
from spark_ext.control.history import Changes, Filter
from spark_ext.errors import StorageError
from spark_ext.masking import logger
from spark_ext.model.control_kinds import kinds
from spark_ext.server import answers
from spark_ext.server.bodies import read_request
from spark_ext.server.guard import caller_of
from spark_ext.server.job_routes import Cursor, JobName
from spark_ext.server.limits import Limits, Slots
from spark_ext.server.problems import Problem, documented

if TYPE_CHECKING:
    from spark_ext.server.served import ServedJob, ServedJobs

LONGEST_WAIT = 60  # longest time that a long poll may wait, s
Values = Annotated[list[str] | None, Query(max_length=50)]


def control_routes(jobs: ServedJobs, limits: Limits, slots: Slots) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1/jobs/{job}", tags=["control"], responses=documented(409))

    @router.post(
        "/control",
        status_code=202,
        response_model=answers.AcceptedAnswer,
        responses={
            **documented(413, 415),
            202: {
                "description": "The event is in the ledger, and survives any crash.",
                "headers": {"Location": {"description": "Address of the event.", "schema": {"type": "string"}}},
            },
        },
        summary="Request a control event",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ControlRequest"}}},
            }
        },
    )
    async def send(
        http: HttpRequest,
        job: JobName,
        idempotency_key: Annotated[
            str | None,
            Header(
                description="Idempotency key: repeating a request with the same key has no further effect.",
                max_length=202,
            ),
        ] = None,
    ) -> Response:
        caller = caller_of(http.scope)
        # Changing to another thread costs more than anything else that is done here.
        recalled = jobs.recall(job)
        served, known = recalled if recalled is not None else await run_in_threadpool(jobs.find, job)
        request = await read_request(http, limits, caller.name, f"rest {caller.address}")
        accepted = await asyncio.wrap_future(served.service.offer(request))
        caller.event_id = accepted.event.event_id
        state = EventState.of(accepted.event, request)
        if accepted.repeated:
            state = await _event(served, state.event_id)
        place = f"/v1/jobs/{known.name if '/' not in known.name else known.job_id}/control/{state.event_id}"
        answer = {**state.to_json(), "repeated": accepted.repeated, "note": accepted.note}
        return JSONResponse(answer, 202, {"Location": place})

    @router.get(
        "/control",
        response_model=answers.EventPage,
        summary="Control events, newest first; filters are combined with AND",
    )
    def listed(
        job: JobName,
        kind: Values = None,
        status: Values = None,
        target: Values = None,
        requested_by: Values = None,
        after: Annotated[
            int | None, Query(description="Events after this sequence, in ascending order.", ge=0, le=2**63 - 1)
        ] = None,
        cursor: Cursor = None,
        limit: Annotated[int, Query(description="Maximum number of events in a page.", ge=1, le=1_000)] = 100,
    ) -> Response:
        served, _ = jobs.find(job)
        wanted = Filter(kind or (), status or (), target or (), requested_by or ())
        page = served.history.page(wanted, cursor=cursor, after=after, limit=limit)
        return JSONResponse({"events": [one.to_json() for one in page.events], "cursor": page.cursor})

    @router.get(
        "/control/stream",
        response_class=StreamingResponse,
        responses={200: {"description": "One message per change of an event.", "content": {"text/event-stream": {}}}},
        summary="Follow control events, as server-sent events",
    )
    async def stream(
        http: HttpRequest,
        job: JobName,
        after: Annotated[
            int | None, Query(description="Begin with all events after this sequence.", ge=0, le=2**63 - 1)
        ] = None,
        last_event_id: Annotated[str | None, Header(description="To continue a stream.", max_length=200)] = None,
    ) -> Response:
        served, _ = await run_in_threadpool(jobs.find, job)
        changes = await run_in_threadpool(Changes, served.history, after, last_event_id)
        return streamed(slots, caller_of(http.scope).name, messages(served, changes))

    @router.get(
        "/control/{event_id}",
        response_model=answers.EventAnswer,
        summary="A control event; wait delays the answer until its final status, or for that time",
    )
    async def one(
        http: HttpRequest,
        job: JobName,
        event_id: Annotated[str, Path(description="Id of the event, as returned by POST.")],
        wait: Annotated[float, Query(description="Maximum time to wait, s.", ge=0, le=LONGEST_WAIT)] = 0,
    ) -> Response:
        served, _ = await run_in_threadpool(jobs.find, job)
        if not wait:
            return JSONResponse((await _event(served, event_id)).to_json())
        with slots.taken(caller_of(http.scope).name) as taken:
            if not taken:
                raise _too_many()
            return JSONResponse((await _waited(http, served, event_id, wait)).to_json())

    @router.get("/config", response_model=answers.ConfigAnswer, summary="The configuration of an epoch")
    def config(
        job: JobName,
        query: Annotated[str, Query(description="Uid of the query.", max_length=200)],
        epoch: Annotated[
            int | None, Query(description="Spark's batch id. Default: the newest.", ge=0, le=2**63 - 1)
        ] = None,
    ) -> Response:
        served, known = jobs.find(job)
        found = epoch_configuration(served.ledger, query, epoch) if query in known.queries else None
        if found is None:
            what = f"the job has no query '{query}'" if query not in known.queries else "epoch not found"
            do = f"use one of: {', '.join(sorted(known.queries))}" if query not in known.queries else "see .../epochs"
            raise Problem(404, "not_found", what, do, operator=f"job '{known.name}'", kept="nothing was changed")
        return JSONResponse(found.to_json())

    @router.get("/kinds", response_model=answers.KindList, summary="The kinds of control events")
    def all_kinds(job: JobName) -> dict[str, Any]:
        jobs.find(job)
        return {"kinds": [one.described() for one in kinds().values() if one.public]}

    return router


async def _event(served: ServedJob, event_id: str) -> EventState:
    found = await run_in_threadpool(served.history.event, event_id)
    if found is None:
        raise Problem(404, "not_found", "event not found", "list them with GET .../control")
    return found


async def _waited(http: HttpRequest, served: ServedJob, event_id: str, seconds: float) -> EventState:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        seen = await served.watcher.seen()
        found = await _event(served, event_id)
        left = until - loop.time()
        if found.final or left <= 0 or served.watcher.closed or await http.is_disconnected():
            return found
        # Not all at once: a client that has gone is noticed within seconds.
        await served.watcher.change(seen, min(left, 5.0))


def streamed(slots: Slots, key: str, messages: AsyncIterator[bytes]) -> Response:
    """Server-sent events, which hold a slot until the client has gone."""
    if not slots.take(key):
        raise _too_many()

    async def held() -> AsyncIterator[bytes]:
        try:
            async for message in messages:
                yield message
        finally:
            slots.give(key)

    return StreamingResponse(held(), media_type="text/event-stream")


def _too_many() -> Problem:
    return Problem(
        429, "waiting", "too many requests are waiting for changes", "close some, or poll", headers={"Retry-After": "5"}
    )


log = logger("spark_ext.server")

HEARTBEAT: Final = 15.0  # s; proxies close idle connections, and a client that has gone is noticed


async def messages(served: ServedJob, changes: Changes) -> AsyncIterator[bytes]:
    """The messages of a stream, until the server is stopped or the ledger cannot be read."""
    yield b"retry: 1000\n\n"
    last = time.monotonic()
    while not served.watcher.closed:
        try:
            seen = await served.watcher.seen()
            for mark, state in await run_in_threadpool(changes.take):
                last = time.monotonic()
                yield _message(mark, state)
        except StorageError as problem:
            log.warning("stream closed, the client will reconnect: %s", problem)
            return
        left = last + HEARTBEAT - time.monotonic()
        if left <= 0:
            last, left = time.monotonic(), HEARTBEAT
            yield b": still here\n\n"
        await served.watcher.change(seen, left)


def _message(mark: str, state: EventState) -> bytes:
    return f"id: {mark}\nevent: control\ndata: {json.dumps(state.to_json())}\n\n".encode()
