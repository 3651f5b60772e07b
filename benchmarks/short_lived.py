"""The job of `make run` from the start of Python: a short-lived session with the class archive against an ordinary one.

Both read the same 336,776 flights in three queries, in processes of their own. `start` is the time to the first
committed epoch of any query, `whole` that to the end of the job. `copy` is one query that copies the files of these
flights into a Delta table, against the same in plain Spark, each in one epoch.
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
from spark_ext.spark.session.jars import delta_jars
from spark_ext.spark.session.sessions import defaults

ROUNDS = 5
PREPARE = True  # whether to make the class archive first, if it is not there
MONTHS = 12  # months of flights and weather that are read
SIDES = ("short-lived", "ordinary")
COPIES = ("copy", "plain")
ROOT = Path(__file__).parents[1]


def run(rounds: int = ROUNDS) -> Figures:
    if PREPARE:
        subprocess.run([sys.executable, "-m", "spark_ext", "prepare"], check=True)
    with workplace() as folder:
        prepare(folder / "data")
        for table in ("flights", "weather"):
            for file in sorted((folder / "data" / table).iterdir())[MONTHS:]:
                file.unlink()
        warm_up(lambda: [_run(side, folder) for side in (*SIDES, *COPIES)])
        times = beside((*SIDES, *COPIES), rounds, lambda side: _run(side, folder))
    flights = "the flights job: short-lived session with class archive / ordinary session without"
    yield _figure("short_lived_start", f"from the start of Python to the first committed epoch, {flights}", times, 0.5)
    yield _figure("short_lived_whole", f"from the start of Python to the end of the job, {flights}", times, 2 / 3)
    what = f"from the start of Python to the end, {MONTHS} files into a Delta table: a short-lived job / plain Spark"
    yield _figure("short_lived_copy", what, times, 0.5)


def _figure(name: str, what: str, times: dict[str, list[dict[str, float]]], aim: float) -> Figure:
    sides, part = COPIES if name.endswith("copy") else SIDES, "first" if name.endswith("start") else "whole"
    ours, others = (Sample.of([run[part] for run in times[side]], "s") for side in sides)
    samples = dict(zip(sides, (ours, others), strict=True))
    return Figure(name, what, ours.median / others.median, Aim("<=", round(aim, 2)), samples, divided=sides)


def _run(side: str, folder: Path) -> dict[str, float]:
    out = tempfile.mkdtemp(dir=folder)
    environment = {**os.environ, "BENCHMARK_CLASS_PATH": os.pathsep.join(map(str, delta_jars(defaults())))}
    if side in ("ordinary", "plain"):  # without an archive of ours
        environment[VARIABLE] = f"{environment.get(VARIABLE, '')} -Xshare:auto"
    command = [sys.executable, "-m", "benchmarks._flights_driver", side, out, str(folder / "data")]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
