"""What a commit asserts: above all the fence of an incarnation, by which a log refuses the commits of an older one.

Every commit carries `Transaction("fence:<name>", number)` and `Transaction("start:<name>", id)`. Delta refuses a commit
when an application id that it carries was committed since the writer last looked; the writer then looks again, and a
higher number, or an equal one with another id, means that it is fenced off. Looking alone would not suffice: another
start can come between the look and the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from deltalake import Transaction

from spark_ext.model.commits import FenceMark

Held: TypeAlias = Callable[[str], int | None]
"""The newest number that the log holds under an application id; None when there is none."""


class Guard(Protocol):
    """What a writer asserts with each of its commits. Compared by value, so a frozen dataclass.

    The log is checked before the commit, and the commit carries the transactions. As Delta refuses a commit whose
    application ids were committed in between, what the check has found still holds when the commit succeeds. Therefore
    a check may depend only on application ids that are carried.
    """

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """What each commit carries."""

    def check(self, held: Held, operator: str) -> None:
        """Compare with what the log holds."""


@dataclass(frozen=True)
class Fence:
    """One incarnation's claim to write."""

    name: str
    """Whose incarnations are counted: the job in the ledger's tables, the sink's uid in a target."""
    number: int
    """The incarnation."""
    start: int = 0
    """Random number of the start; 0: not known."""

    @property
    def application(self) -> str:
        """The application id in the tables' transactions."""
        return f"fence:{self.name}"

    @property
    def start_application(self) -> str:
        """The application id of the start's random number."""
        return f"start:{self.name}"

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """What each commit carries."""
        number = Transaction(self.application, self.number)
        return (number, Transaction(self.start_application, self.start)) if self.start else (number,)

    def held_mark(self, held: Held) -> FenceMark | None:
        """The mark of the log's newest claim; None when there is none."""
        number = held(self.application)
        return None if number is None else FenceMark(number, held(self.start_application) or 0)

    def holds(self, held: Held) -> bool:
        """Whether the log's newest claim is this very start's."""
        return held(self.application) == self.number and (held(self.start_application) or 0) == self.start

    def check(self, held: Held, operator: str) -> None:
        """Compare with the newest incarnation in the log."""
        FenceMark(self.number, self.start).check(self.held_mark(held), operator)
