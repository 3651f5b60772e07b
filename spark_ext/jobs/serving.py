"""Control events of a job from its own process: accepted by the running incarnation, and served over HTTP."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spark_ext.control.client import LocalClient
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.server.server import ControlServer

if TYPE_CHECKING:
    from typing_extensions import Self

    from spark_ext.queries.context import JobContext


class Serving:
    """The server of one job, which answers from now on; also a context manager.

    Args:
        show_token: whether a new token is printed on standard error, once.
    """

    def __init__(self, job: str, state: str, *, show_token: bool = False, **given: Any) -> None:
        self._job = job
        self._server = ControlServer(state, **given)
        self._server.start()
        self._ends: threading.Thread | None = None
        self._stopped = threading.Event()
        atexit.register(self.stop)
        if show_token and self.token is not None:
            print(f"job '{job}' is served at {self.url}; token: {self.token}", file=sys.stderr)

    @property
    def url(self) -> str:
        """Where it is reached, such as `http://127.0.0.1:40123`."""
        return self._server.url

    @property
    def token(self) -> str | None:
        """Its token, with all scopes; None when it uses a token file. It is valid for this server only."""
        return self._server.token

    @property
    def running(self) -> bool:
        """Whether it answers."""
        return not self._stopped.is_set()

    def end_with(self, done: threading.Event) -> None:
        """Stop when the run has ended, once those who wait have been answered."""
        if self._ends is not None or self._stopped.is_set():
            return

        def end() -> None:
            done.wait()
            self.stop()

        self._ends = threading.Thread(target=end, name=f"spark-ext-serve-{self._job}", daemon=True)
        self._ends.start()

    def stop(self) -> None:
        """Stop: requests that are under way are answered, and those who wait are. Repeated calls do nothing."""
        atexit.unregister(self.stop)
        self._server.stop()
        self._stopped.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Serving of job '{self._job}' at {self.url}{'' if self.running else ', stopped'}>"


class JobClient(LocalClient):
    """Accepts events on behalf of the running incarnation, if `running` returns one, else as any process does."""

    def __init__(self, state: str, running: Callable[[], JobContext | None]) -> None:
        super().__init__(state)
        self._running = running

    def _accept(self, request: Request) -> Accepted:
        context = self._running()
        if context is None:
            return super()._accept(request)
        (found,) = context.control.accept([request])
        if isinstance(found, ControlRefused):
            raise found
        context.wake.set()
        return found
