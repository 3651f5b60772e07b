"""Delta logs whose commits are of chosen times, instead of the moments at which a test happened to write them."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path


def dated(table: Path, version: int, at: int) -> None:
    """Have a version's file in the log be of a time, in ms; what is beyond ms must not count."""
    os.utime(table / f"_delta_log/{version:020}.json", ns=(at * 1_000_000 + 999_999,) * 2)


def iso(at: int) -> str:
    """A time in ms as the option `timestamp` has it."""
    return datetime.fromtimestamp(at / 1000, timezone.utc).isoformat(timespec="milliseconds")
