"""The commands of `spark-ext control` that look: events, one event, what is in force, and the kinds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ext.commands import output
from spark_ext.commands.control_group import Timeout, Wait, finish, report, shows
from spark_ext.steering.tables import ALL, EVENTS, STANDING, event_row, short, standing_rows

if TYPE_CHECKING:
    from spark_ext.control.event_state import EventState
    from spark_ext.steering.control import Control

Several = list[str] | None


@shows("events")
def events(
    control: Control,
    as_json: bool,
    kind: Annotated[Several, typer.Option("--kind", help="Only of this kind; may be repeated.")] = None,
    status: Annotated[Several, typer.Option("--status", help="Only with this status; may be repeated.")] = None,
    target: Annotated[Several, typer.Option("--target", help="Only with this target; may be repeated.")] = None,
    by: Annotated[Several, typer.Option("--by", help="Only from this user or token; may be repeated.")] = None,
    last: Annotated[int, typer.Option("--last", min=0, metavar="N", help="Only the newest N; 0 for all.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Then print each change until Ctrl-C.")] = False,
) -> None:
    """List control events and their status, oldest first."""
    found = control.events(
        kind or (), status=status or (), target=target or (), requested_by=by or (), limit=last or ALL
    )
    found.reverse()
    if not follow:
        rows = [one.to_json() if as_json else event_row(one) for one in found]
        output.print_rows(rows, EVENTS, as_json=as_json)
        return
    newest = control.events(limit=1)
    after = found[0].sequence - 1 if found else newest[0].sequence if newest else 0
    try:
        for one in control.follow(after):
            if _is_wanted(one, kind, status, target, by):
                _print_change(one, as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _is_wanted(one: EventState, kind: Several, status: Several, target: Several, by: Several) -> bool:
    given = ((kind, one.kind), (status, one.status), (target, one.target), (by, one.requested_by))
    return all(not wanted or value in wanted for wanted, value in given)


def _print_change(one: EventState, as_json: bool) -> None:
    if as_json:
        output.print_json(one.to_json(), indent=None)
    else:
        row = event_row(one)
        at = one.steps[-1].at if one.steps else one.accepted_at
        parts = [f"{one.sequence:>6}", f"{at:%H:%M:%S}", f"{one.status:<12}", one.kind, one.target, row["value"]]
        parts += [f"({text})" for text in (row["applied"], one.reason) if text]
        output.print_text(" ".join(part for part in parts if part))
    sys.stdout.flush()


@shows("event")
def event(
    control: Control,
    as_json: bool,
    event_id: Annotated[str, typer.Argument(metavar="ID")],
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Show an event and its status."""
    found = control.event(event_id)
    if wait or timeout is not None:
        finish(found, control, timeout, as_json=as_json)
    else:
        report(found, control, as_json=as_json)
        if not as_json and found.reason:
            output.print_text(f"  reason: {found.reason}")


@shows("config")
def config(
    control: Control,
    as_json: bool,
    query: Annotated[
        str | None, typer.Option("--query", help="Show the configuration of this query's newest epoch.")
    ] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="With --query: of this epoch instead.")] = None,
) -> None:
    """Show the configuration: after the newest event, or in an epoch of a query."""
    if epoch is not None and query is None:
        raise typer.BadParameter("requires --query", param_hint="--epoch")
    found = control.config(query, epoch)
    if as_json:
        output.print_json(found)
        return
    if query is None:
        output.print_text(f"behind event {found['sequence']}:")
    else:
        committed = "committed" if found["committed"] else "not committed yet"
        output.print_text(f"epoch {found['epoch']} of query '{query}', {committed}, behind event {found['sequence']}:")
    output.print_rows(standing_rows(found), STANDING, as_json=False)


@shows("kinds")
def kinds(control: Control, as_json: bool) -> None:
    """List the kinds of control events, with an example of each value."""
    found = control.kinds()
    if as_json:
        output.print_json(found)
        return
    columns = ("name", "targets", "value", "about")
    rows = [{**one, "targets": ", ".join(one["targets"]), "value": short(one["example"])} for one in found]
    output.print_rows(rows, columns, as_json=False)
