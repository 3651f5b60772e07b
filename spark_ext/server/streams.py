"""Server-sent events: each change of a control event is a message with its new state.

A message's id says how far the stream has come. A stream that continues behind it repeats the changes of a minute
before, as transitions are written a little later than they happen: so each change is sent at least once.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from fastapi.concurrency import run_in_threadpool

from spark_ext.control.changes import Changes
from spark_ext.errors import StorageError
from spark_ext.masking import logger

if TYPE_CHECKING:
    from spark_ext.control.event_state import EventState
    from spark_ext.server.served import ServedJob

log = logger("spark_ext.server")

HEARTBEAT: Final = 15.0
"""Time after which a comment is sent, s: proxies close idle connections, and a client that has gone is noticed."""


async def messages(served: ServedJob, changes: Changes) -> AsyncIterator[bytes]:
    """The messages of a stream, until the server is stopped or the ledger cannot be read."""
    yield b"retry: 1000\n\n"
    last = time.monotonic()
    while not served.watcher.closed:
        try:
            seen = await served.watcher.seen()
            for mark, state in await run_in_threadpool(changes.take):
                last = time.monotonic()
                yield _message(mark, state)
        except StorageError as problem:
            log.warning("a stream ends, and its client continues: %s", problem)
            return
        left = last + HEARTBEAT - time.monotonic()
        if left <= 0:
            last, left = time.monotonic(), HEARTBEAT
            yield b": still here\n\n"
        await served.watcher.change(seen, left)


def _message(mark: str, state: EventState) -> bytes:
    return f"id: {mark}\nevent: control\ndata: {json.dumps(state.to_json())}\n\n".encode()
