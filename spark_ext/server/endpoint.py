"""An endpoint: an application behind a socket with bounds, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from spark_ext.clients.library import load
from spark_ext.clients.listener import Listener
from spark_ext.errors import ConfigurationError, SparkExtError, StorageError
from spark_ext.masking import logger
from spark_ext.server.limits import Limits

log = logger("spark_ext.server")

GRACE: Final = 5  # how long requests that are under way may take when the server is stopped, s
BACKLOG: Final = 64  # connections waiting to be accepted; all may be, beyond the limit
STARTING: Final = 30.0  # how long a start may take, s


@dataclass(frozen=True)
class Tls:
    """A certificate."""

    certificate: str
    key: str
    password: str | None = None


class Endpoint:
    """Where an application is reached.

    A host other than loopback needs `tls`, or `insecure`: tokens are then sent in the clear. With `shared`, several
    processes may bind the same port, and the kernel gives each connection to one of them.
    """

    def __init__(
        self,
        who: str,
        limits: Limits,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Tls | None = None,
        insecure: bool = False,
        shared: bool = False,
    ) -> None:
        self._who, self._limits, self._tls, self._shared = who, limits, tls, shared
        self._host, self._port = host, port
        for library in ("uvicorn", "httptools"):
            load(library, "server", who)
        if not _is_loopback(host) and tls is None and not insecure:
            raise self._refused(
                f"{host} can be reached from other machines, and tokens would be sent in the clear",
                "give a certificate and a key, use 127.0.0.1 behind a proxy, or allow it with insecure",
            )
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    @property
    def host(self) -> str:
        """The address to which it is bound."""
        return self._host

    @property
    def port(self) -> int:
        """The port to which it is bound; after `start`."""
        return self._port

    @property
    def url(self) -> str:
        """Where it is reached; after `start`."""
        host = "localhost" if self._host in ("", "0.0.0.0", "::") else self._host
        return f"{'http' if self._tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def started(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._thread is not None

    def start(
        self,
        app: Any,
        closing: Callable[[], None] = lambda: None,
        websockets: Callable[[Listener], Callable[..., asyncio.Protocol]] | None = None,
    ) -> None:
        """Start answering requests; `closing` is called in the event loop, before connections are closed.

        `websockets` makes the protocol of connections that ask for WebSocket; without it they are refused.
        """
        bound = self.bound()
        self._port = bound.getsockname()[1]
        try:
            self._server = self._made(app, bound, closing, "none" if websockets is None else websockets(bound))
        except (OSError, ValueError) as problem:
            bound.close()
            raise self._refused(
                f"the certificate cannot be used: {problem}", "check both files and the password"
            ) from None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bound, ready), name="spark-ext-server", daemon=True)
        self._thread.start()
        ready.wait(STARTING)
        if self._problem is not None or not self._server.started:
            why = self._problem
            self.stop()
            raise StorageError(
                f"the server has not started: {why}", operator=self._who, kept="nothing was changed", do="see the log"
            )

    def stop(self) -> None:
        """Stop: requests that are under way are answered. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.should_exit = True
            thread.join(GRACE * 2)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is stopped, or for `seconds`; returns whether it runs."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is not None and thread.is_alive()

    def bound(self) -> Listener:
        """A socket that listens at its address."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            found = socket.create_server(
                (self._host, self._port), family=family, backlog=BACKLOG, reuse_port=self._shared
            )
            bound = Listener(found, self._limits.connections)
            # Connections inherit it. asyncio would set it for sockets that name their protocol, which this one does
            # not: each answer would wait 40 ms until the client's kernel has acknowledged its header.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return bound
        except (OSError, OverflowError) as problem:
            raise self._refused(
                f"{self._host}:{self._port} cannot be bound: {problem}",
                "use another address or port; port 0 means any free port",
            ) from None

    def _made(self, app: Any, bound: Listener, closing: Callable[[], None], websocket: Any) -> Any:
        import uvicorn

        from spark_ext.server.connections import Seldom, bounded

        # Its lines pass the filter that masks tokens; its access log, which would have whole addresses, is off.
        lines = logger("uvicorn.error")
        if not any(isinstance(one, Seldom) for one in lines.filters):
            lines.addFilter(Seldom())
        config = uvicorn.Config(
            app,
            loop="asyncio",  # uvloop accepts connections without the listener
            http=bounded(bound, self._limits),
            backlog=BACKLOG,
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            ws=websocket,
            timeout_graceful_shutdown=GRACE,
            ssl_certfile=None if self._tls is None else self._tls.certificate,
            ssl_keyfile=None if self._tls is None else self._tls.key,
            ssl_keyfile_password=None if self._tls is None else self._tls.password,
        )
        config.load()
        return _server(uvicorn, config, closing)

    def _run(self, bound: Listener, ready: threading.Event) -> None:
        self._server.ready = ready
        try:
            self._server.run(sockets=[bound])
        except BaseException as problem:
            self._problem = problem
            if not isinstance(problem, SparkExtError):
                log.error("the server has ended: %s: %s", type(problem).__name__, problem)
        finally:
            ready.set()
            with contextlib.suppress(OSError):
                bound.close()

    def _refused(self, what: str, do: str) -> ConfigurationError:
        return ConfigurationError(what, operator=self._who, kept="no server was started", do=do)


def _server(uvicorn: Any, config: Any, closing: Callable[[], None]) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        """Says when it is ready, and when it is stopped."""

        ready: threading.Event

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            self.ready.set()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            closing()
            await super().shutdown(sockets=sockets)

    return Server(config)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
