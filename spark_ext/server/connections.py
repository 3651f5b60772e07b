"""Bounds of a connection before anything is known of its client: the time to headers, their size, and log lines.

uvicorn has none of them for this parser: `limit_concurrency` counts requests that have arrived.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spark_ext.server.bodies import DRAINED
from spark_ext.server.guard import ADMITTED, COMPLETE
from spark_ext.server.limits import Buckets

if TYPE_CHECKING:
    from spark_ext.clients.listener import Listener
    from spark_ext.server.guard import Scope
    from spark_ext.server.limits import Limits


class Seldom(logging.Filter):
    """Lets some warnings of uvicorn pass, and then one in ten seconds: anybody can cause them."""

    _buckets = Buckets(0.1, 5)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        return record.levelno > logging.WARNING or not self._buckets.take("")


def bounded(listener: Listener, limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of the connections of a listener."""

    class Bounded(HttpToolsProtocol):
        _headers = True  # whether those of a request are still to come
        _size = 0  # bytes of the message so far
        _due: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._number = transport.get_extra_info("socket").fileno()
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            listener.busy.discard(self._number)
            self._cancel()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:  # what the kernel holds is not read either
            self._unread = self.loop.call_later(limits.unread_seconds, self.transport.abort)
            super().pause_writing()

        def resume_writing(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None
            super().resume_writing()

        def data_received(self, data: bytes) -> None:
            try:
                self._receive(data)
            finally:
                # Only here: most requests arrive at once, and need no timer. Between two requests uvicorn has its own.
                if self._headers:
                    self._expect()

        def _receive(self, data: bytes) -> None:
            while data and not self.transport.is_closing():
                most = limits.header_bytes
                if not self._headers:
                    # A client that is still sending reads no answer, so the rest of a body is read up to here.
                    most += limits.body_bytes * (DRAINED + 1)
                if self._size >= most:
                    self.transport.abort()
                    return
                part, data = data[: most - self._size], data[most - self._size :]
                self._size += len(part)
                super().data_received(part)

        def on_message_begin(self) -> None:
            self._headers, self._size = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._headers = False
            self._cancel()
            # Whoever has shown no token gives way to others: it may read no answer, or send request after request.
            cast("Scope", self.scope)[ADMITTED] = self._admitted
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            cast("Scope", self.scope)[COMPLETE] = True
            super().on_message_complete()

        def _admitted(self) -> None:
            if not self.transport.is_closing():  # its number may be another one's by now
                listener.busy.add(self._number)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete:  # no further request was waiting
                listener.busy.discard(self._number)

        def _expect(self) -> None:
            if self._due is None and not self.transport.is_closing():
                self._due = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _cancel(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

    return Bounded
