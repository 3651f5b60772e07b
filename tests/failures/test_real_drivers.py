"""Failures that end a driver or need a cluster, made to happen again."""

from __future__ import annotations

import pytest

from tests.failures.record import made_apart
from tests.failures.remade import CASES, check


@pytest.mark.slow(30, "a driver, or a cluster, of its own")
@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.where != "local"])
def test_a_failure_is_judged_as_its_record(name: str) -> None:
    check(CASES[name], made_apart(CASES[name]))
