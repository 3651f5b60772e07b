"""A checkpoint that somebody has asked for, and the wait until it is complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_ext.errors import SparkExtError

if TYPE_CHECKING:
    from spark_ext.jobs.checkpointing.savepoint_requests import SavepointRequest


@dataclass
class Request:
    """A checkpoint that somebody waits for."""

    folder: str | None = None
    """Of the savepoint that it is to be."""
    prepare: Callable[[int, Callable[[bool], None]], None] | None = None
    """Called with its number before it is triggered, on the coordinator's thread; it is triggered once what was handed
    over with the number is called, with whether it is still wanted. No other one is triggered meanwhile."""
    done: threading.Event = field(default_factory=threading.Event)
    number: int | None = None
    """Of the checkpoint, once it is complete."""
    failure: SparkExtError | None = None


def wait_for(request: Request | SavepointRequest, timeout: float | None) -> int:
    """The number of a checkpoint that was asked for, once it is complete.

    Args:
        request: of `AlignedCheckpoints.request`.
        timeout: s; None: as long as it takes.

    Raises:
        CheckpointError: there is none; says why.
        TimeoutError: it is not complete yet. It stays under way.
    """
    begin = time.monotonic()
    if not request.done.wait(timeout):
        raise TimeoutError(f"the checkpoint is not complete after {time.monotonic() - begin:.1f} s; it continues")
    if request.failure is not None:
        raise request.failure
    assert request.number is not None
    return request.number
