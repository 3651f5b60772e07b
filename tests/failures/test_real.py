"""Failures that are made to happen again: what was recorded is still what Spark raises."""

import json
from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from spark_ext.failures.classifier import Classifier
from tests.failures import record
from tests.failures.corpus import Case, all_cases
from tests.failures.results import RECORDED, Result, result_of

CASES: Final = {case.name: case for case in all_cases()}


def of(where: str) -> list[str]:
    return [name for name, case in CASES.items() if case.where == where]


def result(case: Case, text: str) -> Result:
    return result_of(case, json.loads(text), Classifier())


def check(case: Case, text: str) -> None:
    now, then = (
        (one.verdict.type, one.verdict.origin, one.decision, one.verdict.subject, one.line_is_right)
        for one in (result(case, text), result(case, (RECORDED / f"{case.name}.json").read_text()))
    )
    assert now == then


USUAL = (
    "data.check_constraint", "expressions.cast_overflow", "functions.foreach_batch", "functions.lying_message",
    "functions.pandas_key", "functions.refused_connection", "serialization.lock_result",
)  # fmt: skip
"""One of each way in which a failure reaches the driver."""


@pytest.mark.parametrize("name", USUAL)
def test_a_failure_is_judged_as_its_record_and_rightly(spark: SparkSession, name: str) -> None:
    case = CASES[name]
    text = record.made(spark, case)
    check(case, text)
    found = result(case, text)
    assert found.type_is_right and found.origin_is_right and found.decision_is_right and found.line_is_right


@pytest.mark.parametrize("name", [name for name in of("local") if name not in USUAL])
def test_a_failure_is_judged_as_its_record(spark: SparkSession, name: str) -> None:
    check(CASES[name], record.made(spark, CASES[name]))


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
@pytest.mark.parametrize("name", of("process"))
def test_a_failure_of_a_driver_is_judged_as_its_record(name: str, driver: record.Driver) -> None:
    check(CASES[name], driver.made(CASES[name]))


@pytest.mark.cluster
@pytest.mark.slow(40, "the first one starts a cluster, and a driver on it")
@pytest.mark.parametrize("name", of("cluster"))
def test_a_failure_on_a_cluster_is_judged_as_its_record(name: str, driver_on_cluster: record.Driver) -> None:
    check(CASES[name], driver_on_cluster.made(CASES[name]))
