"""Requests for control events, and why one is refused before it is accepted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from spark_ext.errors import ConfigurationError
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.model.offsets import Json


class Refusal(str, Enum):
    """Why a request is refused, and the status of HTTP that says so."""

    status: int
    MALFORMED = "malformed", 400  # the request itself is not well-formed
    UNKNOWN_KIND = "unknown_kind", 400
    UNKNOWN_TARGET = "unknown_target", 404  # the job has no such query, source, channel or sink
    NO_JOB = "no_job", 404  # the state directory contains no job
    BAD_VALUE = "bad_value", 422  # the kind does not take this value, or not for this target
    EXPIRED = "expired", 422  # its time is over
    KEY_REUSED = "key_reused", 409  # its idempotency key was given to another request
    ENDED = "ended", 409  # the job or query has finished or was drained, or does not run
    OBSERVED = "observed", 409  # the state directory is that of an Observer, which changes nothing
    BUSY = "busy", 429  # too many requests are waiting

    def __new__(cls, value: str, status: int) -> Refusal:
        """A member: its value is the reason alone."""
        found = str.__new__(cls, value)
        found._value_, found.status = value, status
        return found

    __str__ = str.__str__


class ControlRefused(ConfigurationError):
    """A control event was refused before it was accepted: nothing has changed."""

    code = "CONTROL_REFUSED"
    refusal: Refusal = Refusal.MALFORMED  # why
    retry_after: float = 0.0  # for `BUSY`: when it may be sent again, s; 0: no estimate

    @classmethod
    def because(cls, refusal: Refusal, what: str, operator: str, do: str) -> ControlRefused:
        """The refusal of a request."""
        runs = refusal not in (Refusal.NO_JOB, Refusal.ENDED)
        kept = f"{'the job continues as it was; ' if runs else ''}nothing was accepted"
        found = cls(what, operator=operator, kept=kept, do=do)
        found.refusal = refusal
        return found


@dataclass(frozen=True)
class Request:
    """What somebody asks of a job."""

    kind: str
    target: str = "job"  # as written: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL`, `sink:UID`
    value: Json = None
    delivery: str = "immediate"  # `immediate` or `aligned`
    idempotency_key: str | None = None  # a repeated request with this key has no further effect; 1 to 200 characters
    expires_at: datetime | None = None  # UTC; when it is not to be obeyed any more if that has not begun
    requested_by: str = ""
    origin: str = ""
    reason: str = ""  # why, if the job itself asks


@dataclass(frozen=True)
class Accepted:
    """An event that is in the ledger: from here on it survives any crash."""

    event: Event
    repeated: bool = False  # whether it had been accepted before, under the same idempotency key
    note: str = ""  # what its sender may have overlooked


def fingerprint(kind: str, target: Target, value: Json, delivery: Delivery, expires_ms: int | None) -> str:
    """Equal for requests that ask for the same."""
    text = json.dumps([kind, str(target), value, delivery.value, expires_ms], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
