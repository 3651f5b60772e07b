"""Routes of what has happened to a job: its lifecycle events, its timeline, and its availability."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query
from fastapi import Request as HttpRequest
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse

from spark_ext.errors import SparkExtError
from spark_ext.incidents.types import EventKind
from spark_ext.masking import logger
from spark_ext.server import answers
from spark_ext.server.control_routes import HEARTBEAT, streamed
from spark_ext.server.event_log import POLL_EVERY, Followed, Mark
from spark_ext.server.guard import caller_of
from spark_ext.server.job_routes import JobName
from spark_ext.server.limits import Slots
from spark_ext.server.problems import Problem, documented
from spark_ext.views.downtime import by_class, downtime
from spark_ext.views.incidents import class_of
from spark_ext.views.status import status_from
from spark_ext.views.timeline import JOB

if TYPE_CHECKING:
    from spark_ext.server.served import ServedJob, ServedJobs
    from spark_ext.views.downtime import Downtime
    from spark_ext.views.status import JobStatus

log = logger("spark_ext.server")

Kinds = Literal["state", "source", "checkpoint", "job", "incident"]
Since = Annotated[datetime | None, Query(description="ISO 8601; UTC, unless it says otherwise.")]
DAY: Final = timedelta(days=1)
_STREAM: Final[dict[str, Any]] = {"text/event-stream": {"schema": answers.LifecycleEventAnswer.model_json_schema()}}


def history_routes(jobs: ServedJobs, slots: Slots) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1/jobs/{job}", tags=["jobs"], responses=documented(409))

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"description": "One message per event; data is JSON as below.", "content": _STREAM}},
        summary="Follow lifecycle events, as server-sent events",
    )
    async def events(
        http: HttpRequest,
        job: JobName,
        kind: Annotated[list[Kinds] | None, Query(description="Only these kinds.", max_length=5)] = None,
        since: Since = None,
        last_event_id: Annotated[str | None, Header(description="To continue a stream.", max_length=200)] = None,
    ) -> Response:
        mark = None if last_event_id is None else Mark.parse(last_event_id)
        served, _ = await run_in_threadpool(jobs.find, job)
        followed = await run_in_threadpool(Followed, served.events, mark, _utc(since))
        kinds = frozenset(map(EventKind, kind or EventKind))
        return streamed(slots, caller_of(http.scope).name, _messages(served, followed, kinds))

    @router.get(
        "/timeline",
        response_model=answers.TimelineAnswer,
        summary="All starts of a job, and the time in each state; as spark-ext timeline --json",
    )
    def timeline(job: JobName, since: Since = None) -> dict[str, Any]:
        served = jobs.find(job)[0]
        status, found, _, now = _divided(served)
        begin = _utc(since) or now - DAY
        spent = downtime(status.timeline, served.page.facts().incidents, status.ended or now)
        available = None if status.timeline.has_end else found.availability(begin, now)
        queries: dict[str, dict[str, float]] = {}
        for (operator, state), seconds in status.timeline.seconds(now).items():
            if operator != JOB:
                queries.setdefault(operator, {})[state] = seconds
        return spent.to_json(found.since(begin), available) | {
            "queries_s": queries,
            "incarnations": status.timeline.to_json(),
        }

    @router.get(
        "/availability",
        response_model=answers.AvailabilityAnswer,
        summary="The share of a period in which a job was not down, and what the downtime is due to",
    )
    def availability(
        job: JobName,
        since: Since = None,
        until: Since = None,
        by: Annotated[Literal["class", "incident"], Query(description="By what downtime is summed.")] = "class",
    ) -> dict[str, Any]:
        _, found, classes, now = _divided(jobs.find(job)[0])
        end = _utc(until) or now
        begin = _utc(since) or end - DAY
        if begin >= end:
            raise Problem(422, "parameter", "the period does not begin before it ends", "give a since before until")
        pieces = [
            replace(piece, since=max(piece.since, begin), until=min(piece.until, end))
            for piece in found.pieces
            if piece.since < end and piece.until > begin
        ]
        share, down = found.share(begin, end)
        return {
            "since": begin,
            "until": end,
            "seconds": sum(piece.seconds for piece in pieces),
            "availability": share,
            "down_s": down,
            "by": by,
            "causes_s": by_class(pieces, classes if by == "class" else dict(zip(classes, classes, strict=True))),
        }

    return router


def _divided(served: ServedJob) -> tuple[JobStatus, Downtime, dict[str, str], datetime]:
    """The status of a job, where its time went, the class of each incident, and until when all that is."""
    facts, now = served.page.facts(), datetime.now(timezone.utc)
    status = status_from(facts)
    found = downtime(status.timeline.until(now), facts.incidents, now)
    return status, found, {row["incident_id"]: class_of(row["labels"]) for row in facts.incidents}, now


def _utc(at: datetime | None) -> datetime | None:
    return at.replace(tzinfo=timezone.utc) if at is not None and at.tzinfo is None else at


async def _messages(served: ServedJob, followed: Followed, kinds: Collection[EventKind]) -> AsyncIterator[bytes]:
    """What is lost, then each event, until the server is stopped or the ledger cannot be read."""
    yield b"retry: 1000\n\n"
    if followed.lost is not None:
        yield f"event: lost\ndata: {json.dumps(followed.lost)}\n\n".encode()
    last = time.monotonic()
    while not served.watcher.closed:
        try:
            new = await run_in_threadpool(lambda: list(followed.take()))
        except SparkExtError as problem:
            log.warning("stream closed, the client will reconnect: %s", problem)
            return
        for mark, event in new:
            if event.kind in kinds:
                last = time.monotonic()
                yield f"id: {mark}\nevent: {event.kind.value}\ndata: {json.dumps(event.to_json())}\n\n".encode()
        if time.monotonic() - last >= HEARTBEAT:
            last = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(POLL_EVERY)
