"""RESTORE in a table's history: whether the table still holds all commits of a sink. Pure.

A RESTORE makes a table hold what an earlier version held, and keeps the numbers under application ids: epochs whose
rows it takes away still count as committed. What counts is where the last one leads, which may be a RESTORE itself.

No sink's append passes a RESTORE between its look and its commit: delta-rs refuses the changed metadata, or the removed
files, as a conflict. Hence each commit of a sink vouches for all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_ext.errors import StateError
from spark_ext.model.commits import DISCARD, not_the_target

SINK: Final = "spark_ext.sink"  # Under this name a commit's info holds the uid of the sink that made it
CLAIM: Final = "spark_ext"  # Key in the info of a claim or a roll back: a commit of a sink without rows
HISTORY: Final = 100  # How many of the newest commits are examined
Entry = Mapping[str, Any]  # A commit as `DeltaTable.history` shows it


@dataclass(frozen=True)
class Fault:
    """A table that does not hold, or is not known to hold, all commits of a sink."""

    restore: int  # Version that is the newest RESTORE
    lost: tuple[int, ...] = ()  # Versions of the sink's commits that the table lacks, as the history shows
    whole: int | None = None  # The newest version that is right; None when none is known
    returned: tuple[int, ...] = ()  # Versions that the sink had rolled back, and the table holds again

    def error(self, operator: str) -> StateError:
        """What the user reads."""
        found = f"version {self.restore} of the table is a RESTORE of an earlier one"
        if self.lost:
            others = f" and {len(self.lost) - 1} later ones" if len(self.lost) > 1 else ""
            found += f", and the table lacks what this sink committed in version {self.lost[0]}{others}"
        elif self.returned:
            found += (
                f", and the table holds again what this sink committed in version {self.returned[0]} and rolled back"
            )
        else:
            found += ", and its history does not show whether that one has all commits of this sink"
        if self.whole is None:
            return not_the_target(found, operator)
        put_back = f"RESTORE the table to version {self.whole}, the newest one that has all commits of this sink"
        return not_the_target(found, operator, f"{put_back}, and start the job again; if that fails, {DISCARD}")


def newest_restore(recent: Sequence[Entry], uid: str, seen: int | None) -> Entry | None:
    """The newest RESTORE that may have taken commits of a sink away.

    `recent` are the newest commits, newest first: those after `seen`, or more; what they say of their versions is
    not used. `seen` is a version that is known to hold all of the sink's commits until then; None: what comes
    before the sink's newest commit is not examined.
    """
    for entry in recent:
        if entry.get(SINK) == uid and (seen is None or _is_restore(entry)):
            return None
        if _is_restore(entry):
            return entry
    return None


def find_fault(history: Sequence[Entry], uid: str, seen: int | None) -> Fault | None:
    """Compare what a table holds with what it held when last known to be right (`seen`), and with what came since."""
    restore = newest_restore(history, uid, seen)
    if restore is None:
        return None
    past = _Past(history, uid)
    base = past.newest_own if seen is None else max(seen, past.newest_roll_back)
    newest, *earlier = sorted(past.entries, reverse=True)
    lost, returned = past.lost(newest, base), past.returned(newest, base)
    if lost == () and not returned:
        return None
    right = (version for version in earlier if past.lost(version, base) == () and not past.returned(version, base))
    return Fault(int(restore["version"]), lost or (), next(right, None), returned)


class _Past:
    """The newest commits of a table, seen from one sink."""

    def __init__(self, history: Sequence[Entry], uid: str) -> None:
        self.entries = {int(entry["version"]): entry for entry in history}
        own = [version for version, entry in self.entries.items() if entry.get(SINK) == uid]
        # With the whole history and no commit of the sink in it, there is nothing that could be lost.
        self.newest_own = max(own, default=0)
        self._roll_backs = {version for version in own if _is_restore(self.entries[version])}
        self.newest_roll_back = max(self._roll_backs, default=0)
        self._rows = {version for version in own if CLAIM not in self.entries[version]}

    def _content(self, version: int | None) -> Iterator[int]:
        """The versions whose changes make up a version, newest first, as far back as the history shows."""
        while version is not None and version in self.entries:
            yield version
            entry = self.entries[version]
            version = restored_to(entry) if _is_restore(entry) else version - 1

    def lost(self, version: int, base: int) -> tuple[int, ...] | None:
        """The sink's commits since `base` that a version lacks, oldest first; None if the history does not show it."""
        held, wanted = set(self._content(version)), set()
        for before in self._content(base):
            if before in held:
                # From here on back, both consist of the same versions.
                wanted |= {later for later in self.entries if later > base}
                return tuple(sorted(wanted & self._rows - held))
            wanted.add(before)
        return None

    def returned(self, version: int, base: int) -> tuple[int, ...]:
        """The sink's commits that a version holds although they had been rolled back in `base`, oldest first."""
        kept = set(self._content(base))
        rolled_back: set[int] = set()
        for roll_back in kept & self._roll_backs:
            rolled_back.update(range((restored_to(self.entries[roll_back]) or 0) + 1, roll_back))
        return tuple(sorted(rolled_back & self._rows & set(self._content(version)) - kept))


def _is_restore(entry: Entry) -> bool:
    return bool(entry.get("operation") == "RESTORE")


def restored_to(entry: Entry) -> int | None:
    """The version that a RESTORE leads to; None when it names a time, or nothing that is known.

    delta-rs writes `{"version": "3"}` or `{"datetime": "<ms>"}`, Spark `{"version": 3, "timestamp": null}` or the
    reverse.
    """
    parameters = entry.get("operationParameters")
    named = parameters.get("version") if isinstance(parameters, Mapping) else None
    try:
        version = int(str(named))
    except ValueError:
        return None
    return version if 0 <= version < int(entry["version"]) else None


def taken_away(lineage: int, rolled_back: int, operator: str) -> StateError:
    """The error for a start that would continue epochs after a roll back has removed some of them."""
    return StateError(
        f"the target was rolled back when a savepoint was restored, as lineage {rolled_back}, and this start continues "
        f"lineage {lineage}: the target may hold fewer of its epochs than were committed",
        operator=operator,
        kept="the target is unchanged; nothing was started",
        do="start the job from the state that was restored; if the restore was interrupted, repeat it",
    )
