"""The registrations of one query's operators, from its start until its job has ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from spark_ext.errors import StateError
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration


class Registered:
    """Publishes them, keeps them there, and withdraws them. Safe for several threads: once withdrawn they stay so.

    Args:
        entries: of one query, in one incarnation.
        place: the registry's directory.
    """

    def __init__(self, entries: Sequence[Registration], place: Path) -> None:
        self._entries = tuple(entries)
        self._place = place
        self._lock = threading.Lock()
        self._there = False
        self._withdrawn = False

    def publish(self) -> None:
        """The query is about to start.

        Raises:
            ConfigurationError: a uid is in use by another running job of this session.
            FencedError: a newer incarnation of the job has been started in this session.
            StateError: they have been withdrawn: a start that was given up has come to this point late.
        """
        with self._lock:
            if self._withdrawn:
                raise StateError(
                    "the query's job has ended, and its start comes too late",
                    operator=" and ".join(sorted({f"job '{one.job}', query '{one.query}'" for one in self._entries})),
                    kept="all committed epochs; nothing was started",
                    do="nothing: the job's next start continues",
                )
            registry.publish(self._entries, self._place)
            self._there = True

    def renew(self, entries: Sequence[Registration]) -> None:
        """Put others in their place, of the same uids: those are published with the next start."""
        with self._lock:
            self._entries = tuple(entries)

    def keep(self) -> None:
        """Write them again if a cleaner of temporary files has deleted them, and make them look used."""
        with self._lock:
            if self._there:
                registry.keep(self._entries, self._place)

    def withdraw(self) -> None:
        """The query has ended for good."""
        with self._lock:
            self._there = False
            self._withdrawn = True
            for entry in self._entries:
                registry.withdraw([entry.uid], self._place, (entry.job_id, entry.incarnation))
