"""Failures that are made to happen again: what was recorded is still what Spark raises."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from tests.failures.corpus import Case, all_cases
from tests.failures.record import made, made_apart
from tests.failures.results import RECORDED, Result, result_of

CASES = {case.name: case for case in all_cases()}
USUAL = (
    "data.check_constraint",
    "expressions.cast_overflow",
    "functions.foreach_batch",
    "functions.lying_message",
    "functions.pandas_key",
    "functions.refused_connection",
    "serialization.lock_result",
)
"""One of each way in which a failure reaches the driver."""


def result(case: Case, text: str) -> Result:
    return result_of(case, Evidence.from_json(json.loads(text)), Classifier())


def same(case: Case, text: str) -> None:
    """The failure gets the verdict that its record has."""
    now, then = result(case, text), result(case, (RECORDED / f"{case.name}.json").read_text())
    assert (now.verdict.type, now.verdict.origin, now.decision, now.verdict.subject) == (
        then.verdict.type,
        then.verdict.origin,
        then.decision,
        then.verdict.subject,
    )
    assert now.line_is_right == then.line_is_right


@pytest.mark.parametrize("name", USUAL)
def test_a_failure_is_judged_as_its_record(spark: SparkSession, name: str) -> None:
    case = CASES[name]
    text = made(spark, case)
    same(case, text)
    found = result(case, text)
    assert found.type_is_right and found.origin_is_right and found.decision_is_right and found.line_is_right


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.where == "local"])
def test_every_local_failure_is_judged_as_its_record(spark: SparkSession, name: str) -> None:
    same(CASES[name], made(spark, CASES[name]))


@pytest.mark.slow(30, "a driver, or a cluster, of its own")
@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.where != "local"])
def test_every_failure_of_a_driver_of_its_own_is_judged_as_its_record(name: str) -> None:
    same(CASES[name], made_apart(CASES[name]))
