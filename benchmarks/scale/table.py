"""The tables of what was measured; no figure is typed by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.nexmark.table import markdown, write_between
from benchmarks.scale.measure import CURVES, Curve

Result = Mapping[str, Any]

PAGE: Final = Path("docs/scale.md")
UPPER: Final = 3  # sizes of the upper part of a curve, to which the exponent is fitted
FURTHER: Final = 100  # how many times the largest size the outlook is about
PER_EPOCH: Final = 0.1  # exponent from which a cost of an epoch grows with the history
TOTAL: Final = 1.1  # exponent from which a cost grows faster than what it is for
NOT_YET: Final = "Not measured yet."


@dataclass(frozen=True)
class _Figure:
    name: str
    head: str
    said: str  # in a sentence, around its value
    unit: str = "s"  # of the sentence
    factor: float = 1.0  # to that unit
    of_epoch: bool = False  # whether each epoch has it, or a share of it
    hint: str = ""  # wall time, which stands beside it


FIGURES: Final = (
    _Figure("cpu_ms", "CPU, ms", "an epoch takes {} of CPU time", factor=0.001, of_epoch=True, hint="wall_ms"),
    _Figure("bytes", "written, B", "writes {}", "B", of_epoch=True),
    _Figure("files", "files", "in {} files", "", of_epoch=True),
    _Figure("start_cpu_s", "start, CPU s", "a start takes {}", hint="start_wall_s"),
    _Figure("status_cpu_s", "status, CPU s", "`status` {}", hint="status_wall_s"),
    _Figure("page_cpu_s", "page, CPU s", "the first view of the page {}", hint="page_wall_s"),
    _Figure("again_cpu_s", "page again, CPU s", "the next one {}", of_epoch=True, hint="again_wall_s"),
    _Figure("page_mb", "its memory, MB", "with {} of memory", "B", 1e6),
    _Figure("compact_cpu_s", "compaction, CPU s", "a compaction {}", of_epoch=True),
    _Figure("compact_bytes", "compaction, B", "writing {}", "B", of_epoch=True),
    _Figure("pss_mb", "memory, MB", "the job has {} of memory", "B", 1e6),
    _Figure("processes", "processes", "in {} processes", ""),
)
"""In the order of their columns."""


def write_page(results: Sequence[Result], page: Path = PAGE) -> None:
    """Replace what stands between the marks of the page."""
    parts = {"exponents": exponents(results), "outlook": outlook(results), "figures": figures(results)}
    write_between("scale", parts, [page])


def exponents(results: Sequence[Result]) -> str:
    """How each cost grows; a fault is printed in bold."""
    rows = []
    for curve, found in _measured(results):
        cells = []
        for figure in FIGURES:
            grows = _exponent(figure, found)
            bold = "**" if _is_fault(figure, curve, grows) else ""
            cells.append("" if grows is None else f"{bold}{round(grows, 2) + 0.0:.2f}{bold}")
        faults = sum("**" in cell for cell in cells)
        sizes = f"{found[0]['size']:,} to {found[-1]['size']:,}"
        rows.append([curve.what, sizes, "an epoch" if curve.past else "all", *cells, str(faults or "")])
    head = ["what grows", "sizes", "cost of", *(figure.head for figure in FIGURES), "faults"]
    return markdown(head, rows) if rows else NOT_YET


def outlook(results: Sequence[Result]) -> str:
    """A line per curve on a size that was not measured, computed from the curve; two sizes say too little."""
    lines = []
    for curve, found in _measured(results):
        if len(found) < UPPER:
            continue
        said = []
        for figure in FIGURES:
            grows = _exponent(figure, found)
            if grows is not None:
                value = found[-1][figure.name] * figure.factor * FURTHER ** max(0.0, grows)
                said.append(figure.said.format(_text(value, figure.unit)))
        lines.append(f"* **{found[-1]['size'] * FURTHER:,} {curve.what}**: {', '.join(said)}.")
    return "\n".join(lines) or NOT_YET


def figures(results: Sequence[Result]) -> str:
    """All that was measured; beside CPU times stands the wall time."""
    rows = [[curve.what, f"{one['size']:,}", *_cells(one)] for curve, found in _measured(results) for one in found]
    return markdown(["what grows", "size", *(figure.head for figure in FIGURES)], rows) if rows else NOT_YET


def _cells(one: Result) -> list[str]:
    cells = []
    for figure in FIGURES:
        value, wall = one.get(figure.name), one.get(figure.hint)
        hint = "" if wall is None else f" ({wall:,.4g})"
        cells.append("" if value is None else f"{value:,.4g}{hint}" if value < 1e4 else f"{value:,.0f}{hint}")
    return cells


def _measured(results: Sequence[Result]) -> list[tuple[Curve, list[Result]]]:
    """The curves with at least two measured sizes, and their results by size."""
    found = [(curve, [one for one in results if one["curve"] == curve.name]) for curve in CURVES.values()]
    return [(curve, sorted(some, key=lambda one: int(one["size"]))) for curve, some in found if len(some) > 1]


def _exponent(figure: _Figure, found: Sequence[Result]) -> float | None:
    """Least squares of the logarithms over the upper part of a curve; None where it has no such cost."""
    upper = [(one["size"], one[figure.name]) for one in found[-UPPER:] if one.get(figure.name)]
    if len(upper) < 2:
        return None
    sizes, costs = zip(*((math.log(size), math.log(cost)) for size, cost in upper), strict=True)
    return statistics.linear_regression(sizes, costs).slope


def _is_fault(figure: _Figure, curve: Curve, grows: float | None) -> bool:
    return grows is not None and grows > (PER_EPOCH if curve.past and figure.of_epoch else TOTAL)


def _text(value: float, unit: str) -> str:
    """A value with a unit that fits its size."""
    for limit, size, name in _UNITS.get(unit, ((math.inf, 1.0, ""),)):
        if value < limit:
            value, unit = value / size, name
            break
    return f"{value:.2g} {unit}".strip() if value < 10 else f"{value:,.0f} {unit}".strip()


_UNITS: Final = {
    "s": ((120.0, 1.0, "s"), (7200.0, 60.0, "minutes"), (172_800.0, 3600.0, "hours"), (math.inf, 86_400.0, "days")),
    "B": ((1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB"), (math.inf, 1e12, "TB")),
}
