"""The job of `make run` from the start of Python: a short-lived session with the class archive against an ordinary one.

Both read the same 336,776 flights in three queries, in processes of their own. `start` is the time to the first
committed epoch of any query, `whole` that to the end of the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import warm_up, workplace
from examples.flights import prepare
from spark_ext.spark.session.class_archive import VARIABLE

ROUNDS = 5
PREPARE = True  # whether to make the class archive first, if it is not there
MONTHS = 12  # months of flights and weather that are read
SIDES = ("short-lived", "ordinary")
ROOT = Path(__file__).parents[1]


def run(rounds: int = ROUNDS) -> Figures:
    if PREPARE:
        subprocess.run([sys.executable, "-m", "spark_ext", "prepare"], check=True)
    with workplace() as folder:
        prepare(folder / "data")
        for table in ("flights", "weather"):
            for file in sorted((folder / "data" / table).iterdir())[MONTHS:]:
                file.unlink()
        warm_up(lambda: [_run(side, folder) for side in SIDES])
        times = beside(SIDES, rounds, lambda side: _run(side, folder))
    yield _figure("short_lived_start", "from the start of Python to the first committed epoch", times, "first", 0.5)
    yield _figure("short_lived_whole", "from the start of Python to the end of the job", times, "whole", 2 / 3)


def _figure(name: str, what: str, times: dict[str, list[dict[str, float]]], part: str, aim: float) -> Figure:
    ours, ordinary = (Sample.of([run[part] for run in times[side]], "s") for side in SIDES)
    return Figure(
        name, f"{what}, the flights job: short-lived session with class archive / ordinary session without",
        ours.median / ordinary.median, Aim("<=", round(aim, 2)), dict(zip(SIDES, (ours, ordinary), strict=True)), {},
    )  # fmt: skip


def _run(side: str, folder: Path) -> dict[str, float]:
    short, out = side == "short-lived", tempfile.mkdtemp(dir=folder)
    environment = dict(os.environ)
    if not short:  # without an archive of ours
        environment[VARIABLE] = f"{environment.get(VARIABLE, '')} -Xshare:auto"
    command = [sys.executable, "-m", "benchmarks._flights_driver", out, str(folder / "data"), str(int(short))]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
