"""No process that a test has started outlives it: trees of processes, and a real cluster."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.servers.watchdog import Watched
from tests.support.cluster import Cluster
from tests.support.processes import Tree
from tests.support.waiting import until

FAMILY = """
import subprocess, sys, time
nap = "import time; time.sleep(600)"
child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{nap}']); {nap}"
subprocess.Popen([sys.executable, "-c", child])
print("up", flush=True)
time.sleep(600)
"""


def family(tmp_path: Path) -> Tree:
    return Tree([sys.executable, "-c", FAMILY], tmp_path / "family.log")


def test_a_tree_is_found_whole_even_without_its_head(tmp_path: Path) -> None:
    with family(tmp_path) as tree:
        until(lambda: len(tree.members()) == 3, "parent, child and grandchild")
        tree.kill()
        assert tree.poll() == -signal.SIGKILL
        left = tree.members()
        assert len(left) == 2
        assert tree.pid not in {member.pid for member in left}
    assert tree.members() == []
    assert not any(member.kill() for member in left)


def test_a_kill_hits_only_the_living_even_if_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start times move with the clock; that of the boot is what psutil adds to them."""
    with family(tmp_path) as tree:
        until(lambda: len(tree.members()) == 3, "parent, child and grandchild")
        members = tree.members()
        boot = psutil.boot_time()
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + 60)
        assert [member.kill() for member in members] == [True] * 3
        tree.kill_all()
        assert [member.kill() for member in members] == [False] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="the start since boot is known on Linux alone")
def test_servers_are_ended_also_when_the_clock_is_set_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with family(tmp_path) as tree:
        watched = Watched(tmp_path / "servers")
        watched.folder.mkdir()
        watched.add(tree.pid)
        boot = psutil.boot_time()
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + 60)
        until(lambda: len(tree.members()) == 3, "parent, child and grandchild")
        watched.close()
        assert tree.members() == []


@pytest.mark.cluster
@pytest.mark.slow(20, "starts a cluster and kills a worker")
def test_a_cluster_starts_with_its_workers_and_leaves_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2) as cluster:
        assert cluster.master.startswith("spark://127.0.0.1:")
        assert cluster.registered() == 2
        workers = list(cluster.workers)
        assert all(worker.members() for worker in workers)
        assert cluster.executors() == []
        # The Master notices that a worker has died.
        workers[0].kill_all()
        until(lambda: cluster.registered() == 1, "the Master has removed the dead worker")
    assert [worker.members() for worker in workers] == [[], []]
