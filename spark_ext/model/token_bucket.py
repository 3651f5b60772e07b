"""Token buckets: how much may be used now, so that a rate holds on average. Pure.

A bucket fills at its rate. What is used beyond what it holds is a debt, which has to be waited for.
"""

from __future__ import annotations

from typing import Final

_TINY: Final = 1e-6  # tolerance for the sum of many steps that falls short of a whole number


class TokenBucket:
    """The tokens of one limit, at least `least` at a time; all times are s of a clock that never goes back."""

    def __init__(self, rate: float, now: float, *, burst: float, least: float = 1.0, held: float = 0.0) -> None:
        self._rate, self._at = rate, now
        self._burst, self._least = max(burst, least), least
        self._held = held

    def fill(self, now: float, most_s: float = 0.0) -> int:
        """Add what has accrued since the last call, and return how many tokens may be used; 0 if fewer than `least`.

        It holds `burst`, or the tokens of `most_s` seconds if that is more.
        """
        accrued = max(0.0, now - self._at) * self._rate
        self._held = min(self._held + accrued, max(self._burst, self._rate * most_s))
        self._at = now
        return int(self._held + _TINY) if self._held + _TINY >= self._least else 0

    @property
    def wait_s(self) -> float:
        """Time from the last `fill` until it holds `least` tokens, s."""
        return max(0.0, self._least - self._held) / self._rate

    def use(self, tokens: float) -> None:
        """Take tokens out, perhaps more than it holds; a negative number puts them back."""
        self._held -= tokens

    def clip(self) -> None:
        """Reduce it to `burst`: less was used than it allowed."""
        self._held = min(self._held, self._burst)
