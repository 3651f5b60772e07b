"""Prints and stores figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_MEDIANS: Final = "medians (quartiles, n)"


def show(
    figures: Sequence[dict[str, Any]],
    console: Console | None = None,
    *,
    baseline: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Print figures (as in `out/bench.json`) as a table beside those of an earlier run, and what is compared."""
    console = console or Console()
    earlier = {figure["name"]: figure for figure in baseline or ()}
    table = Table(title="measured alternately in one run")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("aim", justify="right", no_wrap=True)
    table.add_column("")
    if earlier:
        table.add_column("baseline", justify="right")
        table.add_column("")
    else:  # with more columns there is no room for it on 80 characters
        table.add_column(_MEDIANS, overflow="fold")
    for figure in figures:
        verdict = "[green]meets[/]" if figure["meets"] else "[red]misses[/]"
        if before := earlier.get(figure["name"]):
            more = [_ratio(before), _change(figure, before)]
        else:
            more = [] if earlier else [_sides(figure)]
        table.add_row(figure["name"], _ratio(figure), figure["aim"], verdict, *more)
    console.print(table)
    if baseline:
        of = baseline[0]["detail"]["environment"]
        console.print(f"baseline: {of['date']}, commit {of['commit']}, {of['machine']}, {of['cores']} cores")
        console.print(f"[bold]{_MEDIANS}[/]")
        for figure in figures:
            console.print(f"[bold]{figure['name']}[/]: {_sides(figure, '; ')}", highlight=False)
    for figure in figures:
        console.print(f"[bold]{figure['name']}[/]: {figure['detail']['compared']}  [dim]{figure['command']}[/]")


def _ratio(figure: dict[str, Any]) -> str:
    low, high = figure["quartiles"] or (None, None)
    return f"{figure['ratio']:g}" if low is None else f"{figure['ratio']:g}\n({low:g}..{high:g})"


def _change(figure: dict[str, Any], before: dict[str, Any]) -> str:
    """Whether a ratio is outside of the baseline's quartiles, and on which side."""
    low, high = before["quartiles"] or (before["ratio"], before["ratio"])
    if low <= figure["ratio"] <= high:
        return ""
    return "[green]better[/]" if (figure["ratio"] > high) == figure["aim"].startswith(">") else "[red]worse[/]"


def _sides(figure: dict[str, Any], separator: str = "\n") -> str:
    return separator.join(
        f"{name} {side['median']:,} {side['unit']} ({side['quartiles'][0]:,}..{side['quartiles'][1]:,}, {side['n']})"
        for name, side in figure["detail"]["sides"].items()
    )


def write(figures: Iterable[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(figures), indent=2) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found
