"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = 300) -> T:
    """Look at a condition until it is true.

    Raises:
        TimeoutError: it was not, in time.
    """
    limit = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise TimeoutError(f"after {seconds} s still not: {what}")
        time.sleep(0.02)
