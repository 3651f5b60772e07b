"""The section of docs/failures.md that says how often verdicts are right: `python -m tests.failures.table PAGE`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from spark_ext.failures.labels import FailureType
from tests.failures.results import Result, recorded

_SECTION = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)


def _share(results: Sequence[Result], name: str) -> str:
    right = sum(getattr(one, name) for one in results)
    return f"{right} of {len(results)}"


def section(results: Sequence[Result]) -> str:
    """The text between the markers."""
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
    """A page with the section as it is now."""
    return _SECTION.sub(lambda match: f"{match[1]}{section(recorded())}{match[2]}", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text()))
