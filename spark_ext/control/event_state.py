"""What has become of a control event: derived from its row and its transitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.kinds import ControlStatus
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow
from spark_ext.model.control import Target
from spark_ext.model.offsets import Json

if TYPE_CHECKING:
    from spark_ext.control.requests import Request
    from spark_ext.model.control import Event

_BEGIN = datetime(1970, 1, 1, tzinfo=timezone.utc)
# statuses behind which nothing follows
FINAL: frozenset[str] = frozenset(
    status.value
    for status in (ControlStatus.ACKNOWLEDGED, ControlStatus.REJECTED, ControlStatus.FAILED, ControlStatus.EXPIRED)
)

STATUSES: tuple[str, ...] = tuple(status.value for status in ControlStatus)  # all statuses


@dataclass(frozen=True)
class Step:
    """One transition of an event."""

    status: str
    query: str  # for `applied`, `rejected` and `expired`: the query; "" for the job, and for what the event has come to
    epoch: int | None  # for `applied`: the query's first epoch with the event; None if it is not obeyed by an epoch
    at: datetime  # UTC
    reason: str = ""
    result: Json = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, times as ISO 8601 in UTC."""
        return {**vars(self), "at": self.at.isoformat()}


@dataclass(frozen=True, kw_only=True)
class EventState:
    """A control event and what has become of it."""

    sequence: int  # its place in the one order of the job's events
    event_id: str
    kind: str
    target: str  # as written: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL`, `sink:UID`
    value: Json
    status: str  # `accepted`, `applied`, or finally `acknowledged`, `rejected`, `failed` or `expired`
    delivery: str  # `immediate` or `aligned`
    requested_by: str
    origin: str
    idempotency_key: str | None
    lineage: int  # newest lineage of the job when it was accepted
    incarnation: int  # newest start of the job when it was accepted
    accepted_at: datetime  # UTC
    expires_at: datetime | None  # UTC; None: never
    reason: str = ""  # why it was rejected, has failed or expired; "" otherwise
    result: Json = None  # what it has brought; None if nothing
    applied: Mapping[str, int | None] = field(default_factory=dict)  # first epochs by query; "" is the driver
    steps: Sequence[Step] = ()  # its transitions after the acceptance, oldest first
    note: str = ""  # in the answer to its request: what its sender may have overlooked

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.status in FINAL

    @property
    def applied_ms(self) -> float | None:
        """Time from the acceptance until it was first applied, ms; None if it was not."""
        return self._ms(next((step.at for step in self.steps if step.status == "applied"), None))

    @property
    def acknowledged_ms(self) -> float | None:
        """Time from the acceptance until it was acknowledged, ms; None if it was not."""
        at = [step.at for step in self.steps if step.status == "acknowledged" and not step.query]
        return self._ms(at[0] if at else None)

    @property
    def final_at(self) -> datetime | None:
        """When it took its final status, UTC; None if it has not."""
        return next((step.at for step in self.steps if step.status in FINAL and not step.query), None)

    def _ms(self, at: datetime | None) -> float | None:
        return None if at is None else round((at - self.accepted_at).total_seconds() * 1000, 3)

    def to_json(self) -> dict[str, Any]:
        """Plain values, times as ISO 8601 in UTC."""
        plain = {name: one for name, one in vars(self).items() if name != "note"}
        times = {"accepted_at": self.accepted_at, "expires_at": self.expires_at, "final_at": self.final_at}
        return {
            "id": plain.pop("event_id"),
            **plain,
            **{name: None if at is None else at.isoformat() for name, at in times.items()},
            "final": self.final,
            "applied_ms": self.applied_ms,
            "acknowledged_ms": self.acknowledged_ms,
            "applied": dict(self.applied),
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def of(cls, event: Event, request: Request) -> EventState:
        """An event that was accepted just now."""
        return cls(
            sequence=event.sequence,
            event_id=event.event_id,
            kind=event.kind,
            target=str(event.target),
            value=event.value,
            status="accepted",
            delivery=event.delivery.value,
            requested_by=request.requested_by,
            origin=request.origin,
            idempotency_key=request.idempotency_key,
            lineage=event.lineage,
            incarnation=event.incarnation,
            accepted_at=_BEGIN + timedelta(milliseconds=event.at_ms),
            expires_at=None if event.expires_ms is None else _BEGIN + timedelta(milliseconds=event.expires_ms),
        )

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> EventState:
        """Read the JSON form."""
        given = {one.name: raw[one.name] for one in fields(cls) if one.name not in ("event_id", "note")}
        given |= {
            "event_id": raw["id"],
            "note": raw.get("note", ""),
            "accepted_at": datetime.fromisoformat(raw["accepted_at"]),
            "expires_at": None if raw["expires_at"] is None else datetime.fromisoformat(raw["expires_at"]),
            "steps": tuple(Step(**{**step, "at": datetime.fromisoformat(step["at"])}) for step in raw["steps"]),
        }
        return cls(**given)


def state_of(row: ControlEventRow, transitions: Iterable[ControlTransitionRow] = ()) -> EventState:
    """The state of an event."""
    steps: dict[tuple[object, ...], Step] = {}
    for one in transitions:
        key = (one.status, one.query, one.epoch, one.at)
        steps[key] = Step(*key, one.reason, one.result)
    ordered = sorted(steps.values(), key=lambda step: (step.at, _RANK.get(step.status, 0)))
    # The first one counts: what comes later, from a start that did not know of it, changes nothing.
    final = next((step for step in ordered if step.status in FINAL and not step.query), None)
    applied: dict[str, int | None] = {}
    for step in ordered:
        if step.status == "applied":
            applied.setdefault(step.query, step.epoch)
    return EventState(
        sequence=row.sequence,
        event_id=row.event_id,
        kind=row.kind,
        target=str(Target.parse(row.target)),
        value=row.value,
        status=final.status if final else "applied" if applied else "accepted",
        delivery=row.delivery,
        requested_by=row.requested_by or "",
        origin=row.origin or "",
        idempotency_key=row.idempotency_key,
        lineage=row.lineage,
        incarnation=row.incarnation,
        accepted_at=row.at,
        expires_at=row.expires_at,
        reason=final.reason if final else "",
        result=final.result if final else next((one.result for one in ordered if one.result is not None), None),
        applied=applied,
        steps=tuple(ordered),
    )


_RANK = {"applied": 0, "acknowledged": 1, "rejected": 1, "failed": 1, "expired": 1}  # for steps of one moment
