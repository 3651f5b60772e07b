"""Cases that are made to fail again, and the check that each is judged as its record."""

from __future__ import annotations

import json
from typing import Final

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from tests.failures.corpus import Case, all_cases
from tests.failures.results import RECORDED, Result, result_of

CASES: Final = {case.name: case for case in all_cases()}
SERIES: Final = ("more.", "fourth.", "fifth.")
"""Cases that were collected in series; the others are by area."""


def local(*, series: bool) -> list[str]:
    """The names of the cases that share a session: those of the series, or those by area."""
    return [case.name for case in CASES.values() if case.where == "local" and case.name.startswith(SERIES) == series]


def result(case: Case, text: str) -> Result:
    return result_of(case, Evidence.from_json(json.loads(text)), Classifier())


def check(case: Case, text: str) -> None:
    """The failure gets the verdict that its record has."""
    now, then = result(case, text), result(case, (RECORDED / f"{case.name}.json").read_text())
    assert (now.verdict.type, now.verdict.origin, now.decision, now.verdict.subject) == (
        then.verdict.type,
        then.verdict.origin,
        then.decision,
        then.verdict.subject,
    )
    assert now.line_is_right == then.line_is_right
