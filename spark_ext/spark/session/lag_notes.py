"""The lag of a source between epochs: its planner notes it in a file beside its registration, and the driver reads it.

Spark passes on what a source says of itself at the end of an epoch only, and says nothing while a query has nothing to
do. A note is for display; nothing is decided by it, and one that cannot be written or read is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_ext.spark.session.registry import note, read_note
from spark_ext.spark.watching.query_events import SourceReport
from spark_ext.storage import LocalFolder

RECENT: Final = 1.0  # notes are read again after so long, s, however often somebody asks
UNKNOWN: Final = SourceReport(None, None)


def write(place: Path, uid: str, lag: int, at: float) -> bool:
    """Note a lag, and when it was so, s since 1970 UTC; returns whether the source is still registered."""
    if not (place / f"{uid}.json").exists():
        return False
    LocalFolder(place, make=False).write(note(uid, "lag"), json.dumps({"lag": lag, "at": at}))
    return True


def read(place: Path, uid: str) -> SourceReport | None:
    """What a source has noted last; None without a note, or if it is another user's."""
    found = read_note(place, uid, "lag")
    try:
        return None if found is None else SourceReport(int(found["lag"]), None, float(found["at"]))
    except (ValueError, KeyError, TypeError):
        return None


class LagNotes:
    """The notes of a query's sources, read once a second at most, and only if somebody asks; safe for threads."""

    def __init__(self, place: Path, uids: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._uids, self._clock = place, tuple(uids), clock
        self._known: Mapping[str, SourceReport] = {}
        self._read_at = float("-inf")

    def __call__(self) -> Mapping[str, SourceReport]:
        """The newest note of each source; of one that has none, that nothing is known."""
        now = self._clock()
        if now - self._read_at >= RECENT:
            self._read_at = now
            self._known = {uid: read(self._place, uid) or UNKNOWN for uid in self._uids}
        return self._known
