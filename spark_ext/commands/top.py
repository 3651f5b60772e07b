"""`spark-ext top`: a job in a terminal, live."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.live import Live

from spark_ext.commands.output import Json, State, Storage, print_json, storage_options
from spark_ext.errors import StorageError
from spark_ext.views.terminal import Terminal

WIDE = 160
"""Characters in a line where the output is not a terminal."""


def top(
    state: State,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """Show the queries of a job, live, until Ctrl-C: those that need attention first."""
    from spark_ext.views.page.facts import FactsReader
    from spark_ext.views.page.top import top_json, top_view
    from spark_ext.views.status import open_ledger

    reader = FactsReader(open_ledger(state, storage_options(storage)))
    console = Terminal()
    page = _look(reader)
    try:
        if as_json:
            print_json(top_json(page), indent=2 if once else None)
            while not once:
                time.sleep(interval)
                print_json(top_json(page := _look(reader, page)), indent=None)
        elif once:
            if not console.is_terminal:
                console.width = max(console.width, WIDE)
            console.print(top_view(page))
        else:
            # On the alternate screen: the terminal is as it was afterwards.
            with Live(top_view(page, console.height), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(top_view(page := _look(reader, page), console.height), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit from None
    except BrokenPipeError:
        raise typer.Exit from None


def _look(reader: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document now; the one before while the storage does not answer."""
    from spark_ext.views.page.document import page

    try:
        return page(reader.look(), datetime.now(timezone.utc), points=0)
    except StorageError:
        if before is None:
            raise
        return before
