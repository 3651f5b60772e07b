"""Alert rules over the time of a job: whether it was available for a large enough share of a period. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spark_ext.incidents.registry import AlertRule
from spark_ext.views.downtime import Downtime


@dataclass(frozen=True)
class Availability:
    """What a rule finds."""

    share: float
    """Of the period, in which the job was available as far as the rule's labels go: 0 to 1."""
    down: float
    """Downtime with these labels, s."""
    low: bool
    """Whether the share is below that of the rule."""


def availability(
    rule: AlertRule, found: Downtime, incidents: Sequence[Mapping[str, Any]], now: datetime
) -> Availability:
    """Evaluate a rule.

    Time in which the job did not exist does not count. Downtime that belongs to no incident counts for a rule without
    labels alone.

    Args:
        now: the end of the period, UTC.
    """
    since = now - timedelta(milliseconds=rule.over)
    labels = {row["incident_id"]: row["labels"] or {} for row in incidents}
    whole = down = 0.0
    for piece in found.pieces:
        seconds = (min(piece.until, now) - max(piece.since, since)).total_seconds()
        if seconds <= 0:
            continue
        whole += seconds
        if piece.down and _has(labels.get(piece.incident, {}), rule.labels):
            down += seconds
    share = 1.0 if whole == 0.0 else 1.0 - down / whole
    return Availability(share, down, share < rule.below)


def _has(labels: Mapping[str, Any], wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(str(labels.get(name)) in values for name, values in wanted.items())
