"""The fence of an incarnation: what lets a table refuse the commits of an older one.

Every commit carries `Transaction("fence:<job>", number)`. Delta refuses a commit when the same application id was
committed since the writer last looked; the writer then looks again, and a higher number means that it is fenced off.
Looking alone would not do: between the look and the commit a successor can come.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import Transaction

from spark_ext.errors import FencedError


@dataclass(frozen=True)
class Fence:
    """One incarnation's claim to write."""

    job: str
    number: int
    """The incarnation."""

    @property
    def application(self) -> str:
        """The application id in the tables' transactions."""
        return f"fence:{self.job}"

    def transaction(self) -> Transaction:
        """What each commit carries."""
        return Transaction(self.application, self.number)

    def check(self, newest: int | None, table: str) -> None:
        """Compare with the number that the table has.

        Raises:
            FencedError: a newer incarnation has been there.
        """
        if newest is not None and newest > self.number:
            raise FencedError(
                f"incarnation {newest} of the job has been started; this is incarnation {self.number}",
                operator=f"job '{self.job}', ledger table '{table}'",
                kept="everything committed so far; the newer incarnation goes on from it",
                do="let the newer one run; this one ends by itself",
            )
