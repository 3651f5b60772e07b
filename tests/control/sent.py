"""Events that a test sends to a job, from outside of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.ledger import Ledger
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.waiting import until


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


def obeyed(checkpoint: Path, sequence: int) -> None:
    """Wait until an epoch of a query has been planned that obeys an event."""
    log = SparkLog(str(checkpoint))

    def there() -> bool:
        newest = log.newest_offsets()
        offsets = None if newest is None else log.offsets(newest)
        return offsets is not None and any(one.control >= sequence for one in source_offsets(offsets).values())

    until(there, f"event {sequence} is obeyed")
