"""The compact job under `kill -9`, and on a real cluster: the same tables. Short runs of `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import history
from tests.chaos.harness import Reference, Report, Round, kills_at_steps, random_kills
from tests.chaos.outlets import OUTLETS
from tests.chaos.scenario import COMMIT_STEPS, FINAL_STEPS, START_STEPS, compact
from tests.chaos.sinks import known, server_at_steps
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

LOCAL = {"SPARK_MASTER": "local[2]"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    found = Reference(compact(), tmp_path_factory.mktemp("chaos"), LOCAL)
    assert found.problems == []
    yield found


def test_random_kills_change_no_row(reference: Reference, tmp_path: Path) -> None:
    targets = ["driver", "worker", "jvm", "all"]
    report = random_kills(reference, tmp_path, kills=4, targets=targets, seed=7, env=LOCAL, say=print)  # type: ignore[arg-type]
    assert report.problems == []
    assert len(report.blows) == 4


def test_a_kill_at_a_named_step_changes_no_row(reference: Reference, tmp_path: Path) -> None:
    # At half of the steps of a commit the worker dies, at the others the driver, whose JVM lives on for a moment.
    commit = {point: ("kill", "kill-driver")[number % 2] for number, point in enumerate(COMMIT_STEPS)}
    # Of those that cost a new start each, every other one; `make chaos` has them all.
    steps = dict.fromkeys((*START_STEPS[::2], *FINAL_STEPS[::2]), "kill") | commit
    report = kills_at_steps(reference, tmp_path, steps=steps, env=LOCAL, say=print)
    assert report.problems == []
    assert len(report.blows) == len(steps)


def test_a_sink_stays_exact_when_its_server_dies_at_each_step(tmp_path: Path) -> None:
    with OUTLETS["http_2pc"](tmp_path) as outlet:
        report = server_at_steps(known(outlet), tmp_path / "server", outlet, print)
    assert report.problems == []
    assert len(report.blows) == 3 + len(outlet.commits)


def test_history_and_then_a_live_topic_into_both_servers_at_once_stay_exact(tmp_path: Path) -> None:
    report = history.chaos(tmp_path, kills=4, seed=5)
    assert report.problems == []
    assert len(report.blows) == 4
    assert report.tables == dict.fromkeys(("table", "topic"), sum(history.EVENTS))


@pytest.mark.cluster
def test_on_a_cluster_the_tables_are_the_same_also_when_executors_die(reference: Reference, tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2) as cluster:
        quiet = Report("cluster")
        with Round(reference, tmp_path / "quiet", cluster.environment, quiet, cluster) as round_:
            round_.finish()
        assert (quiet.problems, quiet.starts) == ([], 2)
        report = random_kills(
            reference,
            tmp_path,
            kills=2,
            targets=["executor", "worker"],
            seed=3,
            env=cluster.environment,
            cluster=cluster,
            say=print,
        )
    assert report.problems == []
    assert len(report.blows) == 2
