"""The verdicts on all recorded failures, beside what a person says of them.

`python -m tests.failures.results docs/testing-this-project.md` writes the tables that say how often verdicts are right.
"""

import json
import linecache
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.labels import FailureType, Response
from spark_ext.failures.verdict import Verdict
from tests.failures.corpus import Case, all_cases

RECORDED: Final = Path(__file__).parent / "recorded"
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    case: Case
    verdict: Verdict
    decision: Response
    lines: Mapping[str, str]  # of the user's code that it names, by place

    @property
    def type_is_right(self) -> bool:
        return self.verdict.type.value == self.case.type

    @property
    def origin_is_right(self) -> bool:
        return self.verdict.origin.value == self.case.origin

    @property
    def decision_is_right(self) -> bool:
        return self.decision.value == self.case.decision

    @property
    def line_is_right(self) -> bool:
        named = (self.lines.get(place.split(", in ")[0], "") for place in self.verdict.places)
        return self.case.line in self.verdict.raised.context or any(self.case.line in line for line in named)

    @property
    def subject_is_right(self) -> bool:  # in whatever module it is defined
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
    verdict = classifier.judge(Evidence.from_json(record))
    return Result(case, verdict, classifier.decision(verdict.labels).do, record["lines"])


@cache
def recorded() -> Sequence[Result]:
    classifier, cases = Classifier(), {case.name: case for case in all_cases()}
    found = []
    for path in sorted(RECORDED.glob("*.json")):
        record = json.loads(path.read_text())
        case = Case(path.stem, **record["case"]) if "case" in record else cases[path.stem]
        found.append(result_of(case, record, classifier))
    return found


_SECTION = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)


def _share(results: Sequence[Result], name: str) -> str:
    return f"{sum(getattr(one, name) for one in results)} of {len(results)}"


def section(results: Sequence[Result]) -> str:
    every = (
        ("rules were written on", [one for one in results if not one.case.held_out]),
        ("held out", [one for one in results if one.case.held_out]),
    )
    parts = [(name, some) for name, some in every if some]
    lines = ["", "| failures | type | origin | decision | line |", "|---|---|---|---|---|"]
    for name, some in parts:
        lined = [one for one in some if one.case.line]
        shares = [_share(some, key) for key in ("type_is_right", "origin_is_right", "decision_is_right")]
        lines.append(f"| {name} | {' | '.join(shares)} | {_share(lined, 'line_is_right')} |")
    kinds = [kind.value for kind in FailureType]
    lines += ["", "Types, the right one on the left, the verdict's above:", ""]
    lines.append("| | " + " | ".join(kinds) + " |")
    lines.append("|---" * (len(kinds) + 1) + "|")
    counts = Counter((one.case.type, one.verdict.type.value) for one in results)
    for right in kinds:
        cells = [str(counts[right, found] or "") for found in kinds]
        lines.append(f"| {right} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", ""])


def written(page: str) -> str:
    return _SECTION.sub(lambda match: f"{match[1]}{section(recorded())}{match[2]}", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text()))
