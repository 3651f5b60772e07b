"""How many rows of a source may be bad. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadRowLimits:
    """The limits of one source, for one run of its job."""

    share: float = 1.0
    """The share of bad rows among all rows that is tolerated; 1: any."""
    rows: int | None = None
    """The number of bad rows that is tolerated; None: any."""

    def exceeded(self, bad: int, good: int | None) -> str | None:
        """What is exceeded, for a message; None: nothing known.

        Args:
            good: rows that were not; None: unknown, so that their share is not judged.
        """
        if self.rows is not None and bad > self.rows:
            return f"{bad} rows are bad, which is more than max_bad_rows={self.rows}"
        if good is not None and bad > self.share * (bad + good):
            share = bad / (bad + good)
            return f"{bad} of {bad + good} rows are bad: {share:.2%}, which is more than max_bad_share={self.share:g}"
        return None
