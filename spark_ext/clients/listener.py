"""A listening socket that bounds its connections: each takes a descriptor, and the job needs descriptors as well."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import time
from typing import Any, Final

SHARE: Final = 4  # the part of the process's descriptors that connections may have: one of this many
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener(socket.socket):
    """Closes the oldest connection that is not busy when a further one comes; refuses that if all are."""

    def __init__(self, bound: socket.socket, most: int) -> None:
        super().__init__(fileno=bound.detach())
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most if soft < 0 else min(most, soft // SHARE)
        self._open: list[socket.socket] = []
        self._exhausted_at = float("-inf")
        self.busy: set[int] = set()
        """Descriptors of connections that are serving an admitted request; the server maintains it."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            accepted, address = super().accept()
        except OSError as problem:
            now = time.monotonic()
            # asyncio reports each failed attempt, and plans a further one for it: their number would grow.
            if problem.errno in _EXHAUSTED and now - self._exhausted_at < 1:
                raise BlockingIOError from None
            self._exhausted_at = now
            raise
        self._open = [one for one in self._open if one.fileno() >= 0]
        if len(self._open) >= self._most:
            idle = next((one for one in self._open if one.fileno() not in self.busy), None)
            if idle is None:
                accepted.close()
                raise ConnectionAbortedError("too many connections")
            self._open.remove(idle)
            with contextlib.suppress(OSError):
                idle.shutdown(socket.SHUT_RDWR)
        self._open.append(accepted)
        return accepted, address
