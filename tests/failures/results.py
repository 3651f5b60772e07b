"""The verdicts on all recorded failures, beside what a person says of them."""

from __future__ import annotations

import json
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.labels import Response
from spark_ext.failures.verdict import Verdict
from tests.failures.corpus import Case, all_cases

RECORDED: Final = Path(__file__).parent / "recorded"
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """A case, and what was made of it."""

    case: Case
    verdict: Verdict
    decision: Response
    lines: Mapping[str, str]
    """The lines of the user's code that it names, by place."""

    @property
    def type_is_right(self) -> bool:
        """Whether the type is what the person says."""
        return self.verdict.type.value == self.case.type

    @property
    def origin_is_right(self) -> bool:
        """Whether the origin is."""
        return self.verdict.origin.value == self.case.origin

    @property
    def decision_is_right(self) -> bool:
        """Whether what is done is."""
        return self.decision.value == self.case.decision

    @property
    def line_is_right(self) -> bool:
        """Whether a line that the verdict names has the part that the person gives."""
        named = (self.lines.get(place.split(", in ")[0], "") for place in self.verdict.places)
        return self.case.line in self.verdict.raised.context or any(self.case.line in line for line in named)

    @property
    def subject_is_right(self) -> bool:
        """Whether it names what could not be serialized, in whatever module that is defined."""
        return f".{self.verdict.subject}".endswith(f".{self.case.subject}")


def source(place: str) -> str:
    """The line of a place such as `tests/a.py, line 12`."""
    file, _, number = place.partition(", line ")
    path = Path(file) if Path(file).is_absolute() else ROOT / file
    return linecache.getline(str(path), int(number)).strip() if number.isdigit() else ""


def lines_of(evidence: Evidence) -> dict[str, str]:
    """The lines of the user's code that the verdict names, by place, while their file is as it was."""
    places = (place.split(", in ")[0] for place in Classifier().judge(evidence).places)
    return {place: line for place in places if (line := source(place))}


def result_of(case: Case, record: Mapping[str, Any], classifier: Classifier) -> Result:
    """The verdict on one failure, from its record."""
    verdict = classifier.judge(Evidence.from_json(record))
    return Result(case, verdict, classifier.decision(verdict.labels).do, record["lines"])


@cache
def recorded() -> Sequence[Result]:
    """The verdict on each failure that was recorded."""
    classifier, cases = Classifier(), {case.name: case for case in all_cases()}
    found = []
    for path in sorted(RECORDED.glob("*.json")):
        record = json.loads(path.read_text())
        case = Case(path.stem, **record["case"]) if "case" in record else cases[path.stem]
        found.append(result_of(case, record, classifier))
    return found
