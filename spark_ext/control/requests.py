"""Requests for control events, and why one is refused before it is accepted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from spark_ext.errors import ConfigurationError
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.model.offsets import Json


class Refusal(str, Enum):
    """Why a request is refused; each stands for one status of HTTP."""

    MALFORMED = "malformed"
    """The request itself is not well-formed: 400."""
    UNKNOWN_KIND = "unknown_kind"
    """The kind is unknown: 400."""
    UNKNOWN_TARGET = "unknown_target"
    """The job has no such query, source, channel or sink: 404."""
    NO_JOB = "no_job"
    """The state directory contains no job: 404."""
    BAD_VALUE = "bad_value"
    """The kind does not take this value, or not for this target: 422."""
    EXPIRED = "expired"
    """Its time is over: 422."""
    KEY_REUSED = "key_reused"
    """Its idempotency key was given to another request: 409."""
    ENDED = "ended"
    """The job or query has finished or was drained, or does not run: 409."""
    OBSERVED = "observed"
    """The state directory is that of an Observer, which changes nothing: 409."""
    BUSY = "busy"
    """Too many requests are waiting: 429."""

    __str__ = str.__str__


STATUS: Mapping[Refusal, int] = {
    Refusal.MALFORMED: 400,
    Refusal.UNKNOWN_KIND: 400,
    Refusal.UNKNOWN_TARGET: 404,
    Refusal.NO_JOB: 404,
    Refusal.BAD_VALUE: 422,
    Refusal.EXPIRED: 422,
    Refusal.KEY_REUSED: 409,
    Refusal.ENDED: 409,
    Refusal.OBSERVED: 409,
    Refusal.BUSY: 429,
}
"""The HTTP status of each refusal."""


class ControlRefused(ConfigurationError):
    """A control event was refused before it was accepted: nothing has changed."""

    code = "CONTROL_REFUSED"
    refusal: Refusal = Refusal.MALFORMED
    """Why."""
    retry_after: float = 0.0
    """For `BUSY`: when it may be sent again, s; 0: no estimate."""

    @classmethod
    def because(cls, refusal: Refusal, what: str, operator: str, do: str) -> ControlRefused:
        """The refusal of a request."""
        found = cls(what, operator=operator, kept="the job continues as it was; nothing was accepted", do=do)
        found.refusal = refusal
        return found


@dataclass(frozen=True)
class Request:
    """What somebody asks of a job."""

    kind: str
    target: str = "job"
    """As written: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL`, `sink:UID`."""
    value: Json = None
    delivery: str = "immediate"
    """`immediate` or `aligned`."""
    idempotency_key: str | None = None
    """Idempotency key: repeating a request with the same key has no further effect. At most 200 characters."""
    expires_at: datetime | None = None
    """UTC; when it is not to be obeyed any more if that has not begun."""
    requested_by: str = ""
    origin: str = ""
    reason: str = ""
    """Why, if the job itself asks."""


@dataclass(frozen=True)
class Accepted:
    """An event that is in the ledger: from here on it survives any crash."""

    event: Event
    repeated: bool = False
    """Whether it had been accepted before, under the same idempotency key."""


def fingerprint(kind: str, target: Target, value: Json, delivery: Delivery, expires_ms: int | None) -> str:
    """Equal for requests that ask for the same."""
    text = json.dumps([kind, str(target), value, delivery.value, expires_ms], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
