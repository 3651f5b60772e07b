"""Incidents as a user asks for them: by label, query, time, severity, state and type. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from spark_ext.errors import ConfigurationError
from spark_ext.failures.labels import TYPE_NAME, UNKNOWN
from spark_ext.incidents.registry import shipped
from spark_ext.incidents.types import IncidentState, Severity, query_in
from spark_ext.ledger.incidents import Standing

Incident = Mapping[str, Any]  # a row of the table `incidents`, with `labels` and `evidence` as values; see `merged`
_AGO: Final = re.compile(r"(?P<number>\d+)\s*(?P<unit>s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Wanted:
    """Which incidents are asked for. Everything given has to hold."""

    labels: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    since: datetime | None = None
    severity: Severity | None = None  # the least one
    state: IncidentState | None = None
    types: tuple[str, ...] = ()  # one of these; none: any

    def accepts(self, incident: Incident) -> bool:
        """Whether an incident is asked for."""
        labels = incident["labels"] or {}
        return (
            all(str(labels.get(name)) == value for name, value in self.labels.items())
            and (self.query is None or query_of(incident) == self.query)
            and (self.since is None or incident["at"] >= self.since)
            and (self.severity is None or severity_of(incident).rank >= self.severity.rank)
            and (self.state is None or incident.get("state") == self.state.value)
            and (not self.types or incident["type"] in self.types)
        )

    def check(self, incidents: Sequence[Incident], queries: Iterable[str]) -> None:
        """Refuse a label or query that nothing has."""
        names = sorted({name for incident in incidents for name in incident["labels"] or {}} | {"type", "origin"})
        for name in self.labels:
            if name not in names:
                raise _unknown(f"label '{name}'", names)
        uids = sorted({*queries, *filter(None, map(query_of, incidents))})
        if self.query is not None and self.query not in uids:
            raise _unknown(f"query '{self.query}'", uids)
        kinds = sorted({incident["type"] for incident in incidents} | shipped().types.keys())
        for name in self.types:
            if name not in kinds:
                raise _unknown(f"type '{name}'", kinds)


def query_of(incident: Incident) -> str:
    """The uid of the query that an incident is about; "" if it is about the whole job."""
    return query_in(incident["operator"])


def class_of(labels: Mapping[str, Any] | None) -> str:
    """The type of failure that an incident's labels name; UNKNOWN if they name none."""
    found = str((labels or {}).get("type"))
    return found if TYPE_NAME.fullmatch(found) else UNKNOWN


def texts_of(incident: Incident) -> str:
    """The first line of a merged incident's text; of the first and of the last one if they differ."""
    first, last = (incident[name].partition("\n")[0] for name in ("first_what", "what"))
    return first if first == last else f"{first}; last: {last}"


def severity_of(incident: Incident) -> Severity:
    """How serious an incident is."""
    return Severity(incident["severity"])


def merged(rows: Iterable[Incident], standing: Mapping[str, Standing]) -> list[dict[str, Any]]:
    """The incidents of a job, each once, oldest first.

    An incident that has happened more than once has the time of the first, and everything else of the last. It has
    further fields: `first_what`, the text of the first; `last`, the time of its last recorded occurrence; `state`, OPEN
    or RESOLVED, and None if nothing is known; `state_since`; `cause`; and `count`.
    """
    first: dict[str, Incident] = {}
    newest: dict[str, Incident] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        first.setdefault(row["incident_id"], row)
        newest[row["incident_id"]] = row
    found = [
        {
            **row,
            "at": first[incident_id]["at"],
            "first_what": first[incident_id]["what"],
            "last": row["at"],
            **_standing(row, standing.get(incident_id)),
        }
        for incident_id, row in newest.items()
    ]
    return sorted(found, key=lambda row: (row["at"], row["incident_id"]))


def _standing(row: Incident, known: Standing | None) -> dict[str, Any]:
    if known is None:
        return {"state": None, "state_since": None, "cause": "", "count": 1}
    return {
        "what": known.what or row["what"],
        "state": known.state.value,
        "state_since": known.since,
        "cause": known.cause,
        "count": known.count,
    }


def chosen(text: str, values: type[Severity] | type[IncidentState], option: str) -> Any:
    """A severity or state from what a user has written, in any case."""
    try:
        return values(text.upper())
    except ValueError:
        raise ConfigurationError(
            f"'{text}' is not one of: {', '.join(one.value for one in values)}",
            operator=option,
            kept="nothing was changed",
            do=f"write one of: {', '.join(one.value for one in values)}",
        ) from None


def label(text: str) -> tuple[str, str]:
    """A label from `name=value`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(
            f"'{text}' is not a label", operator="--label", kept="nothing was changed", do="write NAME=VALUE"
        )
    return name, value


def moment(text: str, now: datetime) -> datetime:
    """A time from ISO 8601, UTC unless it says otherwise, or from a duration before now: `30m`, `2h`, `7d`."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - timedelta(**{_UNITS[ago["unit"]]: int(ago["number"])})
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"'{text}' is not a time",
            operator="--since",
            kept="nothing was changed",
            do="write 2026-01-31T12:00:00, which is UTC, or how long ago: 30m, 2h, 7d",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _unknown(what: str, there: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the job has no {what}" if what.startswith("query") else f"no incident of this job has the {what}",
        operator="incidents",
        kept="nothing was changed",
        do=f"use one of: {', '.join(there) or 'none yet'}",
    )
