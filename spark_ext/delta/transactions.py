"""What writers keep in the transactions of a Delta table: numbers under application ids, the newest of each.

Above all the fence of an incarnation, by which a log refuses the commits of an older one: every commit carries
`Transaction("fence:<name>", number)` and `Transaction("start:<name>", id)`. Delta refuses a commit when an application
id that it carries was committed since the writer last looked; the writer then looks again, and a higher number, or an
equal one with another id, means that it is fenced off. Looking alone would not suffice: another start can come between
the look and the commit.

A table can be asked for the number of an id that is known, and does not list its ids. So the newest epoch of a sink is
kept a second time, under an id that does not depend on the query, with a part of the query's id in its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from deltalake import Transaction

from spark_ext.model.commits import Claim, Epoch, FenceMark


def owner_number(job_id: str) -> int:
    """A job's id as the number that a Delta transaction can hold: 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big") >> 1


def owner_name(uid: str) -> str:
    """The id under which a claim keeps the number of the job that owns the sink's epochs."""
    return f"owner:{uid}"


def lineage_name(uid: str) -> str:
    """The id under which a claim, and a roll back, keep the lineage that they were made for."""
    return f"lineage:{uid}"


def rolled_back_name(uid: str) -> str:
    """The id under which a roll back keeps the lineage that it was made for: epochs of older ones may be gone."""
    return f"rolled_back:{uid}"


def is_of(uid: str, application: str) -> bool:
    """Whether an application id is one of those that the commits of a sink carry."""
    return application.startswith(f"spark_ext:{uid}:") or application in {
        f"fence:{uid}",
        owner_name(uid),
        lineage_name(uid),
    }


def newest_epoch(epoch: Epoch) -> Transaction:
    """The newest epoch of a sink in a lineage, whatever its query."""
    return Transaction(_newest_name(epoch.sink, epoch.lineage), _query_number(epoch.query_id) << 32 | epoch.number)


def bad_rows_name(epoch: Epoch) -> str:
    """The id under which a commit keeps the mark of its bad rows; see `TwoPhaseCommitSink.keep_bad_rows`."""
    return f"bad_rows:{epoch.application}"


def known_epochs(held: Callable[[str], int | None], uid: str, claim: Claim) -> dict[str, int]:
    """The newest epochs of a sink that its table knows, by query id; "" stands for one that is not claiming."""
    mine = claim.query_id
    own = None if mine is None else held(f"spark_ext:{uid}:{claim.lineage}:{mine}")
    known = {} if mine is None or own is None else {mine: own}
    newest = held(_newest_name(uid, claim.lineage))
    if newest is not None and (mine is None or newest >> 32 != _query_number(mine)):
        known[""] = newest & 0xFFFFFFFF
    return known


def _newest_name(uid: str, lineage: int) -> str:
    return f"newest:{uid}:{lineage}"


def _query_number(query_id: str) -> int:
    """31 bits of the SHA-256 of a query's id."""
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:4], "big") >> 1


Held: TypeAlias = Callable[[str], int | None]  # The newest number that the log holds under an application id, or None


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

    name: str  # Whose incarnations are counted: the job in the ledger's tables, the sink's uid in a target
    number: int
    start: int = 0  # Random number of the start; 0: not known

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
        """The mark of the log's newest claim, or None."""
        number = held(self.application)
        return None if number is None else FenceMark(number, held(self.start_application) or 0)

    def holds(self, held: Held) -> bool:
        """Whether the log's newest claim is this very start's."""
        return held(self.application) == self.number and (held(self.start_application) or 0) == self.start

    def check(self, held: Held, operator: str) -> None:
        """Compare with the newest incarnation in the log."""
        FenceMark(self.number, self.start).check(self.held_mark(held), operator)
