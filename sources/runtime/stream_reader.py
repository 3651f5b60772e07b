"""Spark's stream reader as Spark 4.2 has it, on every version that jobs run on.

A source learns since 4.2 where its next epoch begins, how much it may read, and that a run reads only what is available
now. Before, Spark asks for the newest offset without a word; where the last epoch has ended, it says when it asks for
the epoch's tasks, and again after a restart. With `availableNow` it would run one epoch, whatever is left; so a job
runs its queries on, lets their sources read only what is there, and ends a query when each of its sources has noted
that it has nothing more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_ext.spark.session import registry

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "StreamReader"]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class ReadLimit:  # type: ignore[no-redef]
        """How much a source may read in an epoch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All that there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A number of rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """A number of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A source that can end a run with what was there when it began."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that knows where an epoch begins, on any version."""

    _reached: dict[str, Any] | None = None
    """Where the last epoch of this process ends; None: none was planned."""
    _exhausted: dict[str, Any] | None = None
    """Where it had nothing more to read."""
    _prepared = False
    _start: int | None = None
    """Random number of the job's start in which it plans; None: no job runs it."""

    @property
    def uid(self) -> str:
        """Of the source."""
        raise NotImplementedError

    def next_offset(self, start: dict[str, Any]) -> dict[str, Any]:
        """The end of the next epoch, which begins at `start`; `start` itself if nothing is to be read."""
        raise NotImplementedError

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of an epoch, which may have been planned by an earlier run."""
        raise NotImplementedError

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """What Spark calls."""
        if start is not None:
            end = self.next_offset(start)
            if registry.NOTES_ENDS in os.environ:
                self._start = int(os.environ[registry.NOTES_ENDS])
                self._note(start, end)
            return end
        registration = None if self._prepared else registry.lookup(self.uid)
        if registration is not None:
            # A later start may replace it.
            self._start = int(os.environ.get(registry.NOTES_ENDS, registration.start))
            if registration.available_now:
                self.prepareForTriggerAvailableNow()
        self._prepared = True
        start = self.initialOffset() if self._reached is None else self._reached
        end = self.next_offset(start)
        self._note(start, end)
        return end

    def _note(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        if self._start is not None and end == start != self._exhausted:
            registry.note_exhausted(self.uid, start, self._start)
            self._exhausted = start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What Spark calls, before 4.2 also after a restart, with the end of the last committed epoch twice."""
        self._reached = end
        return self.tasks(start, end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the run end with what is there."""
        raise NotImplementedError
