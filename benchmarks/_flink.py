"""Flink on the same machine, for orientation: runs the cases of `benchmarks/flink` and prints their figures.

Not part of a run of all benchmarks: it needs Maven, and downloads Flink on first use. The figures are not ratios:
compare them with those that `job_overhead`, `finish` and `recovery` print in the same hour.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Path("out/bench-flink.json")
SCRIPT = Path(__file__).parent / "flink" / "run.sh"
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    arguments: tuple[str, ...]
    figures: dict[str, str]  # description of each figure, by its key in the case's JSON


CASES = {
    "bounded": Case(
        ("n=5000000", "interval=1000"),
        {
            "emitRowsPerSec": "5 M rows, exactly once, to files, rows/s",
            "lastRecToFinishedMs": "last row to FINISHED, ms",
        },
    ),
    "mixed": Case(
        ("interval=1000", "n=200000", "brate=20000", "rate=5000", "runSec=30"),
        {
            "medianBeforeMs": "checkpoint before the bounded source has finished, ms",
            "medianAfterMs": "checkpoint after it, ms",
        },
    ),
    "restart": Case(
        ("failWhen=finished", "delay=0 s"), {"failToFirstRecordMs": "failure to the first row in the function, ms"}
    ),
    "backpressure": Case(
        ("mode=aligned", "segment=8kb"), {"endToEndMedianMs": "aligned checkpoint under backpressure, ms"}
    ),
    "trivial": Case((), {"mainToJobDoneMs": "start to end of a job of 100 rows, ms"}),
}


def baseline(names: list[str]) -> None:
    """Run cases, all if none is named, and print their medians."""
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise ValueError(f"unknown case {', '.join(unknown)}; known are: {', '.join(CASES)}")
    table = Table("case", "figure", "median", "all", title="Flink")
    found: list[dict[str, Any]] = []
    for name in names or list(CASES):
        case = CASES[name]
        results = [once(name, case.arguments) for _ in range(ROUNDS)]
        for key, what in case.figures.items():
            values = [float(result[key]) for result in results]
            shown = " ".join(f"{value:,.0f}" for value in values)
            table.add_row(name, what, f"{median(values):,.0f}", shown)
            found.append({"case": name, "figure": what, "median": median(values), "values": values})
    Console().print(table)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {OUT}")


def once(name: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run([str(SCRIPT), name, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
