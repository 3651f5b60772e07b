"""Backpressure: the sources of a query wait while too many of the rows that it has written are still to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_ext.exchange.consumers import Consumer, Fill
from spark_ext.exchange.kinds import parts


class Throttle:
    """Looks, by files alone, whether an exchange that the query writes is full.

    An exchange holds `max_in_flight` rows and one epoch at most: an epoch is planned when there are fewer. Consumers
    that are built later, or have left the job, are not waited for.
    """

    def __init__(self, writes: Sequence[Any]) -> None:
        self._writes = writes
        self._fills: list[tuple[Fill, int]] | None = None

    def full(self) -> bool:
        """Whether the query has to wait."""
        if not self._writes:
            return False
        if self._fills is None:
            self._fills = self._limited()
        return any(fill.rows() >= limit for fill, limit in self._fills or ())

    def _limited(self) -> list[tuple[Fill, int]] | None:
        """The exchanges that have a limit; None as long as one of them is not there yet."""
        found = []
        for kind, path, consumers in self._writes:
            master = parts(kind, path, f"exchange {path}").master
            about = master.describe()
            if about is None:
                return None
            if about.max_in_flight is not None and consumers:
                waited_for = [Consumer(*one) for one in consumers]
                found.append((Fill(master.log, waited_for, about.partitions), about.max_in_flight))
        return found
