"""What one epoch may read: the limits of the source's options and those of control events, over all channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.sources.contract import Limit
from spark_ext.sources.runtime.rates import Left

if TYPE_CHECKING:
    from spark_ext.model.offsets import Position
    from spark_ext.sources.aligned import Together
    from spark_ext.sources.contract import Advance, Channel
    from spark_ext.sources.runtime.rates import Limited, Rates


@dataclass(frozen=True)
class Allowance:
    """How much of a channel an epoch may read."""

    limit: Limit
    limits: tuple[Limited, ...]
    """What it is taken from, besides the limits of the options."""


class Budget:
    """What is left of an epoch's read limits.

    Args:
        rows: by the options; None: no limit.
        size: bytes, likewise.
    """

    def __init__(self, rows: int | None, size: int | None, rates: Rates) -> None:
        self._left = Left(rows, size)
        self._rates = rates
        self.planned = 0
        """Rows of the epoch so far."""

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read of any channel."""
        return self._left.spent or self._rates.waits

    def allowed(self, channel: Channel, at: Position, among: int, upto: Position = None) -> Allowance | None:
        """How much of a channel may be read; None: nothing in this epoch."""
        found = self._rates.of(channel, at)
        if any(limited.spent for _, limited in found):
            return None
        shares = [self._left.share(among), *(limited.share(1 if name else among) for name, limited in found)]
        rows = min((share.rows for share in shares if share.rows is not None), default=None)
        size = min((share.bytes for share in shares if share.bytes is not None), default=None)
        return Allowance(Limit(rows, size, upto), tuple(limited for _, limited in found))

    def spend(self, allowed: Allowance, step: Advance | Together) -> None:
        """A channel is read. A source that cannot count is assumed to have used all that it was allowed."""
        limit = allowed.limit
        rows = (limit.rows or 0) if step.rows is None else step.rows
        size = (limit.bytes or 0) if step.bytes is None else step.bytes
        self.planned += rows
        self._left.spend(rows, size)
        # Bytes are limits that a whole row must not exceed, and shares of channels that go together are rounded.
        full = limit.rows is not None and 2 * rows >= limit.rows
        full |= limit.bytes is not None and 2 * size >= limit.bytes
        for limited in allowed.limits:
            limited.spend(rows, size, cut=full)
