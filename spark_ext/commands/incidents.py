"""`spark-ext incidents`: what has happened to a job, by label, query, time, severity, state and type."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_ext.commands.output import Json, State, Storage, print_json, print_rows, print_text, storage_options
from spark_ext.errors import ConfigurationError
from spark_ext.incidents.types import IncidentState, Severity
from spark_ext.views.incidents import Wanted, chosen, label, merged, moment, severity_of, texts_of
from spark_ext.views.style import count

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.ledger import Ledger

_COLUMNS: Final = (
    *("at", "id", "severity", "state", "since", "count", "kind", "type", "origin"),
    *("operator", "what", "action"),
)
_SHORT: Final = 8  # characters of an incident's id that are shown
_POLL_EVERY: Final = 1.0  # how often the ledger is read by `--follow`, s


def incidents(
    state: State,
    incident: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show only this incident, with its evidence.", show_default=False)
    ] = None,
    label_: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only with this label; repeatable, all must match."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Only of the query with this uid.")] = None,
    severity: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="Only of at least this severity: INFO, WARNING, ERROR, CRITICAL."),
    ] = None,
    state_: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Only incidents in this state: open or resolved.")
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only of this type; repeatable, any may match.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only since this time: ISO 8601, or an age such as 2h or 7d.")
    ] = None,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Only the newest N; 0 for all.")] = 50,
    stack: Annotated[bool, typer.Option("--stack", help="With an ID: also the frames of Java in its stack.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Then print each change until Ctrl-C.")] = False,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """List the incidents of a job, oldest first: failures with their type and origin, and others."""
    from spark_ext.views.status import open_ledger

    ledger = open_ledger(state, storage_options(storage))
    seen = IncidentReader(ledger)
    seen.poll()
    found = seen.merged()
    if incident is not None:
        _show_one(found, incident, as_json=as_json, java=stack)
        return
    now = datetime.now(timezone.utc)
    wanted = Wanted(
        dict(map(label, label_ or ())),
        query,
        None if since is None else moment(since, now),
        None if severity is None else chosen(severity, Severity, "--severity"),
        None if state_ is None else chosen(state_, IncidentState, "--state"),
        tuple(type_ or ()),
    )
    wanted.check(found, _queries(ledger))
    first = [one for one in found if wanted.accepts(one)]
    first = first[-last:] if last else first
    if not follow:
        print_rows(first if as_json else [_row(one) for one in first], _COLUMNS, as_json=as_json)
        return
    _follow(seen, wanted, found, first, as_json=as_json)


class IncidentReader:
    """What was read of a job's incidents; each look after the first reads only what is new."""

    def __init__(self, ledger: Ledger) -> None:
        from spark_ext.ledger.incidents import Added
        from spark_ext.ledger.schema import IncidentChangeRow, IncidentRow

        self._rows = Added(ledger.table(IncidentRow), "at")
        self._changes = Added(ledger.table(IncidentChangeRow), "at")
        self._by_id: dict[str, dict[datetime, dict[str, Any]]] = {}
        self._steps: dict[str, list[dict[str, Any]]] = {}
        self._begun = False

    def poll(self) -> set[str]:
        """Read what is new; returns the ids that it is about."""
        first, self._begun = not self._begun, True
        # In this order: a change that is known is of an incident that is.
        changes = (self._changes.everything() if first else self._changes.rows()).to_pylist()
        rows = _values(self._rows.everything() if first else self._rows.rows())
        for row in rows:
            self._by_id.setdefault(row["incident_id"], {})[row["at"]] = row  # a row may be there twice
        for step in changes:
            steps = self._steps.setdefault(step["incident_id"], [])
            if step not in steps:
                steps.append(step)
        return {row["incident_id"] for row in (*rows, *changes)}

    def merged(self, ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Some of the incidents, or all of them; see `views.incidents.merged`."""
        from spark_ext.ledger.incidents import standings

        wanted = self._by_id.keys() if ids is None else self._by_id.keys() & set(ids)
        rows = (row for one in wanted for row in self._by_id[one].values())
        return merged(rows, standings(step for one in wanted for step in self._steps.get(one, ())))

    def occurrences(self) -> list[dict[str, Any]]:
        """Each row of the table `incidents`, once; oldest first."""
        rows = [row for rows in self._by_id.values() for row in rows.values()]
        return sorted(rows, key=lambda row: (row["at"], row["incident_id"]))


def read_incidents(ledger: Ledger) -> list[dict[str, Any]]:
    """All rows of a job's incidents, one or more for each, oldest first, with labels and evidence as values."""
    seen = IncidentReader(ledger)
    seen.poll()
    return seen.occurrences()


def _values(table: pa.Table) -> list[dict[str, Any]]:
    from spark_ext.ledger.columns import from_json_many
    from spark_ext.ledger.schema import IncidentRow

    rows: list[dict[str, Any]] = table.to_pylist()
    for name in ("labels", "evidence"):
        for row, value in zip(rows, from_json_many([row[name] for row in rows], IncidentRow, name), strict=True):
            row[name] = value
    return rows


def _queries(ledger: Ledger) -> set[str]:
    from spark_ext.ledger.schema import ExecutionStateRow
    from spark_ext.views.recorded import rows_of

    return {row["operator"] for row in rows_of(ledger, ExecutionStateRow, "operator") if row["operator"]}


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    labels = one["labels"] or {}
    return {
        "at": one["at"],
        "id": one["incident_id"][:_SHORT],
        "severity": severity_of(one).value if one["severity"] else "",
        "state": (one["state"] or "").lower(),
        "since": one["state_since"],
        "count": one["count"],
        "kind": one["type"],
        "type": labels.get("type", ""),
        "origin": labels.get("origin", ""),
        "operator": one["operator"],
        "what": texts_of(one),
        "action": one["action"],
    }


def _show_one(found: list[dict[str, Any]], beginning: str, *, as_json: bool, java: bool) -> None:
    matching = [one for one in found if one["incident_id"].startswith(beginning)]
    if len(matching) != 1:
        ids = ", ".join(one["incident_id"][:_SHORT] for one in found[-10:])
        raise ConfigurationError(
            f"{len(matching) or 'no'} incidents have an id that begins with '{beginning}'",
            operator="incidents",
            kept="nothing was changed",
            do=f"use one of the newest: {ids or 'none yet'}",
        )
    (one,) = matching
    if as_json:
        print_json(one)
        return
    for line in _described(one, java=java):
        print_text(line)


def _described(one: Mapping[str, Any], *, java: bool) -> Iterator[str]:
    from spark_ext.failures.java_text import without_frames
    from spark_ext.incidents.registry import shipped

    evidence = one["evidence"] or {}
    yield f"{one['at']:%Y-%m-%d %H:%M:%S} UTC  {one['operator']}\n{one['first_what']}\n  done: {one['action']}"
    if one["severity"]:
        yield f"  severity: {one['severity']}"
    if one["state"]:
        why = f": {one['cause']}" if one["cause"] else ""
        yield f"  {one['state'].lower()} since {one['state_since']:%Y-%m-%d %H:%M:%S} UTC{why}"
    if one["count"] > 1:
        again = "" if one["what"] == one["first_what"] else f": {one['what']}"
        yield f"  {one['count']} times, last at {one['last']:%Y-%m-%d %H:%M:%S} UTC{again}"
    if one["parent"]:
        yield f"  during the recovery from {one['parent'][:_SHORT]}"
    for name, value in (one["labels"] or {}).items():
        yield f"  {name}: {value}"
    if verdict := evidence.get("verdict"):
        yield f"  line: {verdict['place']}" if verdict["place"] else "  line: none of the user's"
    if dump := evidence.get("dump"):
        yield f"  dump: {dump}"
    known = shipped().types.get(one["type"])
    if known is not None and known.runbook:
        yield f"  runbook: {known.runbook}"
    if stack := evidence.get("stack"):
        text, left_out = (stack, 0) if java else without_frames(stack)
        yield f"\n{text}"
        if left_out:
            yield f"({count(left_out, 'frame')} of Java left out; --stack shows them)"


def _follow(
    seen: IncidentReader, wanted: Wanted, known: list[dict[str, Any]], first: list[dict[str, Any]], *, as_json: bool
) -> None:
    shown = {one["incident_id"]: _sight(one) for one in known}
    following = first
    try:
        while True:
            for one in following:
                _print_line(one, as_json=as_json)
            time.sleep(_POLL_EVERY)
            following = []
            for one in seen.merged(seen.poll()):
                if shown.get(one["incident_id"]) != _sight(one):
                    shown[one["incident_id"]] = _sight(one)
                    following += [one] if wanted.accepts(one) else []
    except KeyboardInterrupt:
        raise typer.Exit from None


def _sight(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes an incident worth a further line."""
    return one["state"], one["state_since"], one["last"]


def _print_line(one: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(one, indent=None)
    else:
        row = _row(one)
        about = " ".join(filter(None, (row["type"], row["origin"]))) or row["kind"]
        text = f"{row['id']}  {about}  {row['operator']}: {row['what']} ({row['action']})"
        if one["state"] == IncidentState.RESOLVED.value:
            text = f"{one['state_since']:%H:%M:%S}  {text}; resolved: {one['cause']}"
        else:
            text = f"{one['last']:%H:%M:%S}  {text}"
        print_text(text + (f"; {one['count']} times" if one["count"] > 1 else ""))
    sys.stdout.flush()
