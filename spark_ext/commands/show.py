"""Commands that show a job: `timeline`, `top`, `plot` and `report`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.live import Live

from spark_ext.commands.incidents import read_incidents
from spark_ext.commands.output import Json, State, Storage, print_json, print_text, storage_options
from spark_ext.errors import StorageError, refused
from spark_ext.failures.labels import UNKNOWN
from spark_ext.views.downtime import by_class, downtime
from spark_ext.views.incidents import class_of, moment
from spark_ext.views.plot.data import PlotKind
from spark_ext.views.terminal import Terminal, top_view, widen


class Cause(str, Enum):
    """By what downtime is summed."""

    INCIDENT = "incident"
    CLASS = "class"


def timeline(
    state: State,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Compute availability since this time: ISO 8601, or an age such as 2h or 7d."
        ),
    ] = "1d",
    by: Annotated[Cause, typer.Option(help="Sum downtime by incident, or by the class of its incidents.")] = (
        Cause.INCIDENT
    ),
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show the history of a job, the time it spent in each state, and the causes of its downtime."""
    from spark_ext.views.status import open_ledger, status_of

    ledger = open_ledger(state, storage_options(storage))
    now = datetime.now(timezone.utc)
    begin = moment(since, now)
    status, incidents = status_of(ledger), read_incidents(ledger)
    spent = downtime(status.timeline, incidents, status.ended or now)
    found = downtime(status.timeline.until(now), incidents, now)
    available = None if status.timeline.has_end else found.availability(begin, now)
    rows = {row["incident_id"]: row for row in incidents}
    kinds = {incident: class_of(row["labels"]) for incident, row in rows.items()}
    classes = by_class(found.pieces, kinds)
    if as_json:
        print_json(
            spent.to_json(found.since(begin), available)
            | {"classes_s": classes, "incarnations": status.timeline.to_json()}
        )
        return
    Terminal().print(status.timeline)
    print_text(f"wall time {spent.wall:,.1f} s: " + ", ".join(f"{s:,.1f} s {n}" for n, s in spent.by_state().items()))
    if available is not None:
        print_text(f"availability since {found.since(begin):%Y-%m-%d %H:%M:%S} UTC: {available:.4%}")
    if by is Cause.CLASS:
        for name, seconds in sorted(classes.items(), key=lambda one: -one[1]):
            own = {piece for piece in found.pieces if kinds.get(piece.incident, UNKNOWN) == name}
            share, _ = found.share(begin, now, own.__contains__)
            print_text(f"{name}: {seconds:,.1f} s down" + ("" if available is None else f", availability {share:.4%}"))
        return
    for incident, states in found.by_incident().items():
        row = rows[incident]
        labels = row["labels"] or {}
        kind = f"{labels.get('type', '')} {labels.get('origin', '')}".strip() or row["type"]
        lost = ", ".join(f"{seconds:,.1f} s {name}" for name, seconds in states.items())
        print_text(f"{incident[:8]}  {kind}: {lost}  {row['what'].partition(chr(10))[0]}")


def top(
    state: State,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Refresh interval.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the job once, and exit.")] = False,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show the queries of a job, live, until Ctrl-C; those that need attention come first."""
    from spark_ext.views.page.facts import FactsReader
    from spark_ext.views.page.top import top_json
    from spark_ext.views.status import open_ledger

    reader = FactsReader(open_ledger(state, storage_options(storage)))
    console = Terminal()
    page = _document(reader)
    try:
        if as_json:
            print_json(top_json(page), indent=2 if once else None)
            while not once:
                time.sleep(interval)
                print_json(top_json(page := _document(reader, page)), indent=None)
        elif once:
            widen(console)
            console.print(top_view(page))
        else:
            # On the alternate screen: the terminal is as it was afterwards.
            with Live(top_view(page, console.height), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(top_view(page := _document(reader, page), console.height), refresh=True)
    except (KeyboardInterrupt, BrokenPipeError):
        raise typer.Exit from None


def _document(reader: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document now; the one before while the storage does not answer."""
    from spark_ext.views.page.document import page

    try:
        return page(reader.read(), datetime.now(timezone.utc), points=0)
    except StorageError:
        if before is None:
            raise
        return before


FORMATS: Final = (".png", ".svg", ".pdf")
PLOT_WIDTH: Final = 110  # characters in a line of a plot if the output is not a terminal


def plot(
    state: State,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A file: .png, .svg or .pdf. Default: the terminal."),
    ] = None,
    kind: Annotated[
        list[PlotKind] | None, typer.Option(help="What to plot; repeatable. Default: everything available.")
    ] = None,
    storage: Storage = None,
) -> None:
    """Plot the epochs, lag and channels of a job, in the terminal or to a file."""
    if output is not None and output.suffix.lower() not in FORMATS:
        raise refused(
            f"'{output}' does not end with an image format",
            "plot, option --output",
            f"use one of: {', '.join(FORMATS)}",
            kept="nothing was written",
        )
    from spark_ext.views.plot.job import plots_of
    from spark_ext.views.status import open_ledger

    shown = plots_of(open_ledger(state, storage_options(storage)), kind or (), datetime.now(timezone.utc))
    if output is None:
        from spark_ext.views.plot.terminal import view

        console = Terminal()
        widen(console, PLOT_WIDTH)
        console.print(view(shown, console.width), soft_wrap=True)
        return
    from spark_ext.views.plot.job import draw

    made = draw(shown, "plot")
    with _writing(output, "plot, option --output"):
        made.savefig(output, format=output.suffix.lower().lstrip("."), dpi=144)


def report(
    state: State,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Output file.")] = Path("job.html"),
    storage: Storage = None,
) -> None:
    """Write the web page of a job to one self-contained HTML file, which needs no server."""
    from spark_ext.server.assets import report as make
    from spark_ext.views.page.facts import FactsReader
    from spark_ext.views.status import open_ledger

    text = make(FactsReader(open_ledger(state, storage_options(storage))).read(), datetime.now(timezone.utc))
    with _writing(output, "report"):
        output.write_text(text, encoding="utf-8")


@contextmanager
def _writing(file: Path, operator: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise refused(
            f"{file} cannot be written: {problem.strerror}",
            operator,
            "name a file in a folder that exists",
            kept="nothing was changed",
        ) from None
    print_text(f"written to {file}: {file.stat().st_size:,} bytes")
