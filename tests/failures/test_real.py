"""Failures that are made to happen again: what was recorded is still what Spark raises."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.failures.record import made
from tests.failures.remade import CASES, check, of_each_rule, result

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


@pytest.mark.parametrize("name", USUAL)
def test_a_failure_is_judged_as_its_record_and_rightly(spark: SparkSession, name: str) -> None:
    case = CASES[name]
    text = made(spark, case)
    check(case, text)
    found = result(case, text)
    assert found.type_is_right and found.origin_is_right and found.decision_is_right and found.line_is_right


@pytest.mark.parametrize("name", [name for name in of_each_rule("local") if name not in USUAL])
def test_a_failure_is_judged_as_its_record(spark: SparkSession, name: str) -> None:
    check(CASES[name], made(spark, CASES[name]))
