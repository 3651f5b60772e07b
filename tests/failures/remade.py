"""Cases that are made to fail again, and the check that each is judged as its record."""

from __future__ import annotations

import json
from typing import Final

from spark_ext.failures.classifier import Classifier
from tests.failures.corpus import Case, all_cases
from tests.failures.results import RECORDED, Result, result_of

CASES: Final = {case.name: case for case in all_cases()}


def of_each_rule(*where: str) -> list[str]:
    """The names of cases: for each rule, and for each origin with a decision, of those that run there the first one.

    `python -m tests.failures.record` makes all of them fail again.
    """
    found: dict[str | tuple[str, str], str] = {}
    for case in CASES.values():
        if case.where in where:
            then = result(case, recorded(case))
            found.setdefault(then.verdict.rule, case.name)
            found.setdefault((then.verdict.origin.value, then.decision.value), case.name)
    return list(dict.fromkeys(found.values()))


def recorded(case: Case) -> str:
    return (RECORDED / f"{case.name}.json").read_text()


def result(case: Case, text: str) -> Result:
    return result_of(case, json.loads(text), Classifier())


def check(case: Case, text: str) -> None:
    """The failure gets the verdict that its record has."""
    now, then = result(case, text), result(case, recorded(case))
    assert (now.verdict.type, now.verdict.origin, now.decision, now.verdict.subject) == (
        then.verdict.type,
        then.verdict.origin,
        then.decision,
        then.verdict.subject,
    )
    assert now.line_is_right == then.line_is_right
