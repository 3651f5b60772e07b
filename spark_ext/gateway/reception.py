"""From a request whose sender may send to the receipt for its events, for HTTP and WebSocket alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

from spark_ext.gateway.answers import KEPT, PERHAPS, Refused
from spark_ext.gateway.inbox import Inbox, Opened
from spark_ext.ingest.forms import request_of
from spark_ext.ingest.records import Receipt, Request
from spark_ext.ingest.store import Unavailable

JOB_SECONDS: Final = 60.0  # how long a sender waits for the job, where that has to do something first


class Reception:
    """Takes requests of one inbox. For the event loop."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._arrivals = Arrivals()

    def opened(self) -> Opened:
        """The open inbox, if anybody may send to it.

        Raises:
            Draining, Refused: it is not open, or nobody may.
        """
        found = self.inbox.now
        if found.senders.blocked:
            raise Refused.for_now("description", found.senders.blocked, KEPT)
        return found

    def request(self, opened: Opened, headers: Mapping[str, str], body: bytes, path: str, query: str) -> Request:
        """What is kept of a request, if its events fit."""
        return request_of(opened.description, headers, body, path, query, time.time_ns() // 1_000)

    def submit(self, opened: Opened, request: Request) -> asyncio.Future[Receipt]:
        """Hand a request to the store; the receipt comes when its events are as safe as the inbox promises.

        If the job does not get to that in time, a `Refused` comes instead.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Receipt] = loop.create_future()
        opened.store.take(request, partial(self._arrivals.add, waiter))
        if opened.description.waits_for_job:
            due = loop.call_later(JOB_SECONDS, _give_up, waiter)
            waiter.add_done_callback(lambda _: due.cancel())
        return waiter


def _give_up(waiter: asyncio.Future[Receipt]) -> None:
    if not waiter.done():
        what = "the job has not committed the events yet; check that it runs"
        waiter.set_exception(Refused.for_now("not_yet", what, PERHAPS))


class Arrivals:
    """Brings what other threads have completed to the event loop, many at a time: to wake it takes a system call."""

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.Future[Receipt], Receipt | Unavailable]] = deque()
        self._woken = False

    def add(self, waiter: asyncio.Future[Receipt], outcome: Receipt | Unavailable) -> None:
        """Let who waits have its outcome; for any thread."""
        self._done.append((waiter, outcome))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so have all who wait
                waiter.get_loop().call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._woken = False  # first: what is added from here on wakes it once more
        while self._done:
            waiter, outcome = self._done.popleft()
            if waiter.done():
                continue  # its client has gone, or it has an outcome
            if isinstance(outcome, Unavailable):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
