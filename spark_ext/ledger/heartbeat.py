"""When a driver was last alive: a small file of its incarnation, written again every few seconds.

A driver that is killed records no end. Without the heartbeat a job that had nothing to do for an hour, and was killed
then, would seem to have been down for that hour. The next start reads the file, records what it says as an incident,
and removes it. It bounds a time; nothing is decided by it.

With the time there are figures that the ledger has only behind an epoch: how far each query is behind. See `Vitals`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.storage import Location, child

if TYPE_CHECKING:
    from spark_ext.ledger.identity import Incarnation

FOLDER: Final = "heartbeats"  # in the state directory
SILENT_AFTER: Final = 60_000  # default age of the last beat at which a driver that cannot be asked counts as lost, ms


Vitals = Mapping[str, Mapping[str, Any]]  # what a driver says of its queries, by uid; see `queries.history`


@dataclass(frozen=True)
class Beat:
    """A heartbeat."""

    at: datetime  # when the driver was alive, UTC
    queries: Vitals = field(default_factory=dict)


class Heartbeat:
    """The heartbeat of one incarnation. Failures of the storage are ignored: a beat that is lost costs precision."""

    def __init__(self, state: str, incarnation: Incarnation) -> None:
        self._folder = Location.of(child(state, FOLDER), {}).folder
        self._name = _name(incarnation.number, incarnation.start)

    def beat(self, at: datetime | None = None, queries: Vitals | None = None) -> None:
        """The driver is alive at a time, UTC; None: now."""
        found = {"at": (at or datetime.now(timezone.utc)).isoformat(), **({"queries": queries} if queries else {})}
        with suppress(OSError):  # a driver that is killed while it writes leaves the beat before
            self._folder.write(self._name, json.dumps(found))

    def stop(self) -> None:
        """The incarnation has ended: its row in the ledger says when."""
        with suppress(OSError):
            self._folder.delete(self._name)


def last_beat(
    state: str, number: int, start: int | None, storage_options: Mapping[str, str] | None = None
) -> datetime | None:
    """When an incarnation was last alive, UTC; see `read_beat`."""
    found = read_beat(state, number, start, storage_options)
    return None if found is None else found.at


def read_beat(
    state: str, number: int, start: int | None, storage_options: Mapping[str, str] | None = None
) -> Beat | None:
    """The newest heartbeat of an incarnation; None if it is not there or cannot be read."""
    if start is None:
        return None
    try:
        content = Location.of(child(state, FOLDER), storage_options or {}).folder.find(_name(number, start))
        if content is None:
            return None
        found = json.loads(content)
        queries = found.get("queries")
        return Beat(datetime.fromisoformat(found["at"]), queries if isinstance(queries, dict) else {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_silent(beat: datetime | None, now: datetime, after: int = SILENT_AFTER) -> bool:
    """Whether a heartbeat is older than `after` ms, so that its driver is probably gone; None says nothing."""
    return beat is not None and (now - beat).total_seconds() * 1000 > after


def forget(state: str, number: int, start: int | None) -> None:
    """Remove the heartbeat of an incarnation whose end is recorded."""
    if start is not None:
        with suppress(OSError):
            Location.of(child(state, FOLDER), {}).folder.delete(_name(number, start))


def _name(number: int, start: int) -> str:
    # The random number tells the starts of two copies of a state directory apart.
    return f"{number:010}-{start:016x}.json"
