"""`python -m benchmarks.nexmark`: all runs that have not been measured yet, then the tables of the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.nexmark import table
from benchmarks.nexmark.measure import KILLS, SIDES, run
from benchmarks.nexmark.queries import HOT, QUERIES
from benchmarks.nexmark.sides import Case

PARTS: Final = {"table": 10_000_000, "kills": 2_000_000, "hot": 2_000_000}  # with how many events each is measured
RESULTS: Final = Path(__file__).with_name("results.jsonl")  # the lines behind the tables of the pages
app = typer.Typer(add_completion=False)


@app.command()
def main(
    parts: Annotated[str, typer.Option(help="Some of: table, kills, hot.")] = ",".join(PARTS),
    sides: Annotated[str, typer.Option(help=f"Some of: {', '.join(SIDES)}.")] = ",".join(SIDES),
    queries: Annotated[str, typer.Option(help="Some of them, such as q0,q7.")] = ",".join(QUERIES),
    events: Annotated[int | None, typer.Option(help="Of the parts named, instead of their own sizes.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="Of a run with kills, after equal parts of its input.")] = KILLS,
    out: Annotated[Path, typer.Option(help="Where events, results and tables to be judged are kept.")] = Path(
        "out/nexmark"
    ),
    pages: Annotated[
        bool, typer.Option(help="Write the tables into docs/nexmark.md and README.md, and results.jsonl.")
    ] = True,
) -> None:
    """Measure what has no line in results.jsonl yet."""
    chosen = _known(parts, PARTS), _known(queries, QUERIES), _known(sides, SIDES)
    results = Results(out / "results.jsonl")
    for case in cases(*chosen, events, kills):
        if results.of(case) is None:
            base = results.of(Case(case.side, case.query, case.events, 0)) if case.kills else None
            try:
                results.add(run(case, out, base["seconds"] if base else None))
            except (RuntimeError, ValueError) as problem:  # the others are measured all the same
                print(problem)
                continue
        print(_line(results.of(case)))
    if pages:
        table.write_pages(results.all())
        results.copy(RESULTS)


def cases(
    parts: list[str], queries: list[str], sides: list[str], events: int | None = None, kills: int = KILLS
) -> Iterator[Case]:
    """All runs in their order: the sides alternate, so that other load on the machine affects all of them."""
    for part in parts:
        size = events or PARTS[part]
        for name in queries:
            some = [side for side in sides if part in SIDES[side].parts and name in SIDES[side].queries]
            if part == "table" or (part == "hot" and name in HOT):
                yield from (Case(side, name, size, hot=part == "hot") for side in some)
            elif part == "kills":
                for number in (0, kills):
                    yield from (Case(side, name, size, number) for side in some)


class Results:
    """One line of JSON for each case that was measured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._found = {_case(one): one for one in map(json.loads, lines)}

    def of(self, case: Case) -> dict[str, Any] | None:
        return self._found.get(case)

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result, with times to the millisecond."""
        kept = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 3))
        with self._path.open("a") as out:
            out.write(json.dumps(kept) + "\n")
        self._found[_case(kept)] = kept

    def copy(self, target: Path) -> None:
        target.write_text("".join(json.dumps(one) + "\n" for one in self._found.values()))

    def all(self) -> list[dict[str, Any]]:
        return list(self._found.values())


def _case(result: dict[str, Any]) -> Case:
    return Case(**{name: result[name] for name in Case.__dataclass_fields__})


def _line(result: dict[str, Any] | None) -> str:
    assert result is not None
    shown = ("query", "side", "events", "kills", "seconds", "core_seconds", "rows", "lost", "doubled", "wrong", "ended")
    return "  ".join(f"{name} {result[name]}" for name in shown)


def _known(given: str, known: Any) -> list[str]:
    unknown = sorted(set(given.split(",")) - set(known))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known are: {', '.join(known)}")
    return [name for name in known if name in given.split(",")]


if __name__ == "__main__":
    app()
