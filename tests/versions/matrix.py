"""Runs the jobs of `make test-matrix` on a version of Spark, as a test of the slice of versions."""

import subprocess
import sys

from tools.project import ROOT


def check_jobs_on(spark: str) -> None:
    """Make the environment, or bring it up to date, and run its tests; fails if either fails."""
    command = [sys.executable, "-m", "tools.matrix", sys.executable, "--sparks", spark, "--parts", "jobs"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0
