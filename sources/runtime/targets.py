"""Up to where a run that ends with what is there reads a source: kept for as long as the run lasts.

A query that is restarted in the middle of such a run has another planner process, which reads up to where the first one
was to read, and not up to what has come since. The note lies beside the source's registration and holds nothing
durable: the next run has targets of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from spark_ext.model.offsets import Json, Position
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration, targets_note


class Targets:
    """The targets of one source in one run.

    Args:
        registration: of the source; None: outside a job, where nothing is kept.
        place: the registry's folder; None: there is none.
    """

    def __init__(self, registration: Registration | None, place: Path | None = None) -> None:
        self._kept = registration is not None and registration.until_now
        self._registration = registration
        self._place = place or registry.folder()

    def of(self, stage: Json, now: Callable[[], Mapping[str, Position]]) -> dict[str, Position]:
        """By channel, the position up to which it is read; channels that are not named wait for the next run.

        Args:
            stage: of the source, if it is made of stages.
            now: finds them; not called if they are known.
        """
        place, registration = self._place, self._registration
        if not self._kept or place is None or registration is None:
            return dict(now())
        known = self._read(place, registration)
        name = json.dumps(stage, sort_keys=True)
        if name not in known:
            known[name] = dict(now())
            note = place / targets_note(registration.uid)
            registry.write_private(note, {"start": registration.start, "targets": known})
        return known[name]

    def _read(self, place: Path, registration: Registration) -> dict[str, dict[str, Position]]:
        try:
            with (place / targets_note(registration.uid)).open() as file:
                found = json.load(file) if os.fstat(file.fileno()).st_uid == os.geteuid() else {}
            return dict(found["targets"]) if found["start"] == registration.start else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
