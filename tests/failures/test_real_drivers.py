"""Failures that end a driver or need a cluster, made to happen again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.failures import record
from tests.failures.remade import CASES, check, of_each_rule

NAMES = of_each_rule("process", "cluster")


@pytest.fixture(scope="module")
def driver() -> Iterator[record.Driver]:
    with record.Driver({}) as driver:
        yield driver


@pytest.fixture(scope="module")
def driver_on_cluster() -> Iterator[record.Driver]:
    with record.cluster() as running, record.Driver(running.environment) as driver:
        yield driver


@pytest.mark.process
@pytest.mark.slow(30, "the first one starts a driver, and so does one after another's end")
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].where == "process"])
def test_a_failure_is_judged_as_its_record(name: str, driver: record.Driver) -> None:
    check(CASES[name], driver.made(CASES[name]))


@pytest.mark.cluster
@pytest.mark.slow(40, "the first one starts a cluster, and a driver on it")
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].where == "cluster"])
def test_a_failure_on_a_cluster_is_judged_as_its_record(name: str, driver_on_cluster: record.Driver) -> None:
    check(CASES[name], driver_on_cluster.made(CASES[name]))
