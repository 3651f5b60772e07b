"""A server of Spark Connect whose tasks run on a standalone cluster: executors on two workers."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples import flights
from tests.chaos.scenario import remote_flights
from tests.servers.connect import ConnectServer, client_environment
from tests.support.cheap_jvm import REMOTE
from tests.support.cluster import Cluster


@pytest.mark.cluster
@pytest.mark.timeout(1800)
@pytest.mark.slow(150, "runs the flights of a year on a cluster")
def test_flights_on_a_cluster_are_equal_to_pandas(tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    flights.prepare(tmp_path / "data")
    (tmp_path / "cluster").mkdir()
    out = tmp_path / "out"
    with (
        Cluster(tmp_path / "cluster", workers=2) as cluster,
        ConnectServer(tmp_path / "server.log", cluster=cluster) as server,
    ):
        command = remote_flights(tmp_path / "data").command(out)
        env = {**client_environment(), REMOTE: server.address}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        assert len(cluster.executors()) == 2
    assert flights.check(flights.Outcome.read(out), flights.Outcome.by_pandas(), Console(file=sys.stdout))
