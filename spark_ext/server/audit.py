"""Who asked for what, and what was answered: rows in the job's ledger, written behind the requests, in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ext.errors import SparkExtError
from spark_ext.ledger.schema import ControlRequestRow, JobRow
from spark_ext.masking import logger, mask
from spark_ext.server.tokens import hide

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

log = logger("spark_ext.server")

BEHIND: Final = 1.0  # how long a row may wait, s
MOST: Final = 10_000  # rows that may wait; further ones are counted, not kept


class Audit:
    """Writes the audit rows of one job. Safe for several threads.

    A row that is lost because the process is killed costs history only: what was accepted is in `control_events`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: deque[ControlRequestRow] = deque()
        self._dropped = 0
        self._closed = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, row: ControlRequestRow) -> None:
        """Write a row within a second or so. Its texts are masked."""
        shown = replace(row, method=_text(row.method, 20), path=_text(row.path, 500), reason=_text(row.reason, 1_000))
        with self._wake:
            if len(self._rows) >= MOST or self._closed:
                self._dropped += 1
                return
            self._rows.append(shown)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="spark-ext-audit", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._rows and not self._closed:
                    self._wake.wait()
                if not self._rows:
                    return
                due = time.monotonic() + BEHIND
                while not self._closed and (left := due - time.monotonic()) > 0:
                    self._wake.wait(left)
                rows = list(self._rows)
            self._write(rows)

    def _write(self, rows: list[ControlRequestRow]) -> None:
        try:
            # A directory without a job stays as it is.
            if self._ledger.table(JobRow).exists():
                self._ledger.table(ControlRequestRow).append(rows)
        except SparkExtError as problem:
            log.warning("could not write %d audit rows: %s", len(rows), problem)
            if not self._closed:
                return  # they stay, and are tried again with the next ones or in a second
        with self._wake:
            for _ in rows:
                self._rows.popleft()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("%d requests were not audited: the audit queue was full", dropped)


def _text(text: str, most: int) -> str:
    return hide(mask(text)).encode("utf-8", "replace").decode()[:most]
