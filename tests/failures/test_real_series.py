"""Failures of the series, made to happen again."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.failures.record import made
from tests.failures.remade import CASES, check, local


@pytest.mark.parametrize("name", local(series=True))
def test_a_failure_is_judged_as_its_record(spark: SparkSession, name: str) -> None:
    check(CASES[name], made(spark, CASES[name]))
