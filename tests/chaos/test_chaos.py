"""The compact job under `kill -9`, and on a real cluster, writes the same tables. Short runs of `make chaos`."""

from pathlib import Path

import pytest

from spark_ext.failpoints import FailPoint
from tests.chaos import compact, follow, history, scenario
from tests.chaos.harness import Reference, Target, kills_at_steps, random_kills
from tests.chaos.outlets import OUTLETS
from tests.chaos.sinks import known, server_at_steps
from tests.chaos.verify import Content
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
LOCAL = {"SPARK_MASTER": "local[2]"}


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(scenario.compact(), {name: Content(table) for name, table in compact.expected().items()})


@pytest.mark.slow(60, "starts the job three times")
def test_a_kill_at_some_named_steps_changes_no_row(reference: Reference, tmp_path: Path) -> None:
    """Kills a worker or the driver at steps of an epoch that leave different things behind, and at the job's end."""
    workers = (FailPoint.SOURCE_PLANNED, FailPoint.DELTA_BEFORE_COMMIT)
    steps: dict[str, str] = dict.fromkeys((*workers, FailPoint.END_OF_INPUT_PLANNED, FailPoint.FINAL_FLAGGED), "kill")
    steps[FailPoint.DELTA_COMMITTED] = "kill-driver"  # before Spark's commit
    env = {**LOCAL, "CHAOS_EPOCHS": "4"}  # each epoch has all steps
    report = kills_at_steps(reference, tmp_path, steps=steps, env=env, say=print)
    assert report.problems == []
    assert len(report.kills) == len(steps)


@pytest.mark.slow(50, "kills a server at each of eleven steps")
def test_a_sink_stays_exact_when_its_server_dies_at_each_step(tmp_path: Path) -> None:
    with OUTLETS["http_2pc"](tmp_path) as outlet:
        # Each step is met in the first epoch that has it.
        env = {**LOCAL, "CHAOS_EPOCH_ROWS": "1000"}
        report = server_at_steps(known(outlet), tmp_path / "server", outlet, print, env)
    assert report.problems == []
    assert len(report.kills) == 3 + len(outlet.commits)


@pytest.mark.cluster
@pytest.mark.slow(60, "starts a cluster, and the job on it twice")
def test_tables_on_a_cluster_are_the_same_when_executors_die(reference: Reference, tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2) as cluster:
        report = random_kills(
            reference, tmp_path, kills=2, targets=["executor", "worker"], seed=3, env=cluster.environment,
            cluster=cluster, say=print,
        )  # fmt: skip
    assert report.problems == []
    assert len(report.kills) == 2


@pytest.mark.slow(60, "starts the job three times or more")
def test_random_kills_change_no_row(reference: Reference, tmp_path: Path) -> None:
    targets: list[Target] = ["driver", "worker", "jvm", "all"]
    report = random_kills(reference, tmp_path, kills=2, targets=targets, seed=7, env=LOCAL, say=print)
    assert report.problems == []
    assert len(report.kills) == 2


@pytest.mark.slow(60, "fills a topic for half a minute while the job runs and is killed")
def test_history_then_a_live_topic_into_both_servers_stay_exact(tmp_path: Path) -> None:
    report = history.chaos(tmp_path, kills=2, seed=5, pace=2)
    assert report.problems == []
    assert len(report.kills) == 2
    assert report.tables == dict.fromkeys(("table", "topic"), sum(history.EVENTS))


@pytest.mark.slow(20, "changes a table while the job that follows it is killed")
def test_the_changes_of_a_table_that_is_followed_stay_exact(tmp_path: Path) -> None:
    report = follow.chaos(tmp_path, kills=3, seed=3)
    assert report.problems == []
    assert len(report.kills) == 3
