"""Ctrl-C while a job runs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_ext.masking import logger

log = logger("spark_ext.job")


@contextmanager
def stop_on_interrupt(job: str, stop: Callable[[], object]) -> Iterator[None]:
    """First Ctrl-C: stop in order. Second: exit at once. The two stages are dlt's.

    Args:
        job: its name, for the log.
        stop: asks it to stop, and returns at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    asked_at: list[float] = []

    def on_interrupt(number: int, frame: object) -> None:
        if asked_at:
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        asked_at.append(time.monotonic())
        log.warning("stopping job '%s' in order; press Ctrl-C again to exit at once", job)
        stop()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
