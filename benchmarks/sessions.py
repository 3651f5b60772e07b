"""The same small epochs in each kind of session: this Spark, those of `make test-matrix SPARKS=...`, and Connect.

Each side is a process, and for Connect a second one with the server, which is started once. The time is that from
commit to commit, as in `job_overhead`, so that neither the start of a JVM nor that of a client is part of it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import LIMIT, checkpoint_of, mean_epoch, workplace
from tests.servers.connect import client_environment, connect_server

ROUNDS = 5
EPOCHS = 40
WARM = 8  # first epochs, which do not count
CLASSIC: Final = "classic"
CONNECT: Final = "Connect"
_ROOT: Final = Path(__file__).parents[1]
MATRIX = _ROOT / ".venv" / "matrix"  # where `make test-matrix` keeps its environments


def run(rounds: int = ROUNDS) -> Figures:
    pythons = {path.parents[1].name.partition("-spark-")[2]: path for path in MATRIX.glob("*-spark-*/bin/python")}
    sides = (CLASSIC, CONNECT, *sorted(pythons))
    with ExitStack() as stack:
        folder = stack.enter_context(workplace())
        remote = stack.enter_context(connect_server(folder / "server.log"))
        numbers = iter(range(1_000_000))

        def seconds(side: str) -> float:
            python = str(pythons.get(side, sys.executable))
            return _epoch(python, folder / f"run-{next(numbers)}", *([remote] if side == CONNECT else []))

        found = beside(sides, rounds, seconds)
    for side in sides[1:]:
        samples = {one: Sample.of([1000 * value for value in found[one]], "ms") for one in (side, CLASSIC)}
        yield Figure(
            f"session_{side.lower()}", f"time per small epoch: {side} / this Spark, classic",
            samples[side].median / samples[CLASSIC].median, Aim("<=", 1.5), samples,
            {"ratio of each pair": Sample.of(in_pairs(found[side], found[CLASSIC]), "x").to_json()}, (side, CLASSIC),
        )  # fmt: skip


def _epoch(python: str, folder: Path, *remote: str) -> float:
    command = [python, "-m", "benchmarks._sessions_driver", str(folder), str(EPOCHS), *remote]
    done = subprocess.run(
        command, cwd=_ROOT, env=client_environment(), capture_output=True, text=True, check=False, timeout=LIMIT
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return mean_epoch(checkpoint_of(folder / "state"), WARM, EPOCHS - 1)
