"""What a user may do to a small job between and during its runs, drawn at random. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

FILES = 5
ROWS = 40
"""Rows per file."""

FORMATS = ("delta_2pc", "files_2pc")


@dataclass(frozen=True)
class Definition:
    """A job as its program has it now. The first query copies one folder of files, a second one another folder."""

    format: str = "delta_2pc"
    query: str = "copy"
    source: str = "in"
    sink: str = "out"
    folder: str = "a"
    target: str = "out"
    rows: int = 20
    """Most rows per epoch: bears no identity."""
    more: bool = False
    """Whether the job has its second query."""
    more_first: bool = False
    """Whether the second query is added before the first."""
    renamed_from: str | None = None


@dataclass(frozen=True)
class Run:
    """A start of the job, and what happens during it."""

    how: str
    """`end`: until it ends; `stop` or `kill`: after some epochs; `clean`: temporary files are deleted after some
    epochs; `takeover`: a second driver takes over after some epochs; `copies`: at the same time from a copy of the
    state."""
    after: int = 0
    """Epochs of this run after which it happens."""


@dataclass(frozen=True)
class Change:
    """What a user does while nothing runs."""

    what: str
    """The name of a change of the definition, or of the files."""


Step = Run | Change

RUNS = ("end", "stop", "stop", "kill", "kill", "kill", "clean", "takeover", "copies")

CHANGES = (
    "rename",
    "rename and say so",
    "another folder",
    "another source uid",
    "another sink uid",
    "another target",
    "another limit",
    "add a query",
    "remove a query",
    "another order",
    "another file",
    "back up the state",
    "restore the state",
    "restore the state",
    "delete the checkpoint",
    "move the state",
)


def history(seed: int) -> tuple[Definition, list[Step]]:
    """A job and what happens to it: two to four times a run and a change, then a run to the end."""
    draw = random.Random(seed)
    steps: list[Step] = []
    for _ in range(draw.randint(2, 4)):
        steps.append(Run(draw.choice(RUNS), draw.randint(0, 6)))
        steps += [Change(what) for what in draw.sample(CHANGES, draw.choice((0, 1, 1, 2)))]
    return Definition(format=draw.choice(FORMATS), more=draw.random() < 0.3), [*steps, Run("end")]


def changed(now: Definition, what: str, number: int) -> Definition:
    """The definition after a change of it; the same for a change of files.

    Args:
        now: the definition.
        what: one of `CHANGES`.
        number: makes new names unique within the history.
    """
    if what == "rename":
        return replace(now, query=f"copy-{number}", renamed_from=None)
    if what == "rename and say so":
        return replace(now, query=f"copy-{number}", renamed_from=now.query)
    if what == "another folder":
        return replace(now, folder="b" if now.folder == "a" else "a")
    if what == "another source uid":
        return replace(now, source=f"in-{number}")
    if what == "another sink uid":
        return replace(now, sink=f"out-{number}")
    if what == "another target":
        return replace(now, target=f"out-{number}")
    if what == "another limit":
        return replace(now, rows=10 if now.rows == 20 else 20)
    if what == "add a query":
        return replace(now, more=True)
    if what == "remove a query":
        return replace(now, more=False)
    if what == "another order":
        return replace(now, more_first=not now.more_first)
    return now
