"""`spark-ext check`: whether jobs are well, for cron, timers and probes, from ledgers and heartbeats, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from spark_ext.commands.incidents import IncidentReader
from spark_ext.commands.output import FAILED, REFUSED, Json, Storage, print_json, print_text, storage_options
from spark_ext.errors import SparkExtError
from spark_ext.incidents.registry import AlertRule, load
from spark_ext.incidents.types import Severity
from spark_ext.options import milliseconds
from spark_ext.views.check import Health, JobFacts, Limits, health, line
from spark_ext.views.incidents import chosen, label

if TYPE_CHECKING:
    from spark_ext.incidents.registry import Registry
    from spark_ext.ledger import Ledger


def check(
    states: Annotated[list[str], typer.Argument(metavar="STATE...", help="State directories: paths or URIs.")],
    max_silence: Annotated[
        str, typer.Option(metavar="DURATION", help="Report a driver as lost if its last heartbeat is older.")
    ] = "60 s",
    availability: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="Minimum availability in the window.")
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="DURATION", help="Period over which availability is computed, up to now.")
    ] = "1 day",
    label_: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME=VALUE", help="For --availability: count only downtime with this label; repeatable."
        ),
    ] = None,
    severity: Annotated[
        str, typer.Option(metavar="SEVERITY", help="Report open incidents of at least this severity.")
    ] = "ERROR",
    incidents: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The jobs' incident file, with alert rules and listeners.")
    ] = None,
    notify: Annotated[bool, typer.Option("--notify", help="Notify the listeners of the incident file.")] = False,
    remember: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --notify: file that records notifications, so that each is sent once."),
    ] = None,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Check job health: exit code 0 if all jobs are healthy, 1 if not, 2 if one cannot be read."""
    registry = load(None if incidents is None else str(incidents))
    if notify and not registry.listeners:
        raise typer.BadParameter("requires --incidents with a file that defines listeners", param_hint="--notify")
    if remember is not None and not notify:
        raise typer.BadParameter("requires --notify", param_hint="--remember")
    if label_ and availability is None:
        raise typer.BadParameter("requires --availability", param_hint="--label")
    over = timedelta(milliseconds=_duration(window, "--window", least=1))
    limits = Limits(
        max_silence=_duration(max_silence, "--max-silence"),
        severity=chosen(severity, Severity, "--severity"),
        rules=(*registry.alerts, *_rules(availability, window, label_ or ())),
        window=over,
    )
    now = datetime.now(timezone.utc)
    options = storage_options(storage)
    read = {state: _checked(state, options, limits, now, registry) for state in states}
    if as_json:
        print_json([_plain(state, found) for state, found in read.items()])
    else:
        for state, found in read.items():
            print_text(
                f"UNKNOWN  {state}: {_one_line(found)}"
                if isinstance(found, SparkExtError)
                else line(found, now, limits, window)
            )
    found_all = {state: found for state, found in read.items() if isinstance(found, Health)}
    if notify:
        from spark_ext.commands.check_notify import notified

        notified(registry, found_all, now, remember, options)
    if len(found_all) < len(read):
        raise typer.Exit(REFUSED)
    if not all(found.well for found in found_all.values()):
        raise typer.Exit(FAILED)


def _checked(
    state: str, options: dict[str, str], limits: Limits, now: datetime, registry: Registry
) -> Health | SparkExtError:
    from spark_ext.views.status import open_ledger

    try:
        return health(facts_of(open_ledger(state, options)), limits, now, registry)
    except SparkExtError as problem:
        # One that cannot be read does not hide the others.
        return problem


def facts_of(ledger: Ledger) -> JobFacts:
    """What is read of a job for this."""
    from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, JobRow
    from spark_ext.views.recorded import beats_of, driver_alive, rows_of

    jobs = rows_of(ledger, JobRow)
    newest = max((row for row in jobs if row["event"] == "started"), key=lambda row: int(row["incarnation"]))
    number = newest["incarnation"]
    alive = driver_alive(newest)
    beats = beats_of(ledger, jobs)
    if alive is False and number not in beats:
        # Without a heartbeat its last row counts, of any table.
        seen = [newest["at"]]
        for row_type, column in ((EpochRow, "committed_at"), (CheckpointRow, "at")):
            seen += ledger.table(row_type).read([column], [("incarnation", "=", number)])[column].to_pylist()
        beats[number] = max(seen)
    incidents = IncidentReader(ledger)
    incidents.poll()
    return JobFacts(
        jobs=jobs,
        states=rows_of(ledger, ExecutionStateRow),
        occurrences=incidents.occurrences(),
        incidents=incidents.merged(),
        alive=alive,
        beats=beats,
    )


def _rules(availability: float | None, window: str, labels: Sequence[str]) -> tuple[AlertRule, ...]:
    if availability is None:
        return ()
    wanted: dict[str, list[str]] = {}
    for name, value in map(label, labels):
        wanted.setdefault(name, []).append(value)
    try:
        chosen_ = {name: tuple(values) for name, values in wanted.items()}
        return (AlertRule(rule=f"availability below {availability:.10g} % over {window}", labels=chosen_),)
    except ValidationError as problem:
        raise typer.BadParameter(problem.errors()[0]["msg"], param_hint="--availability") from None


def _duration(text: str, option: str, least: int = 0) -> int:
    try:
        found = milliseconds(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None
    if found < least:
        raise typer.BadParameter(f"'{text}' is not a duration above 0", param_hint=option)
    return found


def _one_line(problem: SparkExtError) -> str:
    return " ".join(f"{problem.what}; {problem.do}".split())


def _plain(state: str, found: Health | SparkExtError) -> dict[str, Any]:
    if isinstance(found, SparkExtError):
        return {"state_directory": state, "well": None, "error": _one_line(found)}
    return {
        "state_directory": state,
        "well": found.well,
        "job": found.job,
        "state": found.state,
        "incarnation": found.incarnation,
        "driver": found.driver,
        "runs": found.runs,
        "last_alive": found.last_alive,
        "ended": found.ended,
        "availability": found.availability,
        "since": found.since,
        "rules": [
            {"rule": one.rule.name, "share": one.found.share, "down_s": one.found.down, "low": one.found.low}
            for one in found.measured
        ],
        "findings": [
            {
                "kind": one.kind.value,
                "type": one.type,
                "severity": one.severity.value,
                "incident_id": one.incident_id,
                "operator": one.operator,
                "what": one.what,
                "labels": dict(one.labels),
            }
            for one in found.findings
        ],
    }
