"""Token buckets: how much may be read now, so that a rate holds on average. Pure.

A bucket fills at its rate and is emptied as epochs are planned. While an epoch runs it fills, for up to ten seconds, so
the average holds with long epochs, too; without an end a query that is slower than the limit would read more and more
at once, and a smaller limit would have to wait for such an epoch. When there was less to read than it allowed it keeps
what one second brings, so a time without input is not made up for. What is used beyond what it holds is a debt, which
is waited for.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""What a bucket keeps at most when there was less to read than it allowed, s of its rate."""

LEAST_S: Final = 0.1
"""What a bucket has to hold before an epoch is planned, s of its rate: an epoch per row would be too expensive."""

MOST_S: Final = 10.0
"""What a bucket holds at most, s of its rate, unless epochs start at longer intervals."""

_TINY: Final = 1e-6
"""By how much a sum of many steps may be short of a whole number."""


class Bucket:
    """The tokens of one limit; it is empty at first."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._held = 0.0
        self._at = now

    def fill(self, now: float, most_s: float = MOST_S) -> int:
        """Add what has accrued since the last time.

        Args:
            most_s: what it holds at most, s of its rate.

        Returns:
            How many tokens may be used now; 0 if they are too few for an epoch.
        """
        accrued = max(0.0, now - self._at) * self._rate
        self._held = min(self._held + accrued, max(self._least, self._rate * most_s))
        self._at = now
        return int(self._held + _TINY) if self._held + _TINY >= self._least else 0

    @property
    def _least(self) -> float:
        return max(1.0, self._rate * LEAST_S)

    @property
    def wait_s(self) -> float:
        """How long it takes until there are tokens for an epoch, s from the last `fill` on."""
        return max(0.0, self._least - self._held) / self._rate

    def use(self, tokens: float) -> None:
        """Take tokens out, perhaps more than it holds; a negative number puts them back."""
        self._held -= tokens

    def clip(self) -> None:
        """There was less to read than it allowed."""
        self._held = min(self._held, max(self._least, self._rate * BURST_S))
