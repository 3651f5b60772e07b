"""The last committed figures, and the table of them in `docs/benchmarks.md`: both are written, never typed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results.json")
PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
MARK: Final = "bench table"
_KEPT: Final = ("date", "commit", "machine", "cores", "load")  # of the environment


def merged(earlier: Iterable[dict[str, Any]], measured: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All figures by name, as measured last; `before` is the ratio that the same figure had until then."""
    found = {figure["name"]: figure for figure in earlier}
    for figure in measured:
        detail = figure["detail"]
        kept = {"compared": detail["compared"], "environment": {key: detail["environment"].get(key) for key in _KEPT}}
        before = found[figure["name"]]["ratio"] if figure["name"] in found else None
        found[figure["name"]] = {**figure, "detail": kept, "before": before}
    return sorted(found.values(), key=lambda figure: str(figure["command"]))  # those of one benchmark stay in order


def table(figures: Sequence[dict[str, Any]]) -> str:
    """A line of each figure."""
    lines = ["| figure | the ratio | aim | last | before | measured |", "|---|---|---|---|---|---|"]
    for one in figures:
        of = one["detail"]["environment"]
        last = f"{one['ratio']:g}" if one["meets"] else f"**{one['ratio']:g}**, misses"
        if one["quartiles"]:
            last += " ({:g} to {:g})".format(*one["quartiles"])
        before = "" if one.get("before") is None else f"{one['before']:g}"
        cells = (
            f"`{one['name']}`",
            one["detail"]["compared"],
            one["aim"],
            last,
            before,
            f"{of['date']} {of['commit']}",
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def replaced(text: str, mark: str, part: str) -> str:
    """A page's text with another part between `<!-- MARK: begin -->` and its end; one without them stays as it is."""
    begin, end = (f"<!-- {mark}: {side} -->" for side in ("begin", "end"))
    return re.sub(f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{part}\n\n{end}", text)
