"""Where the time of an epoch went: in planning, reading, the user's code, state, or the commit. Pure.

Spark measures a stage by the clock, and what is done in its tasks as sums over all of them, which run side by side. The
time of a stage is therefore shared out in proportion to these sums: an attribution, not a stopwatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PLANNING: Final = "planning"
READING: Final = "reading"
USER_CODE: Final = "user_code"
STATE: Final = "state"
COMMIT: Final = "commit"
OTHER: Final = "other"

PARTS: Final = (PLANNING, READING, USER_CODE, STATE, COMMIT, OTHER)
"""The parts of an epoch, which together are all of its time: `planning` by its sources and Spark; `reading` of its
sources by tasks; `user_code`, the user's functions in Python; `state`, stores that are loaded, updated and written;
`commit`, what is done once its tasks have ended, and Spark's own log; `other`, whatever else tasks do, such as
shuffles, Spark's own operators and the sink's writing, and their waiting for a slot."""


@dataclass(frozen=True)
class StageTime:
    """A stage that has run."""

    id: int
    began: int  # when its first task was launched, ms
    ended: int  # when its last task had ended, ms
    run_ms: int  # how long its tasks ran, all together
    write_ms: int = 0  # how long they wrote to shuffles, all together
    reads_shuffle: bool = False  # whether they read rows from a shuffle


@dataclass(frozen=True)
class PlanTime:
    """What the operators of a plan have measured: sums over the tasks, ms."""

    shuffled: bool = False  # whether it has a shuffle. Its sources are then read by stages before the last one.
    reading_user: int = 0  # the user's code in the stages that read sources
    later_user: int = 0  # the user's code in other stages
    state: int = 0  # what operators with state did for it
    reading_most: int | None = None
    """The time until the last row was read, or had arrived at the first function, whatever else was done in it; None:
    not measured."""


@dataclass(frozen=True)
class Sample:
    """How the time of one epoch's tasks is shared out, ms by the clock."""

    epoch: int
    jobs: float  # as long as any of its Spark jobs was running
    reading: float = 0.0
    user_code: float = 0.0
    state: float = 0.0
    in_function: bool = False  # whether a function of the user's starts the jobs, with its own code between them


def attributed(
    epoch: int,
    jobs: Sequence[tuple[int, int]],
    stages: Sequence[StageTime],
    plan: PlanTime,
    *,
    in_function: bool = False,
) -> Sample:
    """Share out the time of an epoch's jobs, each with the times at which it began and ended, ms."""
    last = max((stage.id for stage in stages), default=-1)
    first = [stage for stage in stages if _reads_sources(stage, plan, last)]
    later = [stage for stage in stages if stage not in first]
    whole = float(_covered(jobs))
    walls = (
        _covered((stage.began, stage.ended) for stage in first),
        _covered((stage.began, stage.ended) for stage in later),
    )
    # Stages may overlap, as those of the two sides of a join and the next epoch's never do.
    scale = min(1.0, whole / sum(walls)) if sum(walls) else 0.0
    state_first = 0 if later else plan.state
    run = sum(stage.run_ms for stage in first)
    user, state, rest = _shares(run, plan.reading_user, state_first)
    reading = max(0, rest - sum(stage.write_ms for stage in first))
    if not plan.shuffled and plan.reading_most is not None:
        # The same tasks also write to the sink.
        reading = min(reading, plan.reading_most)
    unit = scale * walls[0] / run if run else 0.0
    run = sum(stage.run_ms for stage in later)
    user_later, state_later, _ = _shares(run, plan.later_user, plan.state - state_first)
    unit_later = scale * walls[1] / run if run else 0.0
    return Sample(
        epoch,
        whole,
        reading * unit,
        user * unit + user_later * unit_later,
        state * unit + state_later * unit_later,
        in_function,
    )


def divided(spent: Mapping[str, int], sample: Sample, execution_ms: int | None) -> dict[str, int]:
    """The parts of an epoch, ms; together exactly what Spark has measured of it, with the proportions of a sample.

    `spent` has its `planning`, `execution` and `log`. The sample is of this epoch, or of one near it whose `execution`
    took `execution_ms`.
    """
    whole = spent.get("execution", 0)
    sampled = whole if execution_ms is None else execution_ms
    jobs = min(sample.jobs, float(sampled))
    # What is known of the tasks cannot be more than the time of the jobs.
    known = sample.reading + sample.user_code + sample.state
    fits = min(1.0, jobs / known) if known else 0.0
    unit = whole / sampled if sampled else 0.0
    found = {
        READING: sample.reading * fits * unit,
        USER_CODE: sample.user_code * fits * unit,
        STATE: sample.state * fits * unit,
    }
    found[OTHER] = max(0.0, jobs - known * fits) * unit
    outside = max(0.0, whole - sum(found.values()))
    found[COMMIT] = 0.0
    found[USER_CODE if sample.in_function else COMMIT] += outside
    whole_ms = _rounded(found, whole)
    whole_ms[COMMIT] += spent.get("log", 0)
    whole_ms[PLANNING] = spent.get("planning", 0)
    return {part: whole_ms[part] for part in PARTS}


def _reads_sources(stage: StageTime, plan: PlanTime, last: int) -> bool:
    # An epoch without rows has stages that read a shuffle without rows.
    return not plan.shuffled or (not stage.reads_shuffle and stage.id != last)


def _shares(run: int, user: int, state: int) -> tuple[int, int, int]:
    """What of the tasks' time was the user's code, state, and neither; the parts of a pipeline may overlap."""
    user = min(run, max(0, user))
    state = min(run - user, max(0, state))
    return user, state, run - user - state


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of the intervals lasted."""
    total, until = 0, None
    for began, ended in sorted(intervals):
        begin = began if until is None else max(began, until)
        total += max(0, ended - begin)
        until = ended if until is None else max(ended, until)
    return total


def _rounded(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers with exactly this sum: the largest remainders are rounded up, as seats are given in an election."""
    found = {name: int(value) for name, value in parts.items()}
    order = sorted(parts, key=lambda name: (found[name] - parts[name], name))
    for name in order[: max(0, total - sum(found.values()))]:
        found[name] += 1
    return found
