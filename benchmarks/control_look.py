"""A planner's look at the control events that finds one, with 100,000 events in the table, and with 100.

A look is what the planner of a source does when it has not looked for a while: one call of `SourceView.events` after an
event was added by somebody else. On both sides one process adds an event and another object looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._control import made
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import workplace
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.ledger.view import SourceView

ROUNDS = 4
LOOKS = 50  # of a round and side
SIDES = {"100,000 events": 100_000, "100 events": 100}
BATCH = 1_000  # events of one commit while the table is filled
AIM_MS = 10.0
WARM = 5


def run(rounds: int = ROUNDS) -> Figures:
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    idle: dict[str, list[float]] = {side: [] for side in SIDES}
    first: dict[str, float] = {}
    with workplace() as folder:
        tables = {side: _Table(folder / str(events), events) for side, events in SIDES.items()}
        for side, table in tables.items():
            first[side] = _ms(lambda view=table.view: view.events(0))  # type: ignore[misc]
        for number in range(-WARM, rounds * LOOKS):
            for side, table in tables.items():
                nothing, something = table.look()
                if number >= 0:
                    idle[side].append(nothing)
                    times[side].append(something)
    sides = {side: Sample.of(values, "ms") for side, values in times.items()}
    many, few = sides.values()
    yield Figure(
        "control_look",
        f"a planner's look that finds an event, 100,000 events in the table / {AIM_MS:g} ms",
        many.median / AIM_MS,
        Aim("<", 1),
        sides,
        {
            "100,000 events / 100 events": round(many.median / few.median, 2),
            "p99, ms": {side: round(sample.percentile(99), 2) for side, sample in sides.items()},
            "a look that finds nothing": {side: Sample.of(values, "ms").to_json() for side, values in idle.items()},
            "the first look of a planner, ms": {side: round(took, 1) for side, took in first.items()},
        },
    )


class _Table:
    def __init__(self, state: Path, events: int) -> None:
        self._log = ControlLog(made(state))
        for begin in range(0, events, BATCH):
            self._add(min(BATCH, events - begin))
        self.view = SourceView(str(state), "in", 1, 0, query="q")
        self._last = events

    def _add(self, count: int) -> None:
        requests = [Request("set_config", value={"key": "rate", "value": value}) for value in range(count)]
        assert all(isinstance(answer, Accepted) for answer in self._log.accept(requests))

    def look(self) -> tuple[float, float]:
        """How long a look takes that finds nothing, and one that finds an event, ms."""
        nothing = _ms(lambda: self.view.events(self._last))
        self._add(1)
        something = _ms(lambda: self.view.events(self._last))
        (found,) = self.view.events(self._last)
        self._last += 1
        assert found.sequence == self._last
        return nothing, something


def _ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000
