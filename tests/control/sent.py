"""Events that a test sends to a job, from outside of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.ledger import Ledger


class Sent:
    """A job's control log, from outside.

    Args:
        state: the job's state directory.
    """

    def __init__(self, state: Path) -> None:
        self._log = ControlLog(Ledger(str(state)))

    def __call__(self, kind: str, value: Any = None, target: str = "job") -> int:
        """Send an event, and return its sequence."""
        done = self._log.accept([Request(kind, target, value)])[0]
        assert isinstance(done, Accepted), done
        return done.event.sequence
