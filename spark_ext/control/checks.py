"""What is checked of a request before it is accepted: everything that can be known then. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from spark_ext.control.functions import misfit
from spark_ext.control.known import KnownJob
from spark_ext.control.requests import ControlRefused, Refusal, Request, fingerprint
from spark_ext.model import json_schemas
from spark_ext.model.configuration import MAX_CONFIGURATION_BYTES, Configuration
from spark_ext.model.control import JOB, Delivery, Event, Scope, Target
from spark_ext.model.control_kinds import BadValue, Kind, checked, kinds
from spark_ext.model.offsets import Json


@dataclass(frozen=True)
class Checked:
    """A request whose kind, target and value are known to be good."""

    request: Request
    kind: Kind
    target: Target
    value: Json
    delivery: Delivery
    expires_ms: int | None
    fingerprint: str


def check_request(request: Request, job: KnownJob, queries: Collection[str], *, by_driver: bool) -> Checked:
    """Check all of a request that does not depend on other events.

    `queries` are further queries of the job, which the ledger does not know yet; `by_driver` says that the job's own
    driver asks: it runs.
    """
    operator = f"job '{job.name}', {request.kind} for {request.target}"
    kind = kinds().get(request.kind)
    if kind is None or not (kind.public or request.origin == "job"):
        public = ", ".join(sorted(name for name, one in kinds().items() if one.public))
        raise ControlRefused.because(
            Refusal.UNKNOWN_KIND, f"unknown kind of control event {request.kind!r}", operator, f"use one of: {public}"
        )
    try:
        target = Target.parse(request.target)
    except ValueError as problem:
        raise ControlRefused.because(Refusal.MALFORMED, str(problem), operator, "write one of these forms") from None
    delivery, expires = _envelope(request, operator)
    try:
        value = checked(kind, target, request.value)
    except BadValue as problem:
        raise ControlRefused.because(
            Refusal.BAD_VALUE, str(problem), operator, f"correct it; an example: {json.dumps(kind.example)}"
        ) from None
    if delivery is Delivery.ALIGNED and not kind.aligned:
        raise ControlRefused.because(
            Refusal.BAD_VALUE, f"{kind.name} cannot be delivered at one cut of all queries", operator, "use immediate"
        )
    _check_job(kind, target, job, queries, operator, by_driver=by_driver)
    mark = fingerprint(kind.name, target, value, delivery, expires)
    return Checked(request, kind, target, value, delivery, expires, mark)


def _envelope(request: Request, operator: str) -> tuple[Delivery, int | None]:
    """The delivery of a request, and its expiry in ms since 1970."""
    if request.delivery not in (Delivery.IMMEDIATE.value, Delivery.ALIGNED.value):
        raise ControlRefused.because(
            Refusal.MALFORMED, f"{request.delivery!r} is not a delivery mode", operator, "use immediate or aligned"
        )
    if request.idempotency_key is not None and not 0 < len(request.idempotency_key) <= 200:
        raise ControlRefused.because(
            Refusal.MALFORMED, "the idempotency key is empty or too long", operator, "use 1 to 200 characters"
        )
    if request.expires_at is None:
        return Delivery(request.delivery), None
    if request.expires_at.tzinfo is None:
        raise ControlRefused.because(
            Refusal.MALFORMED, "expires_at has no time zone", operator, "give a time in UTC, such as ...T12:00:00Z"
        )
    return Delivery(request.delivery), int(request.expires_at.timestamp() * 1000)


def _check_job(
    kind: Kind, target: Target, job: KnownJob, queries: Collection[str], operator: str, *, by_driver: bool
) -> None:
    late = any(uid not in job.queries for uid in queries) if target == JOB else target.uid in queries
    late = late and target.scope in (Scope.JOB, Scope.QUERY)
    concerned = job.queries_of(target)
    if not concerned and not late and target != JOB:
        there = [f"query:{uid}" for uid in job.queries]
        there += [f"source:{uid}" for query in job.queries.values() for uid in sorted(query.sources)]
        raise ControlRefused.because(
            Refusal.UNKNOWN_TARGET,
            f"the job has no {target}",
            operator,
            f"use job, or one of: {', '.join(sorted(there)[:20])}",
        )
    over = bool(concerned) and all(job.queries[uid].finished for uid in concerned)
    # A job that runs although all its queries have finished has one that waits for them to be built.
    if over and not late and kind.public and not (target == JOB and job.running):
        raise ControlRefused.because(
            Refusal.ENDED,
            "the job has finished" if job.finished else f"query '{concerned[0]}' has finished",
            operator,
            "nothing is left to be changed; a new input needs a new job, or job.reset(...)",
        )
    if kind.while_running and job.running is False and not by_driver:
        raise ControlRefused.because(
            Refusal.ENDED, f"{kind.name} needs a running job, and the job does not run", operator, "start the job first"
        )


def moved(
    before: Configuration, size: int, one: Checked, event: Event, now: datetime, job: KnownJob, operator: str
) -> tuple[Configuration, int]:
    """The configuration after an event, and a number no less than its bytes; `size` is such a number for `before`."""
    operator = f"{operator}, {one.kind.name} for {one.target}"
    if event.expires_ms is not None and event.expires_ms <= now.timestamp() * 1000:
        raise ControlRefused.because(
            Refusal.EXPIRED, "expires_at is in the past", operator, "give a later time, and check the clocks"
        )
    if one.kind.name == "set_config":
        _check_value(before, event, job, operator)
    if one.kind.name == "reload":
        _check_lookup(before, event, operator)
    after = before.after([event])
    if not one.kind.standing:
        return after, size
    size += size_of(event)
    if size > MAX_CONFIGURATION_BYTES:
        # What replaces another value was counted as if it were added: now it matters.
        size = len(json.dumps(after.to_json()))
    if size > MAX_CONFIGURATION_BYTES:
        raise ControlRefused.because(
            Refusal.BAD_VALUE,
            f"the job's configuration would be larger than {MAX_CONFIGURATION_BYTES} bytes",
            operator,
            "remove keys with unset, or keep large values in a file or table, and its name here",
        )
    return after, size


def size_of(event: Event) -> int:
    """By how many bytes an event makes a configuration longer at most."""
    kind = kinds().get(event.kind)
    if kind is not None and not kind.standing:
        return 0
    return len(json.dumps(event.value)) + 3 * len(str(event.target)) + 200


def _check_lookup(before: Configuration, event: Event, operator: str) -> None:
    known = before.standing.get("lookup_version", {}).get(str(JOB), {})
    if event.value["lookup"] not in known:
        raise ControlRefused.because(
            Refusal.BAD_VALUE,
            f"the job has no lookup '{event.value['lookup']}'",
            operator,
            f"name one of: {', '.join(sorted(known))}" if known else "declare it with job.lookup(...)",
        )


def _check_value(before: Configuration, event: Event, job: KnownJob, operator: str) -> None:
    """Refuse a value that its declared schema does not allow; without one, a value that a query cannot read."""
    key, value = event.value["key"], event.value.get("value")
    if event.value.get("unset"):
        return
    declared = before.of("config_schema", JOB, key)
    if declared is not None:
        wrong = json_schemas.problem_of(declared["schema"], value)
        if wrong is not None:
            raise ControlRefused.because(
                Refusal.BAD_VALUE,
                f"the value of '{key}' does not conform to its schema: {wrong}",
                operator,
                f"correct the value, or declare another schema: {_SET_SCHEMA}",
            )
        return
    for uid in job.queries_of(event.target):
        query = job.queries[uid]
        for kind in () if query.finished else [kind for name, kind in query.reads if name == key]:
            wrong = misfit(value, kind)
            if wrong:
                raise ControlRefused.because(
                    Refusal.BAD_VALUE,
                    f"the value of '{key}' is not of the type {kind}, as which query '{uid}' reads it: {wrong}",
                    operator,
                    f"set a value of this type; to decide yourself what is accepted, declare a schema: {_SET_SCHEMA}",
                )


def note_of(before: Configuration, event: Event, job: KnownJob) -> str:
    """What the sender of an event that is accepted may have overlooked: a key that is almost one that queries read."""
    if event.kind != "set_config" or event.value.get("unset"):
        return ""
    key = event.value["key"]
    known = {name for query in job.queries.values() for name, _ in query.reads}
    known.update(before.standing.get("config_schema", {}).get(str(JOB), {}))
    if key in known or any(key in slots for slots in before.standing.get("set_config", {}).values()):
        return ""
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.8)
    return f"no query reads '{key}' with sx.control.value; did you mean '{near[0]}'?" if near else ""


_SET_SCHEMA: Final = "spark-ext control STATE schema KEY SCHEMA (the kind config_schema)"
