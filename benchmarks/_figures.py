"""The result of a benchmark: a ratio, its aim, and the measurements behind it. Pure, except for `environment`."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from benchmarks import _profile

S = TypeVar("S")
T = TypeVar("T")
OUT = "out/bench.json"  # where a run of all benchmarks writes its figures


@dataclass(frozen=True)
class Sample:
    values: tuple[float, ...]
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> Sample:
        if not values:
            raise ValueError("a sample needs a value")
        return cls(tuple(values), unit)

    @property
    def median(self) -> float:
        """The middle value, which a few disturbed measurements do not change."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile: the middle half of the values lies between them."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def percentile(self, percent: float) -> float:
        """The value that this percentage of the values does not exceed, between two of them if necessary."""
        ordered = sorted(self.values)
        place = (len(ordered) - 1) * percent / 100
        low = ordered[int(place)]
        return low + (ordered[min(int(place) + 1, len(ordered) - 1)] - low) * (place % 1)

    def to_json(self) -> dict[str, Any]:
        low, high = self.quartiles
        return {
            "median": _short(self.median), "quartiles": [_short(low), _short(high)], "least": _short(min(self.values)),
            "greatest": _short(max(self.values)), "n": len(self.values), "unit": self.unit,
        }  # fmt: skip

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{_short(self.median):,} {self.unit} ({_short(low):,} to {_short(high):,}, n={len(self.values)})"


@dataclass(frozen=True)
class Aim:
    sense: Literal[">=", "<=", "<"]
    value: float

    def met_by(self, ratio: float) -> bool:
        if self.sense == ">=":
            return ratio >= self.value
        return ratio <= self.value if self.sense == "<=" else ratio < self.value

    def __str__(self) -> str:
        return f"{self.sense} {_short(self.value)}"


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    what: str  # what is divided by what
    ratio: float
    aim: Aim
    samples: dict[str, Sample]  # the sides, by name
    notes: dict[str, Any] = field(default_factory=dict)  # other observations: sizes, epochs, parts of a duration
    divided: tuple[str, str] | None = None  # the two sides whose medians the ratio divides, if it is of that kind

    @property
    def meets(self) -> bool:
        return self.aim.met_by(self.ratio)

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """Where the ratio lies while each of the two sides stays between its own quartiles; None without two sides."""
        if self.divided is None:
            return None
        (low, high), (least, most) = (self.samples[side].quartiles for side in self.divided)
        return low / most, high / least

    def to_json(self, benchmark: str) -> dict[str, Any]:
        """One object of `out/bench.json`; its benchmark is the module that measures it."""
        return {
            "name": self.name,
            "ratio": _short(self.ratio),
            "quartiles": self.quartiles and [_short(value) for value in self.quartiles],
            "aim": str(self.aim),
            "meets": self.meets,
            "command": f"python -m benchmarks {benchmark}",
            "detail": {
                "compared": self.what,
                "sides": {side: sample.to_json() for side, sample in self.samples.items()},
                **self.notes,
                "environment": environment(),
            },
        }


Figures: TypeAlias = Iterable[Figure]


def beside(sides: Sequence[S], rounds: int, measure: Callable[[S], T]) -> dict[S, list[T]]:
    """Measure sides alternately, in an order that changes from round to round; returns a value per round of each."""
    found: dict[S, list[T]] = {side: [] for side in sides}
    for number in range(rounds):
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            _profile.turn(side)
            found[side].append(measure(side))
    return found


def in_pairs(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each value to the other side's of the same round, which other load has affected alike."""
    return [one / other for one, other in zip(values, others, strict=True)]


def environment() -> dict[str, Any]:
    """What can influence a ratio: the code, the machine, and the load on it from other processes."""
    names = ("pyspark", "delta-spark", "deltalake", "pyarrow")
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


@cache
def _commit() -> str:
    """The commit that is checked out, with a mark if files differ from it; empty outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _short(value: float) -> float:
    """The value with three significant digits."""
    if value == 0 or value != value:
        return value
    rounded = float(f"{value:.3g}")
    return int(rounded) if abs(rounded) >= 100 else rounded
