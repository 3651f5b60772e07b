"""Incidents as a user asks for them: by label, query and time. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from spark_ext.errors import ConfigurationError

Incident = Mapping[str, Any]
"""A row of the table `incidents`, with `labels` and `evidence` as values."""

_AGO: Final = re.compile(r"(?P<number>\d+)\s*(?P<unit>s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Wanted:
    """Which incidents are asked for. Everything given has to hold."""

    labels: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    since: datetime | None = None

    def accepts(self, incident: Incident) -> bool:
        """Whether an incident is asked for."""
        labels = incident["labels"] or {}
        return (
            all(str(labels.get(name)) == value for name, value in self.labels.items())
            and (self.query is None or query_of(incident) == self.query)
            and (self.since is None or incident["at"] >= self.since)
        )

    def check(self, incidents: Sequence[Incident], queries: Iterable[str]) -> None:
        """Refuse a label or query that nothing has.

        Args:
            incidents: all of the job.
            queries: the job's.

        Raises:
            ConfigurationError: a name is unknown; the message says which there are.
        """
        names = sorted({name for incident in incidents for name in incident["labels"] or {}} | {"type", "origin"})
        for name in self.labels:
            if name not in names:
                raise _unknown(f"label '{name}'", names)
        uids = sorted({*queries, *filter(None, map(query_of, incidents))})
        if self.query is not None and self.query not in uids:
            raise _unknown(f"query '{self.query}'", uids)


def query_of(incident: Incident) -> str:
    """The uid of the query that an incident is about; "" if it is about the whole job."""
    match = re.search(r"query '([^']+)'", incident["operator"])
    return match[1] if match is not None else ""


def label(text: str) -> tuple[str, str]:
    """A label from `name=value`.

    Raises:
        ConfigurationError: it has another form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(
            f"'{text}' is not a label", operator="--label", kept="nothing was changed", do="write NAME=VALUE"
        )
    return name, value


def moment(text: str, now: datetime) -> datetime:
    """A time from ISO 8601, UTC unless it says otherwise, or from a duration before now: `30m`, `2h`, `7d`.

    Raises:
        ConfigurationError: it is neither.
    """
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
        f"no incident of this job has the {what}" if what.startswith("label") else f"the job has no {what}",
        operator="incidents",
        kept="nothing was changed",
        do=f"use one of: {', '.join(there) or 'none yet'}",
    )
