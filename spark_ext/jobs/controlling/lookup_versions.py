"""The versions of a job's lookups: the driver fixes them before a query that may use them starts, and reloads them.

A version is a standing event that the job itself makes. It is checked first, by reading it as tasks will.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control import stamps
from spark_ext.control.job_events import asked, request_all
from spark_ext.datafiles.uri import shown
from spark_ext.errors import SparkExtError, refused
from spark_ext.jobs.lookup import KIND, RESTORE
from spark_ext.masking import logger
from spark_ext.model.control import JOB
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.jobs.lookup import Lookup
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.control import Event

log = logger("spark_ext.job")
NEW_COLUMNS: Final = "name the columns that both versions have, with job.lookup(..., columns=...)"


class LookupVersions:
    """Safe for several threads. `lookups` may get further ones, by functions of queries that are built later."""

    def __init__(self, job: str, control: ControlLog, lookups: Mapping[str, Lookup]) -> None:
        self._job, self._control, self._lookups = job, control, lookups
        self._fixed: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, left: Iterable[Event], checkpoints: Mapping[str, str]) -> None:
        """Obey reloads that came while no driver ran, fix all versions, and check those of interrupted epochs.

        `checkpoints` are those of the queries that have not finished. A reload that cannot be obeyed is left to the
        driver's directives, which say why; raises as `fix`.
        """
        for event in left:
            if event.expires_ms is not None and time.time() * 1000 >= event.expires_ms:
                continue
            try:
                self.reload(event)
            except SparkExtError as problem:
                log.warning("job '%s': %s", self._job, problem.what)
        self.fix()
        checked: list[Any] = []
        for query, checkpoint in checkpoints.items():
            for value in _interrupted(query, checkpoint):
                lookup = self._lookups.get(value["lookup"])
                if lookup is not None and value not in checked:
                    lookup.read_in_force(value, RESTORE)
                    checked.append(value)

    def fix(self) -> None:
        """Fix the version of each lookup that has none, and check those of the others; before a query that may use it.

        Raises:
            StateError: a version cannot be read any more, or is of a table that is gone.
            TransientError: the storage cannot be reached.
        """
        with self._lock:
            for lookup in [*self._lookups.values()]:
                if lookup.name not in self._fixed:
                    self._fix(lookup)
                    self._fixed.add(lookup.name)

    def _fix(self, lookup: Lookup) -> None:
        configuration = self._control.configuration()
        do = f"use another version: spark-ext control STATE reload {lookup.name}; then start the job; or {NEW_COLUMNS}"
        for held in configuration.aligned.values():  # it will be in force, whatever is reloaded before
            if held["kind"] == KIND and held["value"]["lookup"] == lookup.name:
                lookup.read_in_force(held["value"], RESTORE)
        standing = configuration.of(KIND, JOB, lookup.name)
        if standing is None:
            self._put(lookup, None)
            return
        lookup.read_in_force(standing, do)
        if standing["path"] != shown(lookup.path):
            self._put(lookup, standing["version"])  # the same table, at another place

    def reload(self, event: Event) -> None:
        """Put the version into force that an event of the kind `reload` asks for, once.

        Raises:
            ConfigurationError: the job does not declare such a lookup.
            StateError: the version cannot be used.
            TransientError: the storage cannot be reached.
        """
        lookup = self._lookups.get(event.value["lookup"])
        if lookup is None:
            raise refused(
                f"this start of the job declares no lookup '{event.value['lookup']}'",
                f"job '{self._job}'",
                "declare it with job.lookup(...)",
            )
        if self._control.accepted(_key(event)) is None:
            self._put(lookup, event.value.get("version"), event)

    def _put(self, lookup: Lookup, version: int | None, event: Event | None = None) -> None:
        found = lookup.read_version(version, "correct the table, and reload again")
        value = {
            "lookup": lookup.name,
            "version": found.version,
            "table": found.table_id,
            "path": shown(lookup.path),
            **({} if event is None else {"event_id": event.event_id, "sequence": event.sequence}),
        }
        wanted = asked(KIND, "job", value)
        if event is not None:
            wanted = replace(wanted, idempotency_key=_key(event), delivery=event.delivery.value)
        request_all(self._control, [wanted])


def _key(event: Event) -> str:
    return f"reload:{event.event_id}"


def _interrupted(query: str, checkpoint: str) -> list[Any]:
    """The versions of the epoch that was planned and not committed."""
    log = SparkLog(checkpoint)
    planned = log.newest_offsets()
    logged = None if planned is None or log.is_committed(planned) else log.offsets(planned)
    offsets = [] if logged is None else source_offsets(logged).values()
    return versions_in(stamps.configuration(checkpoint, offsets, query))


def versions_in(configuration: Configuration) -> list[Any]:
    """The versions of all lookups that stand."""
    return [*configuration.standing.get(KIND, {}).get(str(JOB), {}).values()]
