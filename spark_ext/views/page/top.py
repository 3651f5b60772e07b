"""The live view of `spark-ext top`: the queries of a job, those that need attention first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from textwrap import shorten
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from spark_ext.incidents.types import IncidentState
from spark_ext.views.style import colour, count, duration, lag_text
from spark_ext.views.timeline import ENDED

RECENT_MS: Final = 600_000
"""How long an incident whose end is not recorded counts as open, ms."""

ORDER: Final = ("FAILED", "DOWN", "FAILING", "RESTARTING", "RESTORING", "DEPLOYING", "SCHEDULING", "CREATED", "PAUSED")
"""States that stand first, in this order."""


def top_rows(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per query, those that need attention first.

    Returns:
        `query`, `state`, `rows_per_s` (null: not running), `epochs`, `last_epoch`, `last_epoch_ms`, `parts_ms` (see
        `model.epoch_parts`; empty: unknown), `lag_rows` (null: unknown), `lag_age_s` (since when; null: unknown, or it
        has ended), `age_s` (since its newest epoch was committed),
        `incident` (the id of an open one, or "") and `reason`.
    """
    open_ = open_incidents(page)
    found = []
    for query in page["queries"]:
        found.append(
            {
                "query": query["uid"],
                "state": query["state"],
                "rows_per_s": query["rate"],
                "epochs": query["epochs"],
                "last_epoch": query["last_epoch"],
                "last_epoch_ms": query["last_ms"],
                "parts_ms": query["parts"],
                "lag_rows": query["lag"]["rows"],
                "lag_age_s": None if query["state"] in ENDED else _age(page["at"], query["lag"]["at"]),
                "age_s": _age(page["at"], query["committed_at"]),
                "incident": open_.get(query["uid"], ""),
                "reason": query["reason"].partition("\n")[0],
            }
        )
    return sorted(found, key=lambda row: (_urgency(row["state"]), not row["incident"], row["query"]))


def open_incidents(page: Mapping[str, Any]) -> dict[str, str]:
    """By query ("" for the job), the newest incident that is open: not closed, and of a job or query that is not well.

    An older ledger does not record the end of an incident. There it is open while its query, or the job, is in the
    state to which it has led, and for ten minutes.
    """
    states = {query["uid"]: query["state"] for query in page["queries"]}
    found: dict[str, str] = {}
    for incident in reversed(page["incidents"]):
        status = incident["status"]
        if status == IncidentState.RESOLVED.value:
            continue
        state = states.get(incident["query"], page["job"]["state"])
        if status or _urgency(state) < len(ORDER) or page["at"] - incident["at"] < RECENT_MS:
            found[incident["query"]] = incident["id"]
    return found


def top_json(page: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` prints."""
    job = page["job"]
    return {
        "at": datetime.fromtimestamp(page["at"] / 1000, timezone.utc),
        "job": job["name"],
        "state": job["state"],
        "incarnation": job["incarnation"],
        "alive": job["alive"],
        "silent": job["silent"],
        "rows_per_s": job["rate"],
        "lag_rows": job["lag"],
        "epochs": job["epochs"],
        "rows": job["rows"],
        "incident": open_incidents(page).get("", ""),
        "queries": top_rows(page),
    }


def top_view(page: Mapping[str, Any], height: int | None = None) -> Group:
    """The view for a terminal.

    Args:
        height: lines of the terminal; None: all queries.
    """
    job = page["job"]
    rows = top_rows(page)
    most = len(rows) if height is None else max(1, height - 5)
    head = Text(f"{job['name']} ", style="bold").append(job["state"], style=colour(job["state"]).terminal)
    rate = "" if job["rate"] is None else f"  {job['rate']:,.0f} rows/s"
    head.append(
        f"  incarnation {job['incarnation']}  {count(job['epochs'], 'epoch')}  {count(job['rows'], 'row')}{rate}"
        f"  {datetime.fromtimestamp(page['at'] / 1000, timezone.utc):%H:%M:%S} UTC"
    )
    if job["silent"]:
        beat = datetime.fromtimestamp(job["heartbeat"] / 1000, timezone.utc)
        head.append(f"  no heartbeat since {beat:%Y-%m-%d %H:%M:%S} UTC", style=colour("DOWN").terminal)
    more = len(rows) - most
    return Group(head, _table(rows[:most]), *([Text(f"and {more} more", style="bright_black")] if more > 0 else []))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in ("query", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows/s", "epochs", "last epoch", "took", "ago"):
        table.add_column(name, justify="right", no_wrap=True)
    behind = any(row["lag_rows"] is not None for row in rows)
    if behind:
        table.add_column("lag", justify="right", no_wrap=True)
    divided = any(row["parts_ms"] for row in rows)
    if divided:
        table.add_column("mostly", no_wrap=True)
    table.add_column("incident", no_wrap=True)
    table.add_column("reason", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(
            Text(row["query"]),
            Text(row["state"], style=colour(row["state"]).terminal),
            _number(row["rows_per_s"]),
            _number(row["epochs"]),
            _number(row["last_epoch"]),
            "" if row["last_epoch_ms"] is None else duration(row["last_epoch_ms"] / 1000),
            "" if row["age_s"] is None else duration(row["age_s"]),
            *([lag_text(row["lag_rows"], row["lag_age_s"])] if behind else []),
            *([mostly(row["parts_ms"])] if divided else []),
            Text(row["incident"][:8], style="red"),
            Text(shorten(row["reason"], 100, placeholder=" ...")),
        )
    return table


def mostly(parts: Mapping[str, int]) -> str:
    """The part of an epoch that took the longest, with its share: `user code 63%`; "" if nothing is known.

    Args:
        parts: ms, by `model.epoch_parts.PARTS`.
    """
    whole = sum(parts.values())
    if not whole:
        return ""
    longest = max(parts, key=lambda part: parts[part])
    return f"{longest.replace('_', ' ')} {round(100 * parts[longest] / whole)}%"


def _age(now: int, at: int | None) -> float | None:
    """How long ago a time was, s."""
    return None if at is None else max(0.0, round((now - at) / 1000, 1))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _urgency(state: str) -> int:
    return ORDER.index(state) if state in ORDER else len(ORDER)
