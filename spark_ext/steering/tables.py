"""Control events and what is in force, as rows: for the command line, and as HTML for notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_ext.control.event_state import EventState
    from spark_ext.model.offsets import Json

EVENTS: Final = ("sequence", "accepted_at", "kind", "target", "value", "status", "applied", "requested_by", "reason")
"""Columns of events."""

STANDING: Final = ("kind", "target", "value")  # columns of what is in force
ALL: Final = 10**9  # more events than there are
_WIDEST: Final = 80  # characters of a value that are shown


def event_row(state: EventState) -> dict[str, Any]:
    """What is shown of an event."""
    return {
        "sequence": state.sequence,
        "accepted_at": state.accepted_at,
        "kind": state.kind,
        "target": state.target,
        "value": short(state.value),
        "status": state.status,
        "applied": ", ".join(
            f"{query} from epoch {epoch}" if query and epoch is not None else query or "driver"
            for query, epoch in state.applied.items()
        ),
        "requested_by": state.requested_by,
        "reason": state.reason,
    }


def standing_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is in force, a row each: the user's keys first, then by kind and target; events that wait for a cut last."""
    rows = []
    standing: Mapping[str, Mapping[str, Mapping[str, Json]]] = found["standing"]
    for kind in sorted(standing, key=lambda name: (name != "set_config", name)):
        for target, slots in sorted(standing[kind].items()):
            rows += [
                {"kind": kind, "target": target, "value": _plain(kind, value)} for _, value in sorted(slots.items())
            ]
    for sequence, held in sorted(found.get("aligned", {}).items(), key=lambda one: int(one[0])):
        about = f"{_plain(held['kind'], held['value'])} (aligned, event {sequence}: waits for a barrier)"
        rows.append({"kind": held["kind"], "target": held["target"], "value": about})
    return rows


def _plain(kind: str, value: Json) -> str:
    if kind == "set_config":
        return f"{value['key']} = {short(value.get('value'))}"
    if kind == "config_schema":
        return f"{value['key']}: {short(value.get('schema'))}"
    return short(value)


def short(value: Json) -> str:
    """A value on one line; "" for None."""
    if value is None:
        return ""
    if isinstance(value, dict) and all(not isinstance(one, (dict, list)) for one in value.values()):
        text = ", ".join(f"{name} {one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def table_html(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], empty: str) -> str:
    """Rows as an HTML table; the sentence `empty` without rows."""
    rows = list(rows)
    if not rows:
        return f"<p>{escape(empty)}</p>"
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def events_html(states: Iterable[EventState]) -> str:
    """Events as an HTML table."""
    return table_html(map(event_row, states), EVENTS, "No control events.")


def standing_html(found: Mapping[str, Any]) -> str:
    """What is in force as an HTML table."""
    return table_html(standing_rows(found), STANDING, "No control event is in force.")


def _cell(value: Any) -> str:
    text = f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else str(value)
    return escape(text)
