"""`python -m benchmarks.scale`: all sizes that have not been measured yet, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.scale import table
from benchmarks.scale.measure import CURVES, run

QUICK: Final = 3  # sizes of a curve with --quick
app = typer.Typer(add_completion=False)


@app.command()
def main(
    curves: Annotated[str, typer.Option(help="Some of them, such as epochs,queries.")] = ",".join(CURVES),
    quick: Annotated[bool, typer.Option(help=f"Only the {QUICK} smallest sizes of each curve.")] = False,
    sizes: Annotated[str, typer.Option(help="Only these sizes, such as 100,1000.")] = "",
    out: Annotated[Path, typer.Option(help="Where results.jsonl is kept.")] = Path("out/scale"),
    pages: Annotated[bool, typer.Option(help="Write the tables into docs/scale.md.")] = True,
) -> None:
    """Measure what has no line in results.jsonl yet."""
    if unknown := sorted(set(curves.split(",")) - CURVES.keys()):
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known are: {', '.join(CURVES)}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(one["curve"], one["size"]) for one in results}
    only = [int(size) for size in sizes.split(",") if size]
    due = [(name, size) for name in curves.split(",") for size in CURVES[name].sizes[: QUICK if quick else None]]
    for name, size in due:
        if (name, size) in known or (only and size not in only):
            continue
        # A process of its own; its problem does not keep the others from being measured.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                results.append(pool.submit(run, name, size).result())
            except Exception as problem:
                print(f"{name} {size:,}: {problem}")
                continue
        with path.open("a") as lines:
            lines.write(json.dumps(results[-1]) + "\n")
        print(json.dumps(results[-1]))
    if pages:
        table.write_page(results)


if __name__ == "__main__":
    app()
