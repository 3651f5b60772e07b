"""`python -m benchmarks [NAME...]`: all benchmarks, or some. Each runs in a separate process."""

from __future__ import annotations

import importlib
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

NAMES = (
    "delta_commit",
    "delta_throughput",
    "upsert",
    "job_overhead",
    "metrics_epochs",
    "operations_epochs",
    "epoch_files",
    "finish",
    "blocked",
    "hop",
    "idle_consumer",
    "checkpoint_time",
    "target_epoch",
    "keyed_rows",
    "restore_cost",
    "neighbours",
    "channels",
    "files_throughput",
    "files_to_delta",
    "short_lived",
    "bad_rows",
    "bad_rows_epochs",
    "recovery",
    "sustained",
    "postgres",
    "kafka",
    "control_epochs",
    "control_acceptance",
    "control_applied",
    "control_look",
    "control_config",
    "control_change",
    "control_burst",
    "control_rates",
    "page",
)

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
    flink: Annotated[bool, typer.Option(help="Run the Flink baseline instead (Maven, Java 17).")] = False,
) -> None:
    """Measure and print ratios of two sides."""
    if flink:
        from benchmarks import flink_baseline

        flink_baseline.run(names or [])
        return
    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    if names and len(names) == 1:
        measure = importlib.import_module(f"benchmarks.{names[0]}").run
        figures = [figure.to_json() for figure in (measure(rounds) if rounds else measure())]
        failed = False
    else:
        figures, failed = _each(names or list(NAMES), rounds)
    _report.show(figures)
    target = json or (None if names else Path(OUT))
    if target is not None:
        _report.write(figures, target)
        print(f"written to {target}")
    if failed:
        raise typer.Exit(1)


def _each(names: list[str], rounds: int | None) -> tuple[list[dict[str, Any]], bool]:
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
