"""What a user may do to a small job between and during its runs, drawn at random. Pure."""

import random
from dataclasses import dataclass, replace
from typing import Any

FILES = 5
ROWS = 40  # rows per file
FORMATS = ("delta_2pc", "files_2pc")
KINDS = ("copy", "copy", "total", "process")
"""What the first query does: copies rows, picks one of each key and window, or numbers them by transformWithState."""


@dataclass(frozen=True)
class Definition:
    """A job as its program has it now. Its first query reads a folder of files; a second one copies another folder."""

    kind: str = "copy"
    aggregate: str = "max"
    keys: int = 2
    window: int = 8  # s; a row's event time is its id, s
    format: str = "delta_2pc"
    query: str = "copy"
    source: str = "in"
    sink: str = "out"
    folder: str = "a"
    target: str = "out"
    rows: int = 20  # most rows per epoch: bears no identity
    more: bool = False  # whether the job has its second query
    more_first: bool = False  # whether the second query is added before the first
    removed: bool = False  # whether the second query is abandoned on purpose
    renamed_from: str | None = None

    def expected(self, ids: set[int]) -> set[int]:
        if self.kind != "total":
            return ids
        groups: dict[tuple[int, int], list[int]] = {}
        for number in ids:
            groups.setdefault((number // self.window, number % self.keys), []).append(number)
        pick = max if self.aggregate == "max" else min
        return {pick(group) for group in groups.values()}


def windows_closed(left: set[int], right: set[int], last: bool) -> set[int]:
    """What the hourly job has written of its windows of 8 s: the newest id of each that both sources have passed."""
    passed = min(max(number % 10_000 for number in ids) for ids in (left, right)) - 1
    newest = {number % 10_000 // 8: number for number in sorted(left | right)}
    return {number for window, number in newest.items() if last or 8 * (window + 1) <= passed}


@dataclass(frozen=True)
class Run:
    how: str
    """`end`: until it ends; `stop` or `kill`: after some epochs; `checkpoint`: a stop behind a checkpoint; `clean`:
    temporary files are deleted after some epochs; `takeover`: a second driver takes over after some epochs; `copies`:
    at the same time from a copy of the state."""
    after: int = 0  # epochs of this run after which it happens


@dataclass(frozen=True)
class Change:
    what: str  # the name of a change of the definition, or of the files


Step = Run | Change
RUNS = ("end", "stop", "stop", "kill", "kill", "kill", "checkpoint", "clean", "takeover", "copies")

CHANGES = (
    "rename", "rename and say so", "another folder", "another source uid", "another sink uid", "another target",
    "another limit", "add a query", "remove a query", "another order", "another file", "back up the state",
    "restore the state", "restore the state", "delete the checkpoint", "move the state", "take a savepoint",
    "restore the savepoint",
)  # fmt: skip

STATEFUL = ("another aggregate", "another key", "another window")
READS = ("read the checkpoint", "read it from another table")

PLOTS: tuple[tuple[str, ...], ...] = (
    *((what,) for what in STATEFUL), ("rename and say so", "move the state"),
    ("remove a query and say so", "take a savepoint", "add a query", "restore the savepoint"),
    ("take a savepoint", "follow the target", "restore the savepoint", "follow the target"), READS,
)  # fmt: skip
"""Changes that matter one after the other, with runs between them."""

ARRIVALS = {"a left file": "a", "a right file": "b"}
"""What may be new for the hourly job, and the folder: its two sources have the same event times."""

HOURLY = ("hourly run", "hourly run with a pause", "last hourly run")
"""Runs until now of a job of its own, beside the other one."""


def history(seed: int) -> tuple[Definition, list[Step]]:
    """A job and what happens to it: two to four times a run and a change, or a plot, then a run to the end."""
    draw = random.Random(seed)
    steps: list[Step] = []
    if draw.random() < 0.15:
        for what in ("hourly run", *draw.choices(HOURLY[:2], (2, 1), k=2), "last hourly run"):
            steps += [Change(one) for one in (*draw.sample(list(ARRIVALS), draw.choice((0, 1, 1, 2))), what)]
        return Definition(), [*steps, Run("end")]
    kind = draw.choice(KINDS)
    if draw.random() < 0.5:
        plot = draw.choice(PLOTS)
        kind = "total" if plot[0] in STATEFUL else "process" if "move the state" in plot else kind
        for what in plot:
            how = draw.choice(("stop", "stop", "kill")) if steps or "read" not in what else "checkpoint"
            steps += [Run(how, draw.randint(2, 4)), Change(what)]
        return Definition(kind, more="add a query" in plot), [*steps, Run("stop", 1), Run("end")]
    for _ in range(draw.randint(2, 4)):
        steps.append(Run(draw.choice(RUNS), draw.randint(0, 6)))
        changes = CHANGES if kind == "copy" else (*CHANGES, *STATEFUL)
        steps += [Change(what) for what in draw.sample(changes, draw.choice((0, 1, 1, 2)))]
    return Definition(kind, format=draw.choice(FORMATS), more=draw.random() < 0.3), [*steps, Run("end")]


def changed(now: Definition, what: str, number: int) -> Definition:
    """The definition after one of `CHANGES`; the same for a change of files. `number` keeps new names unique."""
    changes: dict[str, dict[str, Any]] = {
        "rename": {"query": f"copy-{number}", "renamed_from": None},
        "rename and say so": {"query": f"copy-{number}", "renamed_from": now.query},
        "another folder": {"folder": "b" if now.folder == "a" else "a"},
        "another source uid": {"source": f"in-{number}"}, "another sink uid": {"sink": f"out-{number}"},
        "another target": {"target": f"out-{number}"}, "another limit": {"rows": 10 if now.rows == 20 else 20},
        "another aggregate": {"aggregate": "min" if now.aggregate == "max" else "max"},
        "another key": {"keys": 5 - now.keys}, "another window": {"window": 24 - now.window},
        "add a query": {"more": True, "removed": False}, "remove a query": {"more": False, "removed": False},
        "remove a query and say so": {"more": False, "removed": True},
        "another order": {"more_first": not now.more_first},
    }  # fmt: skip
    return replace(now, **changes.get(what, {}))
