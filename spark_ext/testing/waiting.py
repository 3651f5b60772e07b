"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, seconds: float = 300) -> T:
    """Poll a condition until it is true; returns its value.

    Args:
        condition: polled every 20 ms at first, and every 100 ms once it has been false for two seconds: each poll takes
            CPU time from what it waits for.
        what: description of the condition, for the message.
        seconds: maximum time to wait.

    Raises:
        TimeoutError: the condition did not become true in time.
    """
    begun = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - begun
        if waited > seconds:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(min(max(waited / 20, 0.02), 0.1))
