"""When a driver was last alive: a small file of its incarnation, written anew every few seconds.

A driver that is killed records no end. Without the heartbeat a job that had nothing to do for an hour, and was killed
then, would seem to have been down for that hour. The next start reads the file, records what it says as an incident,
and removes it. It bounds a time; nothing is decided by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from spark_ext.datafiles.location import Location
from spark_ext.delta.failures import child

if TYPE_CHECKING:
    from spark_ext.ledger.identity import Incarnation

FOLDER: Final = "heartbeats"
"""In the state directory."""

SILENT_AFTER: Final = 60_000
"""A driver whose last beat is older is taken for lost by who cannot ask it, unless he says otherwise, ms."""


class Heartbeat:
    """The heartbeat of one incarnation. Failures of the storage are ignored: a beat that is lost costs precision.

    Args:
        state: the job's state directory.
        incarnation: whose.
    """

    def __init__(self, state: str, incarnation: Incarnation) -> None:
        self._location = Location.of(child(state, FOLDER), {})
        self._name = _name(incarnation.number, incarnation.start)

    def beat(self, at: datetime | None = None) -> None:
        """The driver is alive now.

        Args:
            at: UTC; None: the current time.
        """
        text = json.dumps({"at": (at or datetime.now(timezone.utc)).isoformat()})
        folder = self._location.local
        with suppress(OSError):
            if folder is None:
                with self._location.create(self._name) as stream:
                    stream.write(text.encode())
                return
            # A driver that is killed while it writes leaves the beat before.
            folder.mkdir(parents=True, exist_ok=True)
            written = folder / f"{self._name}.tmp"
            written.write_text(text)
            written.replace(folder / self._name)

    def stop(self) -> None:
        """The incarnation has ended: its row in the ledger says when."""
        with suppress(OSError):
            self._location.delete(self._name)


def last_beat(
    state: str, number: int, start: int | None, storage_options: Mapping[str, str] | None = None
) -> datetime | None:
    """When an incarnation was last alive, UTC; None if its heartbeat is not there or cannot be read.

    Args:
        state: the job's state directory.
        number: of the incarnation.
        start: its `start_id`.
        storage_options: of an object store, as delta-rs names them.
    """
    if start is None:
        return None
    try:
        content = Location.of(child(state, FOLDER), storage_options or {}).read(_name(number, start))
        return None if content is None else datetime.fromisoformat(json.loads(content)["at"])
    except (OSError, ValueError, KeyError):
        return None


def is_silent(beat: datetime | None, now: datetime, after: int = SILENT_AFTER) -> bool:
    """Whether a heartbeat is so old that its driver is probably gone; one that is not there says nothing.

    Args:
        beat: the newest one, UTC.
        now: UTC. Clocks of two machines may differ.
        after: how old it may be, ms.
    """
    return beat is not None and (now - beat).total_seconds() * 1000 > after


def forget(state: str, number: int, start: int | None) -> None:
    """Remove the heartbeat of an incarnation whose end is recorded."""
    if start is not None:
        with suppress(OSError):
            Location.of(child(state, FOLDER), {}).delete(_name(number, start))


def _name(number: int, start: int) -> str:
    # The random number tells the starts of two copies of a state directory apart.
    return f"{number:010}-{start:016x}.json"
