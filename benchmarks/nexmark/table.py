"""The tables of what was measured, and the pages that show them; no figure is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks._results import replaced
from benchmarks.nexmark.queries import QUERIES

Result = dict[str, Any]

PAGES: Final = (Path("docs/nexmark.md"), Path("README.md"))
NAMES: Final = {
    "job": "spark-ext", "plain": "plain Spark", "flink": "Flink", "pyflink": "PyFlink",
    "published": "Flink, as published",
}  # fmt: skip
_ALL: Final = ("job", "plain", "flink")  # sides that run all queries
TARGETS: Final = ("worker", "driver")  # of kills
_OLD_RATE: Final = 1.25  # an epoch is as fast as before if it takes at most this many times the undisturbed median


def write_pages(results: Sequence[Result], pages: Iterable[Path] = PAGES) -> None:
    """Replace what stands between the marks `nexmark NAME` of the pages."""
    parts = {"summary": summary(results), "table": table(results), "kills": kills(results), "queries": texts()}
    write_between("nexmark", parts, pages)


def write_between(owner: str, parts: Mapping[str, str], pages: Iterable[Path]) -> None:
    """Replace what stands between the marks `OWNER NAME` of the pages; a page without a mark stays as it is."""
    for page in pages:
        text = page.read_text()
        for name, part in parts.items():
            text = replaced(text, f"{owner} {name}", part)
        page.write_text(text)


def table(results: Sequence[Result]) -> str:
    """A table per size of what was measured undisturbed."""
    parts = []
    for events, hot in sorted({(one["events"], one["hot"]) for one in results if one["kills"] is None}, reverse=True):
        some = [one for one in results if (one["events"], one["hot"], one["kills"]) == (events, hot, None)]
        title = f"**{events:,} events{', nine of ten bids by one bidder for one auction' if hot else ''}**"
        head = [
            "query", "side", "events/s", "core seconds", "memory, MB", "start, s", "last event to complete, s",
            "rows", "lost", "doubled", "wrong",
        ]  # fmt: skip
        rows = [
            [
                one["query"], NAMES[one["side"]], f"{rate(one):,.0f}" if one["complete"] else "-",
                f"{one['core_seconds']:,.0f}", f"{one['memory'] / 1e6:,.0f}", _seconds(one["first"]),
                _seconds(_lag(one)),
                *_rows(one, "rows"),
            ]
            for one in _ordered(some)
        ]  # fmt: skip
        parts.append(f"{title}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts) or "Not measured yet."


def kills(results: Sequence[Result]) -> str:
    """What kills have cost, beside the same run without them."""
    base = {_key(one): one for one in results if one["kills"] == 0}
    head = [
        "query", "side", "kills", "replaced, s", "first epoch, s", "first rows, s", "old rate, s", "read again",
        "events/s", "undisturbed", "lost", "doubled", "wrong", "load",
    ]  # fmt: skip
    rows = []
    for one in _ordered(one for one in results if one["kills"]):
        before = base.get(_key(one))
        if not one["ended"]:
            rows.append(
                [
                    one["query"],
                    NAMES[one["side"]],
                    str(len(one["killed"])),
                    "does not end",
                    *[""] * 6,
                    *_rows(one),
                    _load(one),
                ]
            )
            continue
        found = [recovery(one, kill, before["epoch"] if before else None) for kill in one["killed"]]
        rows.append(
            [
                one["query"], NAMES[one["side"]], str(len(found)),
                *(_by_target(found, name) for name in ("replaced", "epoch", "rows", "rate")),
                f"{sum(kill['again'] for kill in found):,}", f"{one['events'] / one['seconds']:,.0f}",
                f"{before['events'] / before['seconds']:,.0f}" if before else "-", *_rows(one), _load(one),
            ]
        )  # fmt: skip
    return markdown(head, rows) if rows else "Not measured yet."


def recovery(result: Result, kill: Result, usual: float | None) -> Result:
    """What one kill has cost: seconds to each of its marks, and events that were read again at most."""
    later = [at for at, _ in result["epochs"] if at > kill["at"]]
    rate, steps = None, [at for at in result.get("steps", ()) if at > kill["at"]]
    for before, after in pairwise(steps or later):
        if usual is not None and after - before <= _OLD_RATE * usual:
            rate = after - kill["at"]
            break
    return {
        "target": kill["target"], "replaced": kill["replaced"], "rate": rate,
        "epoch": later[0] - kill["at"] if later else None,
        "rows": next((at - kill["at"] for at in result["outputs"] if at > kill["at"]), None),
        "again": (kill["planned"] - kill["read"]) * result["events"] // result["files"],
    }  # fmt: skip


def rate(result: Result) -> float:
    """Events per second from the first plan to the complete result: without the start of the processes."""
    return result["events"] / (result["complete"] - result["first"])


def summary(results: Sequence[Result]) -> str:
    """A line per side, over the queries that all sides have run; and who is ahead where."""
    plain = [one for one in results if one["kills"] is None and not one["hot"]]
    if not plain:
        return "Not measured yet."
    events = max(one["events"] for one in plain)
    by_side = {
        side: {one["query"]: one for one in plain if one["side"] == side and one["events"] == events} for side in _ALL
    }
    sides = {side: found for side, found in by_side.items() if found}
    common = [name for name in QUERIES if all(name in found for found in sides.values())]
    killed = [one for one in results if one["kills"] and not one["hot"]]
    ended = {side: {one["query"]: one for one in killed if one["side"] == side and one["ended"]} for side in sides}
    both = [name for name in QUERIES if all(name in found for found in ended.values())]
    head = [
        "side", f"events/s, geometric mean of {len(common)} queries", "core seconds", "queries with all rows",
        "rows lost", f"under kills: events/s, geometric mean of {len(both)}", "ended", "rows lost, doubled or wrong",
    ]  # fmt: skip
    rows = []
    for side, found in sides.items():
        mine = [one for one in killed if one["side"] == side]
        rows.append(
            [
                NAMES[side], _mean(rate(found[name]) for name in common if found[name]["complete"]),
                f"{sum(found[name]['core_seconds'] for name in common):,.0f}",
                f"{sum(_exact(found[name]) for name in common)} of {len(common)}",
                f"{sum(found[name]['lost'] for name in common):,}",
                _mean(one["events"] / one["seconds"] for name, one in ended[side].items() if name in both),
                f"{len(ended[side])} of {len(mine)}",
                f"{sum(one[key] for one in mine for key in ('lost', 'doubled', 'wrong')):,}",
            ]
        )  # fmt: skip
    loads = [one["environment"]["load"][0] for one in results]
    cores = max(one["environment"]["cores"] for one in plain)
    lines = [
        f"{events:,} events, {cores} cores, with a load of {min(loads):g} to {max(loads):g} at the ends of the runs.",
        "", markdown(head, rows), "",
    ]  # fmt: skip
    ours = sides.pop("job", {})
    for side, found in sides.items() if ours else ():
        faster = [name for name in common if rate(found[name]) > rate(ours[name])]
        cheaper = [name for name in common if found[name]["core_seconds"] < ours[name]["core_seconds"]]
        lines.append(f"{NAMES[side][0].upper()}{NAMES[side][1:]} is faster than spark-ext in {_some(faster, common)}")
        lines.append(f"and takes fewer core seconds in {_some(cheaper, common)}.")
    return "\n".join(lines)


def _mean(rates: Iterable[float]) -> str:
    known = list(rates)
    return f"{statistics.geometric_mean(known):,.0f}" if known else "-"


def _some(names: Sequence[str], of: Sequence[str]) -> str:
    return "no query" if not names else "all queries" if len(names) == len(of) else ", ".join(names)


def texts() -> str:
    """Each query's texts."""
    parts = []
    for query in QUERIES.values():
        note = f" Restated: {query.restated}." if query.restated else ""
        flink = f"\n\nFlink:\n\n```sql\n{query.of_flink}\n```" if query.flink else ""
        original = "" if query.spark == query.judge else f"\n\nDuckDB:\n\n```sql\n{query.judge}\n```"
        about = f"{query.about[0].upper()}{query.about[1:]}.{note}"
        parts.append(f"### {query.name}\n\n{about}\n\n```sql\n{query.spark}\n```{flink}{original}")
    return "\n\n".join(parts)


def _exact(one: Result) -> bool:
    return one["ended"] and not any(one[key] for key in ("lost", "doubled", "wrong"))


def _lag(one: Result) -> float | None:
    return None if one["read"] is None else one["complete"] - one["read"]


def _rows(one: Result, *more: str) -> list[str]:
    return ["-" if one[key] is None else f"{one[key]:,}" for key in (*more, "lost", "doubled", "wrong")]


def _load(one: Result) -> str:
    return f"{one['environment']['load'][0]:g}"


def _key(one: Result) -> tuple[Any, ...]:
    return one["side"], one["query"], one["events"], one["hot"]


def _ordered(results: Iterable[Result]) -> list[Result]:
    names, sides = list(QUERIES), list(NAMES)
    return sorted(results, key=lambda one: (-one["events"], names.index(one["query"]), sides.index(one["side"])))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _by_target(found: Sequence[Result], name: str) -> str:
    return " / ".join(_median(one[name] for one in found if one["target"] == target) for target in TARGETS)


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
