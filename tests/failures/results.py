"""The verdicts on all recorded failures, beside what a person says of them."""

from __future__ import annotations

import json
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

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
        return self.case.line in self.verdict.raised.context or any(
            self.case.line in source(place) for place in self.verdict.places
        )

    @property
    def subject_is_right(self) -> bool:
        """Whether it names what could not be serialized, in whatever module that is defined."""
        return f".{self.verdict.subject}".endswith(f".{self.case.subject}")


def source(place: str) -> str:
    """The line of a place such as `tests/a.py, line 12, in f`."""
    file, _, rest = place.partition(", line ")
    path = Path(file) if Path(file).is_absolute() else ROOT / file
    number = rest.partition(",")[0]
    return linecache.getline(str(path), int(number)) if number.isdigit() else ""


def result_of(case: Case, evidence: Evidence, classifier: Classifier) -> Result:
    """The verdict on one failure."""
    verdict = classifier.judge(evidence)
    return Result(case, verdict, classifier.decision(verdict.labels).do)


@cache
def recorded() -> Sequence[Result]:
    """The verdict on each failure that was recorded."""
    classifier = Classifier()
    paths = ((case, RECORDED / f"{case.name}.json") for case in all_cases())
    return [
        result_of(case, Evidence.from_json(json.loads(path.read_text())), classifier)
        for case, path in paths
        if path.exists()
    ]
