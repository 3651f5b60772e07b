"""`python -m benchmarks [NAME...]`: all benchmarks, or some. Each runs in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks._figures import OUT
from benchmarks._measure import NAMES, QUICK, measure
from benchmarks._profile import Profile
from benchmarks._results import MARK, PAGE, RESULTS, merged, replaced, table

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
    record: Annotated[
        bool | None, typer.Option(help="Write results.json and the page's table. Default if all are run.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Of one benchmark, print the CPU time of its threads and processes too.")
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
        with Profile() if profile else nullcontext() as watched:
            figures, failed = _one(names[0], rounds, quick=quick), False
        if watched:
            Console().print(watched.table())
    else:
        figures, failed = _each(names or list(known), rounds, quick=quick)
    show(figures, baseline=read(BASELINE if quick else RESULTS))
    target = json or (None if names or quick else Path(OUT))
    if target is not None:
        write(figures, target)
        print(f"written to {target}")
    if record or (record is None and not names and not quick):
        known_now = merged(read(RESULTS), figures)
        write(known_now, RESULTS)
        PAGE.write_text(replaced(PAGE.read_text(), MARK, table(known_now)))
        print(f"written to {RESULTS.name} and {PAGE.name}")
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
                figures += read(kept)
            else:
                failed = True
                notes.print(f"[red]{name} failed[/]\n{said.read_text()}", markup=True, highlight=False)
    return figures, failed


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
    else:  # with more columns it does not fit into 80 characters
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


if __name__ == "__main__":
    app()
