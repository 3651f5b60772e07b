"""Server-sent events: each change of a control event is a message with its new state.

A message's id says how far the stream has come: the highest sequence, and the time of the newest transition. A stream
that continues behind it repeats the changes of a minute before, as transitions are written a little later than they
happen: so each change is sent at least once.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

from fastapi.concurrency import run_in_threadpool

from spark_ext.server.problems import Problem

if TYPE_CHECKING:
    from spark_ext.control.event_state import EventState
    from spark_ext.server.served import ServedJob

MARGIN: Final = 60.0
"""How much later than it happens a transition may be written, s."""

HEARTBEAT: Final = 15.0
"""Time after which a comment is sent, s: proxies close idle connections, and a client that has gone is noticed."""

_ID: Final = re.compile(r"(\d{1,18})-(\d{1,15})")


async def follow(served: ServedJob, after: int | None, last_id: str | None) -> AsyncIterator[bytes]:
    """The messages of a stream.

    Args:
        served: the job.
        after: first all events after this sequence, as they are; None: only what changes from now on.
        last_id: of the last message of an earlier stream; takes the place of `after`.

    Raises:
        Problem: the id is malformed.
        StateError, StorageError: the ledger cannot be read.
    """
    if last_id:
        match = _ID.fullmatch(last_id)
        if match is None:
            raise Problem(400, "malformed", "Last-Event-ID is not of this stream", "leave it out, and give after")
        sequence, since = int(match[1]), int(match[2]) / 1000
    else:
        sequence = await run_in_threadpool(served.history.newest) if after is None else after
        since = time.time()
    stream = _Stream(sequence, since)
    if not last_id:
        # What is known at the beginning is not sent, but what becomes of it is.
        stream.skip(await run_in_threadpool(served.history.changed, sequence, since - MARGIN), sequence)
    return _messages(served, stream)


async def _messages(served: ServedJob, stream: _Stream) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    last = time.monotonic()
    while not served.watcher.closed:
        seen = await served.watcher.seen()
        for state in await run_in_threadpool(stream.changes, served):
            last = time.monotonic()
            yield _message(stream.sent(state), state)
        left = last + HEARTBEAT - time.monotonic()
        if left <= 0:
            last = time.monotonic()
            yield b": still here\n\n"
        await served.watcher.change(seen, max(0.1, left))
    await asyncio.sleep(0)


class _Stream:
    """How far a stream has come."""

    def __init__(self, sequence: int, since: float) -> None:
        self._sequence, self._since = sequence, since
        self._open: dict[str, int] = {}
        """Events that are not over, with the number of transitions that were sent."""
        self._over: dict[str, float] = {}
        """Events that are over, with the time of their end: as long as they could be read again."""

    def skip(self, states: Iterable[EventState], upto: int) -> None:
        for state in states:
            if state.sequence <= upto:
                self._note(state)

    def changes(self, served: ServedJob) -> list[EventState]:
        """What has changed, in the order of the events."""
        begin = self._since - MARGIN
        found = {one.event_id: one for one in served.history.changed(self._sequence, begin)}
        missing = [event_id for event_id in self._open if event_id not in found]
        found.update((one.event_id, one) for one in (served.history.events(missing) if missing else ()))
        self._over = {event_id: at for event_id, at in self._over.items() if at >= begin}
        return sorted((one for one in found.values() if self._is_new(one)), key=lambda one: one.sequence)

    def _is_new(self, state: EventState) -> bool:
        return state.event_id not in self._over and self._open.get(state.event_id) != len(state.steps)

    def sent(self, state: EventState) -> str:
        """Note that a state is sent; returns the id of its message."""
        self._note(state)
        self._sequence = max(self._sequence, state.sequence)
        self._since = max([self._since, *(step.at.timestamp() for step in state.steps)])
        return f"{self._sequence}-{int(self._since * 1000)}"

    def _note(self, state: EventState) -> None:
        if state.final:
            self._open.pop(state.event_id, None)
            self._over[state.event_id] = max(step.at.timestamp() for step in state.steps)
        else:
            self._open[state.event_id] = len(state.steps)


def _message(number: str, state: EventState) -> bytes:
    return f"id: {number}\nevent: control\ndata: {json.dumps(state.to_json())}\n\n".encode()
