"""How a harness and the driver that it kills agree on whose turn it is: by files in a folder, which outlive both."""

import json
from pathlib import Path
from typing import Any


def give(folder: Path, number: int, *, last: bool) -> None:
    draft = folder / ".go"
    draft.write_text("last" if last else "")
    draft.rename(_go(folder, number))


def given(folder: Path, number: int) -> bool | None:
    """Whether a run is the last one; None: it may not begin yet."""
    try:
        return _go(folder, number).read_text() == "last"
    except FileNotFoundError:
        return None


def take(folder: Path, number: int, result: dict[str, Any]) -> None:
    draft = folder / ".done"
    draft.write_text(json.dumps(result))
    draft.replace(done(folder, number))


def done(folder: Path, number: int) -> Path:
    return folder / f"done-{number}.json"


def next_turn(folder: Path, number: int = 0) -> int | None:
    """The first run that has not ended; None: the last one has."""
    while done(folder, number).exists():
        if given(folder, number):
            return None  # a driver that was killed behind its last run, and started again, has nothing to wait for
        number += 1
    return number


def _go(folder: Path, number: int) -> Path:
    return folder / f"go-{number}"
