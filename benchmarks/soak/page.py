"""The table and the plot of a soak, made from the lines of its journal; no figure is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import judge
from benchmarks.soak.judge import COUNTS, MEMORY

Line = dict[str, Any]
PAGE: Final = Path("docs/soak.md")
PLOT: Final = Path("docs/images/soak.png")
ROLES: Final = ("driver", "JVM", "planner", "worker", "gateway")
MISSES: Final = " (misses)"
_MARKS: Final = ("<!-- soak: begin -->", "<!-- soak: end -->")


def write(lines: Sequence[Line]) -> None:
    """Replace what stands between the marks of the page, and the plot; without samples both stay."""
    if len(_samples(lines)) < 2:
        return
    plot(lines, PLOT)
    body = f"{text(lines)}\n\n![What the soak has measured](images/{PLOT.name})"
    whole = f"{_MARKS[0]}\n\n{body}\n\n{_MARKS[1]}".replace("\\", r"\\")
    PAGE.write_text(re.sub("(?s)" + ".*?".join(map(re.escape, _MARKS)), whole, PAGE.read_text()))


def holds(lines: Sequence[Line]) -> bool:
    """Whether the run has come to its end with exact rows, and nothing grows."""
    return _of(lines, "fault") == [] and _of(lines, "rows") != [] and MISSES not in text(lines)


def text(lines: Sequence[Line]) -> str:
    samples, restarts = _samples(lines), _of(lines, "restart")
    if len(samples) < 2:
        return "\n".join(["Nothing was measured.", *_of(lines, "fault")])
    minutes = (samples[-1]["at"] - samples[0]["at"]) / 60
    kinds = ", ".join(f"{restarts.count(kind)} by {kind}" for kind in sorted(set(restarts)))
    parts = [
        f"{minutes:.0f} minutes at {lines[0]['plan']['rate']} rows per second of each source, with {len(restarts)} "
        f"restarts ({kinds or 'none'}) and {judge.cores(samples):.2f} of a core for the job and its gateway; commit "
        f"{lines[0]['environment']['commit']}, {lines[0]['environment']['date']}.",
        *(f"**The run was broken off: {fault.splitlines()[0]}**" for fault in _of(lines, "fault")),
        _rows(lines), _processes(samples), _folders(samples),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _samples(lines: Sequence[Line]) -> list[Line]:
    return [one for one in lines if "processes" in one]


def _of(lines: Sequence[Line], what: str) -> list[Any]:
    return [one[what] for one in lines if what in one]


def _rows(lines: Sequence[Line]) -> str:
    rows = [
        [sink, *(f"{count:,}" for count in found.values())] for one in _of(lines, "rows") for sink, found in one.items()
    ]
    return _markdown(["sink", "rows", "lost", "doubled", "strange"], rows) if rows else ""


def _processes(samples: Sequence[Line]) -> str:
    rows = []
    for role in ROLES:
        for figure in (*MEMORY, *COUNTS):
            found = judge.processes(samples, role, figure)
            if found:
                said = f"{_growth(figure, found.hour)}{f' ({found.kind})' if found.kind else ''}"
                said += "" if found.meets(figure) else MISSES
                level = f"{found.level / 1e6:,.0f} MB" if figure in MEMORY else f"{found.level:,.0f}"
                rows.append([role, figure, level, said, _growth(figure, found.across)])
    return _markdown(["process", "figure", "level", "growth per hour", "across incarnations"], rows)


def _growth(figure: str, hour: float | None) -> str:
    return "-" if hour is None else f"{100 * hour:+.1f} %" if figure in MEMORY else f"{hour:+.1f}"


def _folders(samples: Sequence[Line]) -> str:
    rows, late = [], judge.last_half(samples)
    for name in samples[-1]["folders"]:
        files, size = ([(one["at"], one["folders"][name][what]) for one in late] for what in ("files", "bytes"))
        most, hour = max(value for _, value in files), judge.slope([size])
        grows = "" if judge.bounded(samples, name) else MISSES
        growth = "-" if hour is None else f"{hour / 1e6:+,.1f} MB"
        rows.append([name, f"{most:,}{grows}", f"{size[-1][1] / 1e6:,.1f} MB", growth])
    return _markdown(["folder", "most files", "bytes at the end", "growth per hour"], rows)


def plot(lines: Sequence[Line], file: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot, which would look for a display

    samples = _samples(lines)
    begin = samples[0]["at"]
    times = [(one["at"] - begin) / 60 for one in samples]
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for role in ROLES:
        for panel, name, unit in ((axes[0][0], "rss", 1e6), (axes[0][1], "descriptors", 1)):
            sums = [sum(one[name] for one in sample["processes"] if one["role"] == role) / unit for sample in samples]
            panel.plot(times, sums, label=role)
    for folder in samples[-1]["folders"]:
        for panel, name, unit in ((axes[1][0], "files", 1), (axes[1][1], "bytes", 1e6)):
            panel.plot(times, [one["folders"][folder][name] / unit for one in samples], label=folder)
    titles = ("resident memory, MB", "descriptors", "files", "size of files, MB")
    for panel, title in zip(axes.flat, titles, strict=True):
        panel.set(title=title, xlabel="minutes", ylim=(0, None))
        for one in (one for one in lines if "restart" in one):
            when = (one["at"] - one["seconds"] - begin) / 60
            panel.axvline(when, color="#c0392b" if one["restart"] == "kill" else "#bbbbbb", lw=0.6)
        panel.legend(fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
