"""The commands of docs/spark-submit.md run a job on a real standalone cluster, and not in the driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.script import load_function
from tests.support import pages
from tests.support.cluster import SPARK_HOME, Cluster

ROOT = Path(__file__).parents[2]
PAGE = pages.read("spark-submit")


def command(first: str, place: Path, master: str) -> str:
    """The block of the page that contains a text, for a cluster and a shared folder."""
    blocks = (part.split("```")[0] for part in PAGE.split("```sh\n")[1:])
    found = next(block for block in blocks if first in block)
    for theirs, ours in (
        ("export PYSPARK_PYTHON=/shared/env/bin/python\n", ""),
        ("/shared/", f"{place}/"),
        ("spark://master:7077", master),
        ("orders_per_day.py", str(ROOT / "examples" / "orders_per_day.py")),
    ):
        assert theirs in found or theirs.startswith("export")
        found = found.replace(theirs, ours)
    # A worker for tests has 1 GB.
    return found.replace("spark.executor.memory=2g", "spark.executor.memory=600m")


@pytest.mark.cluster
@pytest.mark.slow(90, "starts a cluster, and two drivers one after the other")
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    load_function(ROOT / "examples" / "orders_per_day.py", "make_input")(tmp_path / "orders", orders=100)
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        env = {**os.environ, **cluster.environment}
        del env["SPARK_MASTER"]  # the command names it
        env["PATH"] = f"{SPARK_HOME / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
        env["PYTHONPATH"] = str(ROOT)

        def run(text: str) -> tuple[str, set[Path]]:
            before = set((tmp_path / "cluster").glob("work-*/app-*"))
            done = subprocess.run(
                ["sh", "-c", command(text, tmp_path, cluster.master)], capture_output=True, text=True, check=False,
                env=env, cwd=tmp_path,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout, set((tmp_path / "cluster").glob("work-*/app-*")) - before

        out, applications = run("spark-submit --master")
        assert "FINISHED: 600 rows" in out
        assert applications  # its executors ran on the cluster's worker
        assert sorted(DeltaTable(str(tmp_path / "per_day")).to_pandas()["orders"]) == [100] * 6

        out, _ = run("spark-ext run")
        assert "FINISHED" in out
    assert len(DeltaTable(str(tmp_path / "per_day")).to_pandas()) == 6  # the second start has read nothing
