"""The values of the ledger's columns that name an event, a kind or a status: equal to the texts that are stored."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """Base of these values; text in a message, as in a table."""

    __str__ = str.__str__


class JobEvent(Kind):
    """An event in the life of the job."""

    STARTED = "started"  # an incarnation has started
    ENDED = "ended"  # an incarnation has ended in order, whatever its outcome
    RESET = "reset"  # a query, or all, have a new lineage
    RENAMED = "renamed"  # a query has another name, and keeps its lineage and its history
    REMOVED = "removed"  # a query that had not finished was abandoned on purpose
    RESTORING = "restoring"  # a step of a restore has been taken: the job cannot be started before the last one
    RESTORED = "restored"  # the last step: all queries have the new lineage
    LEFT_OUT = "left_out"  # a restore in place did not put its output back: it may begin only after a reset
    RESCALED = "rescaled"  # the state of a query has another number of partitions


class CheckpointKind(Kind):
    """What a checkpoint is for."""

    PERIODIC = "periodic"
    FINAL = "final"  # the one after a query's last row
    SAVEPOINT = "savepoint"  # a user's


class CheckpointMode(Kind):
    """How a checkpoint of the whole job was taken."""

    UNALIGNED = "unaligned"  # at the newest consistent set of committed epochs: what lies between is in flight
    ALIGNED = "aligned"  # where a barrier has passed all queries: nothing is in flight


class CheckpointStatus(Kind):
    """A step of a checkpoint; see `model.lifecycle.FinalStep` for those of a final one."""

    TRIGGERED = "TRIGGERED"  # an aligned one is under way
    COMPLETED = "COMPLETED"
    FLAGGED = "FLAGGED"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    CLOSED = "CLOSED"
    FAILED = "FAILED"
    RELEASED = "RELEASED"  # it is not retained any more: a restore cannot begin from it


class ExchangeEvent(Kind):
    """An event in the life of an exchange."""

    REGISTERED = "registered"  # a source reads it: what it has not read stays
    SEALED = "sealed"  # the query that writes it has finished
    RELEASED = "released"  # entries below a number were deleted: nobody needs them
    HELD = "held"  # a savepoint or retained checkpoint has what is in flight from a number on
    CUT = "cut"  # a restore has abandoned the entries from a number on
    FORGOTTEN = "forgotten"  # a source reads it no longer


class FinishedKind(Kind):
    """What has finished."""

    CHANNEL = "channel"
    SOURCE = "source"
    QUERY = "query"
    CLOSED = "closed"  # a source whose query runs on: it was acknowledged and closed


class ControlStatus(Kind):
    """A step in the life of a control event."""

    ACCEPTED = "accepted"
    APPLIED = "applied"  # a query obeys it from an epoch on, or the driver has carried it out
    ACKNOWLEDGED = "acknowledged"  # all whom it concerns have obeyed it, and their epochs are committed
    REJECTED = "rejected"  # it could not be obeyed as it was requested
    FAILED = "failed"  # it was attempted, or lost its chance
    EXPIRED = "expired"  # its time was over before it was obeyed
