"""`spark-ext timeline`: what a job did when, and where its time went."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_ext.commands.incidents import read_incidents
from spark_ext.commands.output import Json, State, Storage, print_json, print_text, storage_options
from spark_ext.views.downtime import downtime
from spark_ext.views.incidents import moment
from spark_ext.views.terminal import Terminal

if TYPE_CHECKING:
    from spark_ext.views.downtime import Downtime


def timeline(
    state: State,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Availability from then on: ISO 8601, or how long ago: 2h, 7d.")
    ] = "1d",
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show what a job did when, the time that it spent in each state, and what its downtime was due to."""
    from spark_ext.views.status import open_ledger, status_of

    ledger = open_ledger(state, storage_options(storage))
    now = datetime.now(timezone.utc)
    begin = moment(since, now)
    status, incidents = status_of(ledger), read_incidents(ledger)
    found = downtime(status.timeline, incidents, status.ended or now)
    rows = {row["incident_id"]: row for row in incidents}
    if as_json:
        print_json(_plain(found, begin, now) | {"incarnations": status.timeline.to_json()})
        return
    Terminal().print(status.timeline)
    print_text(f"wall time {found.wall:,.1f} s: " + ", ".join(f"{s:,.1f} s {n}" for n, s in found.by_state().items()))
    print_text(f"availability since {begin:%Y-%m-%d %H:%M:%S} UTC: {found.availability(begin, now):.4%}")
    for incident, states in found.by_incident().items():
        row = rows[incident]
        labels = row["labels"] or {}
        kind = f"{labels.get('type', '')} {labels.get('origin', '')}".strip() or row["type"]
        spent = ", ".join(f"{seconds:,.1f} s {name}" for name, seconds in states.items())
        print_text(f"{incident[:8]}  {kind}: {spent}  {row['what'].partition(chr(10))[0]}")


def _plain(found: Downtime, since: datetime, now: datetime) -> dict[str, Any]:
    return {
        "wall_s": found.wall,
        "states_s": found.by_state(),
        "incidents_s": found.by_incident(),
        "since": since,
        "availability": found.availability(since, now),
    }
