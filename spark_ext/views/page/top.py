"""The data of `spark-ext top`: the queries of a job, those that need attention first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.incidents.types import IncidentState
from spark_ext.views.timeline import ENDED

RECENT_MS: Final = 600_000  # how long an incident whose end is not recorded counts as open, ms

ORDER: Final = ("FAILED", "DOWN", "FAILING", "RESTARTING", "RESTORING", "DEPLOYING", "SCHEDULING", "CREATED", "PAUSED")
"""States that stand first, in this order."""


def top_rows(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per query, those that need attention first.

    `rows_per_s` (null: not running), `parts_ms` (see `model.epoch_parts`; empty: unknown), `lag_rows` (null: unknown),
    `lag_age_s` (since when; null: unknown, or it has ended), `age_s` (since its newest epoch was committed), `exchange`
    (how full the one is that it writes; null: none, or unknown), `inboxes` (that it reads), `incident` (the id of an
    open one, or "").
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
                "exchange": query["exchange"],
                "inboxes": query["inboxes"],
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


def _age(now: int, at: int | None) -> float | None:
    """How long ago a time was, s."""
    return None if at is None else max(0.0, round((now - at) / 1000, 1))


def _urgency(state: str) -> int:
    return ORDER.index(state) if state in ORDER else len(ORDER)
