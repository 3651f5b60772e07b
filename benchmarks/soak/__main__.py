"""`python -m benchmarks.soak --minutes 120`: the soak, and the page of the newest run; `--report` only the page."""

from __future__ import annotations

import shutil
import traceback
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks._figures import environment
from benchmarks.soak import page
from benchmarks.soak.run import Journal, Plan, Soak, last_run
from tests.chaos.commands import end_on_sigterm

app = typer.Typer(add_completion=False)


@app.command()
def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="From the first start to the end of what is produced.")] = 120,
    restart_every: Annotated[
        float, typer.Option(min=0.1, help="Minutes between two restarts, savepoints, vacuums.")
    ] = 10,
    steady: Annotated[float, typer.Option(min=0, help="Minutes at the end without a restart.")] = 0,
    rate: Annotated[int, typer.Option(min=1, help="Rows per second of each source.")] = 20,
    out: Annotated[Path, typer.Option(help="Where all of it is kept; of an earlier run only soak.jsonl stays.")] = Path(
        "out/soak"
    ),
    report: Annotated[bool, typer.Option("--report", help="Run nothing: write the page of the newest run.")] = False,
    pages: Annotated[bool, typer.Option(help="Write the table into docs/soak.md, and the plot beside it.")] = True,
) -> None:
    """Run a soak, say what grows, and write the page."""
    lines = out / "soak.jsonl"
    if not report:
        _run(Plan(minutes, restart_every, steady, rate), out.resolve())
    found = last_run(lines)
    print(page.text(found))
    if pages:
        page.write(found)
    if not page.holds(found):
        raise typer.Exit(1)


def _run(plan: Plan, out: Path) -> None:
    end_on_sigterm()
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    journal = Journal(out / "soak.jsonl")
    journal.add(plan=asdict(plan), environment=environment())
    with ExitStack() as stack:
        try:
            Soak(work, plan, journal, stack).run()
        except (Exception, KeyboardInterrupt, SystemExit) as problem:
            journal.add(fault=f"{type(problem).__name__}: {problem}")
            traceback.print_exc()


if __name__ == "__main__":
    app()
