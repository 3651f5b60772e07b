"""The verdicts on all failures that were recorded; `test_real.py` makes them happen again."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_ext.failures.labels import FailureType
from tests.failures.corpus import all_cases
from tests.failures.results import RECORDED, Result, recorded, written

PAGE = Path(__file__).parents[2] / "docs" / "testing-this-project.md"


def wrong(results: Sequence[Result], what: str) -> list[str]:
    return [
        f"{one.case.name}: {one.verdict.type.value}, {one.verdict.origin.value}, {one.decision.value}, by "
        f"{one.verdict.rule or 'no rule'}, at {one.verdict.places}"
        for one in results
        if not getattr(one, what)
    ]


def test_every_local_case_is_recorded_and_each_type() -> None:
    assert {one.case.name for one in recorded()} == {path.stem for path in RECORDED.glob("*.json")}
    assert {case.name for case in all_cases() if case.where == "local"} <= {one.case.name for one in recorded()}
    assert len(recorded()) >= 120
    assert {one.case.type for one in recorded()} == {kind.value for kind in FailureType}


@pytest.mark.parametrize(
    ("what", "least"), [("type_is_right", 0.97), ("origin_is_right", 0.95), ("decision_is_right", 0.97)]
)
def test_how_many_verdicts_are_right(what: str, least: float) -> None:
    missed = wrong(recorded(), what)
    assert len(missed) <= (1 - least) * len(recorded()), "\n".join(missed)


def test_the_users_line_and_what_was_not_serialized_are_named() -> None:
    faults = [one for one in recorded() if one.case.type == "USER_CODE" and one.case.line]
    assert len(faults) >= 20
    assert not wrong(faults, "line_is_right")
    assert not wrong([one for one in recorded() if one.case.subject], "subject_is_right")


def test_the_page_has_these_results() -> None:
    assert PAGE.read_text() == written(PAGE.read_text()), f"python -m tests.failures.results {PAGE}"
