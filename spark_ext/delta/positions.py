"""Where a table was after an epoch of a sink, and what has changed since. Pure, over the entries of the log.

A version holds what its own commit and those before it have done, except that a RESTORE, and so a roll back, continues
at the version that it leads to. What two versions do not have in common is found by following both to where they meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spark_ext.delta.entries import LogEntry

if TYPE_CHECKING:
    from spark_ext.model.commits import Epoch


class Log(Protocol):
    """The commits of a table by version."""

    def __getitem__(self, version: int) -> LogEntry:
        """The commit that made a version."""


def position_after(log: Log, newest: int, epoch: Epoch, last: int | None) -> int:
    """The newest version that holds all epochs of a sink up to one, and nothing that the sink has done later.

    Later are epochs of its application with higher numbers, and whatever was committed for a newer lineage, the roll
    back at the beginning of such a lineage included, and the columns that an epoch adds just before its rows. A RESTORE
    by others that took epochs away is not passed either.

    Args:
        last: the newest epoch in the table of its application, or None.
    """
    found, right, seen = newest, None, False
    nothing_later = last is None or last <= epoch.number
    for version in range(newest, -1, -1):
        entry = log[version]
        if entry.lineage is None:
            if entry.adds_columns and version == found:
                found = version - 1  # the columns are those of the epoch that follows
            continue
        mine = entry.epoch is not None and entry.epoch[0] == epoch.application
        if mine:
            later = entry.epoch is not None and entry.epoch[2] > epoch.number
        else:
            # What comes before an epoch of the application is older, whatever its lineage: the uid may have moved here.
            later = entry.lineage > epoch.lineage and not seen
        if later:
            seen |= mine
            if entry.epoch is not None or entry.rolled_back:
                found, right = version - 1, None
            continue
        if right is None and (mine or entry.lineage == epoch.lineage):
            right = version
        # A lineage has claims before and between its epochs; anything else ends the search.
        if entry.epoch is not None or entry.rolled_back or nothing_later or entry.lineage < epoch.lineage:
            break
    if right is None:
        return found
    return next(version for version in range(found, right - 1, -1) if _holds(log, version, right))


def _holds(log: Log, version: int, wanted: int) -> bool:
    """Whether what a version holds includes what an earlier one held."""
    at: int | None = version
    while at is not None and at > wanted:
        at = log[at].restored if log[at].is_restore else at - 1
    return at == wanted


def before_all(log: Log, newest: int) -> int | None:
    """The version before the first epoch that a sink has ever committed, or None."""
    first = None
    for version in range(newest, -1, -1):
        if log[version].epoch is not None:
            first = version - 1
    return first


@dataclass(frozen=True)
class Difference:
    """What two versions of a table do not have in common: commits that changed rows."""

    gained: tuple[LogEntry, ...]
    """Commits that only the first version holds, newest first; a RESTORE by others stands for what it did."""
    lost: tuple[LogEntry, ...]
    """Commits that only the second one holds."""

    @property
    def is_own(self) -> bool:
        """Whether the sink has a part in it."""
        # Where a RESTORE to a time leads is not known: it may have taken the sink's epochs away.
        return any(entry.own or (entry.is_restore and entry.restored is None) for entry in (*self.gained, *self.lost))

    def foreign(self, *logs: Log) -> LogEntry | None:
        """The oldest commit that the first version holds and no sink has made: this one, or one of other logs."""
        others = (one for one in reversed(self.gained) if not one.own)
        return next((one for one in others if not any(log[one.version].own for log in logs)), None)


def difference(log: Log, one: int, other: int) -> Difference:
    """Compare what two versions hold."""
    gained: list[LogEntry] = []
    lost: list[LogEntry] = []
    while one != other:
        newer, changes = (one, gained) if one > other else (other, lost)
        entry = log[newer]
        if entry.changes_data and not entry.rolled_back:
            changes.append(entry)
        before = entry.restored if entry.is_restore and entry.restored is not None else newer - 1
        one, other = (before, other) if one > other else (one, before)
    return Difference(tuple(gained), tuple(lost))
