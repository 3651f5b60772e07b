"""`spark-ext incidents`: what has happened to a job, by label, query and time."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_ext.commands.output import Json, State, Storage, print_json, print_rows, print_text, storage_options
from spark_ext.errors import ConfigurationError
from spark_ext.views.incidents import Wanted, label, moment

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

_COLUMNS: Final = ("at", "id", "kind", "type", "origin", "operator", "what", "action")
_SHORT: Final = 8
"""Characters of an incident's id that are shown."""
_LOOK_AGAIN: Final = 1.0
"""How often the ledger is read by `--follow`, s."""


def incidents(
    state: State,
    incident: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show this one alone, with its evidence.", show_default=False)
    ] = None,
    label_: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only with this label; may be repeated, all must be there."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Only of this query's uid.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only from then on: ISO 8601, or 2h, 7d.")] = None,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Only the newest N; 0 for all.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Then each one as it comes, until Ctrl-C.")] = False,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """List what has happened to a job, oldest first: failures with their type and origin, and other incidents."""
    from spark_ext.views.status import open_ledger

    ledger = open_ledger(state, storage_options(storage))
    found = read_incidents(ledger)
    if incident is not None:
        _show_one(found, incident, as_json=as_json)
        return
    now = datetime.now(timezone.utc)
    wanted = Wanted(dict(map(label, label_ or ())), query, None if since is None else moment(since, now))
    wanted.check(found, _queries(ledger))
    chosen = [one for one in found if wanted.accepts(one)]
    if not follow:
        shown = chosen[-last:] if last else chosen
        print_rows(shown if as_json else [_row(one) for one in shown], _COLUMNS, as_json=as_json)
        return
    _follow(ledger, wanted, chosen[-last:] if last else chosen, as_json=as_json)


def read_incidents(ledger: Ledger) -> list[dict[str, Any]]:
    """All incidents of a job, oldest first, each once, with labels and evidence as values."""
    from spark_ext.ledger.columns import from_json_many
    from spark_ext.ledger.schema import IncidentRow
    from spark_ext.views.status import rows_of

    rows = list({row["incident_id"]: row for row in rows_of(ledger, IncidentRow)}.values())
    for name in ("labels", "evidence"):
        for row, value in zip(rows, from_json_many([row[name] for row in rows]), strict=True):
            row[name] = value
    return sorted(rows, key=lambda row: (row["at"], row["incident_id"]))


def _queries(ledger: Ledger) -> set[str]:
    from spark_ext.ledger.schema import ExecutionStateRow
    from spark_ext.views.status import rows_of

    return {row["operator"] for row in rows_of(ledger, ExecutionStateRow, "operator") if row["operator"]}


def _row(one: dict[str, Any]) -> dict[str, Any]:
    labels = one["labels"] or {}
    return {
        "at": one["at"],
        "id": one["incident_id"][:_SHORT],
        "kind": one["type"],
        "type": labels.get("type", ""),
        "origin": labels.get("origin", ""),
        "operator": one["operator"],
        "what": one["what"].partition("\n")[0],
        "action": one["action"],
    }


def _show_one(found: list[dict[str, Any]], beginning: str, *, as_json: bool) -> None:
    chosen = [one for one in found if one["incident_id"].startswith(beginning)]
    if len(chosen) != 1:
        ids = ", ".join(one["incident_id"][:_SHORT] for one in found[-10:])
        raise ConfigurationError(
            f"{len(chosen) or 'no'} incidents have an id that begins with '{beginning}'",
            operator="incidents",
            kept="nothing was changed",
            do=f"use one of the newest: {ids or 'there are none'}",
        )
    (one,) = chosen
    if as_json:
        print_json(one)
        return
    labels, evidence = one["labels"] or {}, one["evidence"] or {}
    print_text(f"{one['at']:%Y-%m-%d %H:%M:%S} UTC  {one['operator']}\n{one['what']}\n  done: {one['action']}")
    for name, value in labels.items():
        print_text(f"  {name}: {value}")
    if verdict := evidence.get("verdict"):
        print_text(f"  line: {verdict['place']}" if verdict["place"] else "  line: none of the user's")
    if stack := evidence.get("stack"):
        print_text(f"\n{stack}")


def _follow(ledger: Ledger, wanted: Wanted, first: list[dict[str, Any]], *, as_json: bool) -> None:
    shown: set[str] = set()
    following = first
    try:
        while True:
            for one in following:
                shown.add(one["incident_id"])
                _print_line(one, as_json=as_json)
            time.sleep(_LOOK_AGAIN)
            following = [
                one for one in read_incidents(ledger) if one["incident_id"] not in shown and wanted.accepts(one)
            ]
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print_line(one: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(one, indent=None)
    else:
        row = _row(one)
        about = " ".join(filter(None, (row["type"], row["origin"]))) or row["kind"]
        print_text(f"{row['at']:%H:%M:%S}  {row['id']}  {about}  {row['operator']}: {row['what']} ({row['action']})")
    sys.stdout.flush()
