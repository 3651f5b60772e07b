"""What the samples of a soak say: how much each figure grows in an hour, and which rows are lost or doubled. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

Sample = Mapping[str, Any]
Series = Sequence[tuple[float, float]]  # s since 1970, and a value

MEMORY: Final = ("rss", "pss", "heap")  # bytes
COUNTS: Final = ("descriptors", "threads")
HOUR: Final = 3600.0
WARM: Final = 180.0  # age up to which a process does not count, s: it still loads and compiles
AGE: Final = (180.0, 300.0)  # at which incarnations are compared, s
MEMORY_LIMIT: Final = 0.01  # growth of memory in an hour, as a share
COUNT_LIMIT: Final = 0.5  # growth of descriptors and threads in an hour: none
PEAK_LIMIT: Final = 1.1  # most files in the last quarter of the time / in the quarter before


@dataclass(frozen=True)
class Rows:
    """What a sink has beside what was produced, in rows."""

    produced: int
    lost: int
    doubled: int
    strange: int  # never produced, or to be replaced by now

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.strange)


def compare(expected: Iterable[int], found: Iterable[int]) -> Rows:
    wanted, there = set(expected), Counter(found)
    doubled = sum(count - 1 for number, count in there.items() if number in wanted)
    return Rows(len(wanted), len(wanted - there.keys()), doubled, sum(there[one] for one in there.keys() - wanted))


@dataclass(frozen=True)
class Growth:
    """A figure of the processes of a role over the last half of the time; growth of memory is a share of it."""

    level: float  # median, over all processes of the role
    hour: float | None  # growth in an hour of the kind that grows the most; None: no process was old enough
    kind: str  # that kind
    across: float | None  # from incarnation to incarnation, of the levels at the same age

    def meets(self, figure: str) -> bool:
        return self.hour is None or self.hour <= (MEMORY_LIMIT if figure in MEMORY else COUNT_LIMIT)


def slope(series: Iterable[Series]) -> float | None:
    """Theil-Sen: the median slope, per hour, of all pairs of points that are of one series; None without a pair."""
    slopes = []
    for one in series:
        if len(one) > 1:
            times, values = np.array(one).T
            first, second = np.triu_indices(len(times), 1)
            slopes.append((values[second] - values[first]) / (times[second] - times[first]) * HOUR)
    return float(np.median(np.concatenate(slopes))) if slopes else None


def last_half(samples: Sequence[Sample]) -> list[Sample]:
    return [one for one in samples if 2 * one["at"] >= samples[0]["at"] + samples[-1]["at"]]


def processes(samples: Sequence[Sample], role: str, figure: str) -> Growth | None:
    """Growth within processes that are warm, and from incarnation to incarnation; None if nothing was measured."""
    sums: list[float] = []
    kinds: dict[str, dict[Any, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    ages: dict[float, list[float]] = defaultdict(list)
    begin = last_half(samples)[0]["at"]
    for sample in samples:
        members = [one for one in sample["processes"] if one["role"] == role and figure in one]
        total = sum(one[figure] for one in members)
        if members and AGE[0] <= sample["at"] - sample["begun"] <= AGE[1]:
            ages[sample["begun"]].append(total)
        if members and sample["at"] >= begin:
            sums.append(total)
            for one in members:
                if sample["at"] - one["started"] >= WARM:
                    kinds[one["kind"]][one["pid"], one["started"]].append((sample["at"], one[figure]))
    if not sums:
        return None
    hours = {kind: _share(figure, list(series.values())) for kind, series in kinds.items()}
    known = {kind: hour for kind, hour in hours.items() if hour is not None}
    worst = max(known, key=lambda kind: known[kind], default="")
    across = _share(figure, [[(begun, median(some)) for begun, some in ages.items()]])
    return Growth(median(sums), known.get(worst), worst, across)


def _share(figure: str, series: Sequence[Series]) -> float | None:
    """Growth in an hour, of memory as a share of its level."""
    hour = slope(series)
    level = median(value for one in series for _, value in one) if hour is not None and figure in MEMORY else 1.0
    return None if hour is None else hour / level


def bounded(samples: Sequence[Sample], name: str) -> bool:
    """Whether a folder's files of the last quarter of the time are no more than those of the quarter before."""
    late = last_half(samples)
    middle = (late[0]["at"] + late[-1]["at"]) / 2
    peaks = [0, 0]
    for one in late:
        peaks[one["at"] >= middle] = max(peaks[one["at"] >= middle], one["folders"][name]["files"])
    return peaks[1] <= PEAK_LIMIT * peaks[0]


def cores(samples: Sequence[Sample]) -> float:
    """Mean processor time of the job and its gateway in a second, over the last half of the time."""
    seen: dict[tuple[int, float], list[float]] = defaultdict(list)
    late = last_half(samples)
    for one in (one for sample in late for one in sample["processes"]):
        seen[one["pid"], one["started"]].append(one["cpu"])
    spent = sum(times[-1] - times[0] for times in seen.values())
    return spent / max(late[-1]["at"] - late[0]["at"], 1.0)
