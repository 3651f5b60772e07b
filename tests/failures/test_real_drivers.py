"""Failures that end a driver or need a cluster, made to happen again."""

from __future__ import annotations

import pytest

from tests.failures.record import made_apart
from tests.failures.remade import CASES, check, of_each_rule


@pytest.mark.slow(30, "a driver, or a cluster, of its own")
@pytest.mark.parametrize("name", of_each_rule("process", "cluster"))
def test_a_failure_is_judged_as_its_record(name: str) -> None:
    check(CASES[name], made_apart(CASES[name]))
