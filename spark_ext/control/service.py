"""The service that collects requests for control events: whatever waits goes into one commit, in the order of arrival.

A commit of a thousand events costs about what a commit of one costs, and processes that add one by one get into each
other's way. So each process has one service for a job, with one thread that commits.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.errors import SparkExtError, StorageError
from spark_ext.masking import logger

if TYPE_CHECKING:
    from spark_ext.delta.transactions import Guard
    from spark_ext.ledger import Ledger

log = logger("spark_ext.control")

CAPACITY: Final = 1_000  # requests that may wait
BATCH: Final = 1_000  # most requests of one commit
BATCH_BYTES: Final = 4 * 1024 * 1024  # most bytes of the values of one commit; a single request may have more
LINGER_S: Final = 0.01  # how long a commit waits for the next requests of those that were answered last, s
COMPACT_EVERY: Final = 128  # commits after which it is checked whether the table needs compaction, as no driver may run

ATTEMPTS: Final = 4  # attempts to commit requests that have idempotency keys


@dataclass(frozen=True)
class _Waiting:
    request: Request
    answer: Future[Accepted]
    size: int


class ControlService:
    """Accepts control events on a thread of its own. Safe for several threads. See `ControlLog` for the arguments."""

    def __init__(
        self,
        ledger: Ledger,
        fence: Guard | None = None,
        queries: Sequence[str] = (),
        *,
        capacity: int = CAPACITY,
        batch: int = BATCH,
    ) -> None:
        self.log = ControlLog(ledger, fence, queries, checkpoint=self._checkpoint)  # what it adds to
        self._capacity, self._batch = capacity, batch
        self._waiting: deque[_Waiting] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._together = 0  # requests of the last commit, and those that were waiting at its end
        self._commit_s = 0.02  # how long a commit takes, s: a moving average
        self._behind: threading.Thread | None = None  # checkpoints the log; `close` waits, as the folder may go
        self._thread = threading.Thread(target=self._collect, name="spark-ext-control", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Accepted:
        """Accept a request: on return its event survives any crash."""
        return self.offer(request).result()

    def offer(self, request: Request) -> Future[Accepted]:
        """Like `submit`, without waiting: the future ends as `submit` would. Cancelling it has no effect."""
        try:
            size = len(json.dumps(request.value))
        except (TypeError, ValueError, RecursionError):
            size = 0  # the log refuses it
        one = _Waiting(request, Future(), size)
        one.answer.set_running_or_notify_cancel()
        with self._wake:
            if self._closed:
                raise self._is_closed(request)
            if len(self._waiting) >= self._capacity:
                raise self._busy(request)
            self._waiting.append(one)
            self._wake.notify()
        return one.answer

    @property
    def waiting(self) -> int:
        """Requests that wait at this moment."""
        return len(self._waiting)

    def close(self) -> None:
        """End the thread, after it has answered those that wait. Repeated calls do nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        if self._behind is not None:
            self._behind.join()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        commits, answered = 0, 0.0
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                if not self._waiting:
                    return
                self._gather(answered)
                taken = self._take()
            begun = time.perf_counter()
            self._answer(taken)
            answered = time.perf_counter()
            self._commit_s += 0.2 * (answered - begun - self._commit_s)
            commits += 1
            if commits % COMPACT_EVERY == 0:
                self.log.compact()

    def _gather(self, answered: float) -> None:
        """Wait a little for the next requests of those that were answered last, at `answered` s of `time.perf_counter`.

        Else they and those that come meanwhile take turns, and each waits for two commits. The idea is that of
        PostgreSQL's `commit_delay`.
        """
        while len(self._waiting) < self._together and not self._closed:
            left = answered + LINGER_S - time.perf_counter()
            if left <= 0:
                return
            self._wake.wait(left)

    def _checkpoint(self) -> None:
        """Checkpoint the table's log on another thread: it takes as long as three commits."""
        if self._behind is None or not self._behind.is_alive():
            # Not a daemon: the interpreter does not end while delta-rs works.
            self._behind = threading.Thread(target=self.log.checkpoint_log, name="spark-ext-control-checkpoint")
            self._behind.start()

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and len(taken) < self._batch:
            size += self._waiting[0].size
            if taken and size > BATCH_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _answer(self, taken: Sequence[_Waiting]) -> None:
        """Commit what was taken. After a failure those with a key are tried again: they cannot be accepted twice."""
        try:
            found = self._accept(taken)
        except StorageError as problem:
            keyed = [one for one in taken if one.request.idempotency_key]
            for one in taken:
                if not one.request.idempotency_key:
                    one.answer.set_exception(_own(problem))
            if keyed:
                log.warning("could not add control events; will retry: %s", problem)
                self._again(keyed)
            return
        except Exception as problem:
            for one in taken:
                one.answer.set_exception(_own(problem))
            return
        _give(taken, found)

    def _again(self, keyed: Sequence[_Waiting]) -> None:
        attempts = Retrying(
            retry=retry_if_exception_type(StorageError),
            stop=stop_after_attempt(ATTEMPTS - 1),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            reraise=True,
        )
        try:
            _give(keyed, attempts(self._accept, keyed))
        except Exception as problem:
            for one in keyed:
                one.answer.set_exception(_own(problem))

    def _accept(self, taken: Sequence[_Waiting]) -> list[Accepted | ControlRefused]:
        try:
            return self.log.accept([one.request for one in taken])
        finally:
            # Before they are answered: what they send then counts once.
            self._together = len(taken) + len(self._waiting)

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _busy(self, request: Request) -> ControlRefused:
        seconds = max(0.05, self._commit_s * (len(self._waiting) / self._batch + 1))
        found = ControlRefused.because(
            Refusal.BUSY,
            f"{self._capacity} requests are waiting already",
            f"{self.log.operator}, {request.kind} for {request.target}",
            f"send it again after {seconds:.2f} s",
        )
        found.retry_after = seconds
        return found

    def _is_closed(self, request: Request) -> ControlRefused:
        return ControlRefused.because(
            Refusal.BUSY,
            "the service is being closed",
            f"{self.log.operator}, {request.kind} for {request.target}",
            "send it again, to another server or after this one has restarted",
        )


def _give(taken: Sequence[_Waiting], found: Sequence[Accepted | ControlRefused]) -> None:
    for one, answer in zip(taken, found, strict=True):
        if isinstance(answer, ControlRefused):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)


def _own(problem: Exception) -> Exception:
    """A failure for one of several callers: each raises an object of its own, as they do so on different threads."""
    return copy.copy(problem) if isinstance(problem, SparkExtError) else problem
