"""Which columns of a table may not be null, for a question that is asked in each epoch.

Opening a table takes as long as a small commit, and reading its newest commits a tenth of a small epoch. So each thread
of a process keeps a handle per table, and its answer for some seconds. For so long a row may still be put aside for a
null in a column that allows it by now. A column that no longer allows null is noticed by the commit, which compares
columns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.delta.fenced_log import FencedLog

if TYPE_CHECKING:
    from spark_ext.datafiles.location import Location
    from spark_ext.delta.failures import LogErrors


@dataclass
class _Asked:
    log: FencedLog
    until: float
    """When the answer expires, s."""
    answer: frozenset[str] = frozenset()


class _Kept(threading.local):
    def __init__(self) -> None:
        self.tables: dict[tuple[str, tuple[tuple[str, str], ...]], _Asked] = {}
        """By URI and storage options."""


_kept = _Kept()

FRESH = 10.0
"""How long an answer holds, s."""

_MAX_AGE = 3600.0
"""Age at which a handle is opened anew, s: the log may be cleaned up behind it."""


def not_null(location: Location, errors: LogErrors, clock: Callable[[], float] = time.monotonic) -> frozenset[str]:
    """The columns that the table declares NOT NULL, as of at most `FRESH` ago; none if there is no table.

    Args:
        location: the table's root.
        errors: what failures are raised as.
        clock: s; never goes back.

    Raises:
        SparkExtError: of `errors`, if the table cannot be read.
    """
    key = location.uri, tuple(sorted(location.storage_options.items()))
    now = clock()
    kept = _kept.tables.get(key)
    if kept is None:
        log = FencedLog(location.uri, errors, location.storage_options, required=False, max_age=_MAX_AGE)
        kept = _kept.tables[key] = _Asked(log, until=now)
    if now < kept.until:
        return kept.answer
    log = kept.log
    log.errors = errors
    log.notice_loss()
    log.refresh()
    if log.handle is None:
        return frozenset()
    kept.until = now + FRESH
    kept.answer = frozenset(field.name for field in log.handle.schema().fields if not field.nullable)
    return kept.answer
