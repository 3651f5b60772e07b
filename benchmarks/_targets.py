"""Where each sink of a benchmark writes to: a folder, or a private server that is gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Target:
    """What a sink is given."""

    open: Callable[[Path], AbstractContextManager[dict[str, str]]]
    """Makes the target in a folder; gives the sink's options."""
    columns: tuple[str, ...] = ("*",)
    """What of `datagen`'s columns the sink takes."""


@contextmanager
def _folder(folder: Path) -> Iterator[dict[str, str]]:
    yield {"path": str(folder / "out")}


TARGETS: Final[dict[str, Target]] = {"delta_2pc": Target(_folder)}
"""By the name of the sink."""
