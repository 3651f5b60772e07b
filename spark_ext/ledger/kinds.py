"""The values of the ledger's columns that name an event, a kind or a status: equal to the texts that are stored."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """Base of these values; text in a message, as in a table."""

    __str__ = str.__str__


class JobEvent(Kind):
    """An event in the life of the job."""

    STARTED = "started"
    """An incarnation has started."""
    ENDED = "ended"
    """An incarnation has ended in order, whatever its outcome."""
    RESET = "reset"
    """A query, or all, have a new lineage."""
    RENAMED = "renamed"
    """A query has another name, and keeps its lineage and its history."""
    REMOVED = "removed"
    """A query that had not finished was abandoned on purpose."""
    RESTORING = "restoring"
    """A step of a restore has been taken: the job cannot be started before the last one."""
    RESTORED = "restored"
    """The last step: all queries have the new lineage."""
    LEFT_OUT = "left_out"
    """A restore in place has left a query out: its output was not put back, so it may begin only after a reset."""
    RESCALED = "rescaled"
    """The state of a query has another number of partitions."""


class CheckpointKind(Kind):
    """What a checkpoint is for."""

    PERIODIC = "periodic"
    FINAL = "final"
    """The one after a query's last row."""
    SAVEPOINT = "savepoint"
    """A user's."""


class CheckpointMode(Kind):
    """How a checkpoint of the whole job was taken."""

    UNALIGNED = "unaligned"
    """At the newest consistent set of committed epochs; what lies between the queries is in flight."""
    ALIGNED = "aligned"
    """Where a barrier has passed all queries: nothing is in flight."""


class CheckpointStatus(Kind):
    """A step of a checkpoint; see `model.lifecycle.FinalStep` for those of a final one."""

    TRIGGERED = "TRIGGERED"
    """An aligned one is under way."""
    COMPLETED = "COMPLETED"
    FLAGGED = "FLAGGED"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    CLOSED = "CLOSED"
    FAILED = "FAILED"
    RELEASED = "RELEASED"
    """It is not retained any more: a restore cannot begin from it."""


class ExchangeEvent(Kind):
    """An event in the life of an exchange."""

    REGISTERED = "registered"
    """A source reads it: what it has not read stays."""
    SEALED = "sealed"
    """The query that writes it has finished."""
    RELEASED = "released"
    """Entries below a number were deleted: nobody needs them."""
    HELD = "held"
    """A savepoint or retained checkpoint has what is in flight from a number on."""
    CUT = "cut"
    """A restore has abandoned the entries from a number on."""
    FORGOTTEN = "forgotten"
    """A source reads it no longer."""


class FinishedKind(Kind):
    """What has finished."""

    CHANNEL = "channel"
    SOURCE = "source"
    QUERY = "query"


class ControlStatus(Kind):
    """A step in the life of a control event."""

    ACCEPTED = "accepted"
    APPLIED = "applied"
    """A query obeys it from an epoch on, or the driver has carried it out."""
    ACKNOWLEDGED = "acknowledged"
    """All whom it concerns have obeyed it, and their epochs are committed."""
    REJECTED = "rejected"
    """It could not be obeyed as it was requested."""
    FAILED = "failed"
    """It was attempted, or lost its chance."""
    EXPIRED = "expired"
    """Its time was over before it was obeyed."""
