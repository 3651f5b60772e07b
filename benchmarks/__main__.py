"""`python -m benchmarks [NAME...]`: all benchmarks, or some. Each runs in a separate process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import _report
from benchmarks._figures import OUT
from benchmarks._measure import NAMES, QUICK, measure

BASELINE = Path(__file__).with_name("baseline.json")  # the figures of a quick run with which later ones are compared
app = typer.Typer(add_completion=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of: {', '.join(NAMES)}. Default: all.")] = None,
    json: Annotated[
        Path | None, typer.Option(help=f"Where to write the figures. Default if all are run: {OUT}.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each; fewer are faster and less precise.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Ten figures in ten minutes, beside those of the baseline.")
    ] = False,
    flink: Annotated[bool, typer.Option(help="Run the Flink baseline instead (Maven, Java 17).")] = False,
) -> None:
    """Measure and print ratios of two sides."""
    if flink:
        from benchmarks import _flink

        _flink.baseline(names or [])
        return
    known = tuple(QUICK) if quick else NAMES
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise typer.BadParameter(f"unknown benchmark {', '.join(unknown)}; there are: {', '.join(known)}")
    if names and len(names) == 1:
        figures, failed = _one(names[0], rounds, quick=quick), False
    else:
        figures, failed = _each(names or list(known), rounds, quick=quick)
    _report.show(figures, baseline=_report.read(BASELINE) if quick and BASELINE.exists() else None)
    target = json or (None if names or quick else Path(OUT))
    if target is not None:
        _report.write(figures, target)
        print(f"written to {target}")
    if failed:
        raise typer.Exit(1)


def _one(name: str, rounds: int | None, *, quick: bool) -> list[dict[str, Any]]:
    if not quick:
        return [figure.to_json(name) for figure in measure(name, rounds)]
    short = QUICK[name]
    figures = [figure.to_json(name) for figure in measure(name, rounds or short.rounds, short.sizes)]
    return [{**one, "command": f"{one['command']} --quick"} for one in figures if one["name"] in short.figures]


def _each(names: list[str], rounds: int | None, *, quick: bool) -> tuple[list[dict[str, Any]], bool]:
    """Run benchmarks one after the other; a failure is reported and does not stop the others."""
    figures: list[dict[str, Any]] = []
    failed = False
    notes = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            kept, said = Path(folder) / f"{name}.json", Path(folder) / f"{name}.log"
            begin = time.monotonic()
            with said.open("w") as log:
                command = [sys.executable, "-m", "benchmarks", name, "--json", str(kept)]
                command += ["--rounds", str(rounds)] if rounds else []
                command += ["--quick"] if quick else []
                done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
            notes.print(f"[dim]{name}: {time.monotonic() - begin:.0f} s[/]")
            if done.returncode == 0:
                figures += _report.read(kept)
            else:
                failed = True
                notes.print(f"[red]{name} failed[/]\n{said.read_text()}", markup=True, highlight=False)
    return figures, failed


if __name__ == "__main__":
    app()
