"""Failures that end a driver or need a cluster, made to happen again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.failures import record
from tests.failures.remade import CASES, check, of_each_rule
from tests.support.cluster import Cluster

NAMES = of_each_rule("process", "cluster")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with record.cluster() as running:
        yield running


@pytest.mark.slow(30, "a driver of its own")
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].where == "process"])
def test_a_failure_is_judged_as_its_record(name: str) -> None:
    check(CASES[name], record.made_apart(CASES[name], {}))


@pytest.mark.cluster
@pytest.mark.slow(40, "a driver of its own, on a cluster")
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].where == "cluster"])
def test_a_failure_on_a_cluster_is_judged_as_its_record(name: str, cluster: Cluster) -> None:
    check(CASES[name], record.made_apart(CASES[name], cluster.environment))
