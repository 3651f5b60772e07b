"""Prints and stores figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show(figures: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print figures (in the form of `out/bench.json`) as a table, followed by what was compared."""
    console = console or Console()
    table = Table(title="measured alternately in one run")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("aim", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("medians (quartiles, n)", overflow="fold")
    for figure in figures:
        verdict = "[green]meets[/]" if figure["meets"] else "[red]misses[/]"
        table.add_row(figure["name"], f"{figure['ratio']:g}", figure["aim"], verdict, _sides(figure["detail"]["sides"]))
    console.print(table)
    for figure in figures:
        console.print(f"[bold]{figure['name']}[/]: {figure['detail']['compared']}  [dim]{figure['command']}[/]")


def _sides(sides: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"{name} {side['median']:,} {side['unit']} ({side['quartiles'][0]:,}..{side['quartiles'][1]:,}, {side['n']})"
        for name, side in sides.items()
    )


def write(figures: Iterable[dict[str, Any]], path: Path) -> None:
    """Store figures as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(figures), indent=2) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Figures that `write` has stored."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found
