"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, seconds: float = 300) -> T:
    """Poll a condition until it is true; returns its value.

    Args:
        condition: polled every 20 ms.
        what: description of the condition, for the message.
        seconds: maximum time to wait.

    Raises:
        TimeoutError: the condition did not become true in time.
    """
    limit = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
