"""The server, on a thread of its own: in a job's driver, or alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_ext.clients.library import load
from spark_ext.clients.listener import Listener
from spark_ext.control.service import ControlService
from spark_ext.errors import ConfigurationError, SparkExtError, StorageError
from spark_ext.masking import logger
from spark_ext.server.limits import Limits
from spark_ext.server.tokens import SCOPES, Token, Tokens, generate, hashed

if TYPE_CHECKING:
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.server.served import ServedJobs

log = logger("spark_ext.server")

NAME = "the server of control events"
GRACE = 5  # how long requests that are under way may take when the server is stopped, s
BACKLOG = 64  # connections waiting to be accepted; all may be, beyond the limit
STARTING = 30.0  # how long a start may take, s


@dataclass(frozen=True)
class Tls:
    """A certificate."""

    certificate: str
    key: str
    password: str | None = None


class ControlServer:
    """Serves the control events of jobs, by their state directories, over HTTP.

    It holds nothing that is not in the ledgers: it may be killed and started again, run beside others, and runs whether
    the jobs do or not. A host other than loopback needs `tls`, or `insecure`: tokens are then sent in the clear.
    Without a file of tokens (see `spark_ext.server.tokens`) it makes a new one, see `token`. `metrics` are those of the
    job that runs in this process, if any.
    """

    def __init__(
        self,
        states: str | Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: str | Path | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        services: Mapping[str, ControlService] | None = None,
        limits: Limits | None = None,
        metrics: Callable[[], JobMetrics | None] = lambda: None,
    ) -> None:
        load("fastapi", "server", NAME)
        load("uvicorn", "server", NAME)
        load("httptools", "server", NAME)
        self._states = [states] if isinstance(states, str) else [str(state) for state in states]
        if not self._states:
            raise _refused("no state directory is given", "give at least one")
        self._host, self._port, self._tls = host, port, tls
        if not _is_loopback(host) and tls is None and not insecure:
            raise _refused(
                f"{host} can be reached from other machines, and tokens would be sent in the clear",
                "give a certificate and a key, use 127.0.0.1 behind a proxy, or allow it with insecure",
            )
        self.token: str | None = None
        """The token, when no file was given: show it once. It has all scopes, and is valid as long as this object."""
        if tokens is None:
            self.token = generate()
            self._tokens = Tokens(given=[Token("local", frozenset(SCOPES), hashed(self.token))])
        else:
            self._tokens = Tokens(tokens)
        self._allowed, self._options = tuple(allowed_hosts), storage_options
        self._services = {str(state).rstrip("/"): service for state, service in (services or {}).items()}
        self._limits = limits or Limits()
        self._metrics = metrics
        self._server: Any = None
        self._jobs: ServedJobs | None = None
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    @property
    def url(self) -> str:
        """Where it is reached; after `start`."""
        host = "localhost" if self._host in ("", "0.0.0.0", "::") else self._host
        return f"{'http' if self._tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def start(self) -> tuple[str, int]:
        """Start answering requests; returns the address to which it is bound, and the port."""
        if self._thread is not None:
            return self._host, self._port
        bound = self._bound()
        self._port = bound.getsockname()[1]
        try:
            self._server = self._made(bound)
        except (OSError, ValueError) as problem:
            bound.close()
            raise _refused(f"the certificate cannot be used: {problem}", "check both files and the password") from None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bound, ready), name="spark-ext-server", daemon=True)
        self._thread.start()
        ready.wait(STARTING)
        if self._problem is not None or not self._server.started:
            why = self._problem
            self.stop()
            raise StorageError(
                f"the server has not started: {why}", operator=NAME, kept="nothing was changed", do="see the log"
            )
        log.info("control events are served at %s", self.url)
        return self._host, self._port

    def stop(self) -> None:
        """Stop: requests that wait for their commit are answered, long polls and streams end. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._server.should_exit = True
        thread.join(GRACE * 2)
        if self._jobs is not None:
            self._jobs.close()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is stopped, or for `seconds`; returns whether it runs."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is not None and thread.is_alive()

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _bound(self) -> Listener:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            bound = Listener(
                socket.create_server((self._host, self._port), family=family, backlog=BACKLOG), self._limits.connections
            )
            # Connections inherit it. asyncio would set it for sockets that name their protocol, which this one does
            # not: each answer would wait 40 ms until the client's kernel has acknowledged its header.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return bound
        except (OSError, OverflowError) as problem:
            raise _refused(
                f"{self._host}:{self._port} cannot be bound: {problem}",
                "use another address or port; port 0 means any free port",
            ) from None

    def _made(self, bound: Listener) -> Any:
        import uvicorn

        from spark_ext.server.app import create_app
        from spark_ext.server.connections import Seldom, bounded
        from spark_ext.server.guard import Guard, Hosts
        from spark_ext.server.served import ServedJob, ServedJobs

        jobs = ServedJobs(
            [ServedJob(state, self._options, self._services.get(state.rstrip("/"))) for state in self._states]
        )
        app = create_app(jobs, self._limits, version("spark-ext"), self._metrics)
        hosts = Hosts(self._host, self._allowed)
        guard = Guard(app, self._tokens, hosts, self._limits, jobs.record)
        # Its lines pass the filter that masks tokens; its access log, which would have whole addresses, is off.
        lines = logger("uvicorn.error")
        if not any(isinstance(one, Seldom) for one in lines.filters):
            lines.addFilter(Seldom())
        config = uvicorn.Config(
            guard,
            loop="asyncio",  # uvloop accepts connections without the listener
            http=bounded(bound, self._limits),
            backlog=BACKLOG,
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=GRACE,
            ssl_certfile=None if self._tls is None else self._tls.certificate,
            ssl_keyfile=None if self._tls is None else self._tls.key,
            ssl_keyfile_password=None if self._tls is None else self._tls.password,
        )
        config.load()
        self._jobs = jobs
        return _server(uvicorn, config, jobs)

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


def _server(uvicorn: Any, config: Any, jobs: ServedJobs) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        """Says when it is ready, and ends long polls and streams when it is stopped."""

        ready: threading.Event

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            self.ready.set()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for job in jobs.all:
                job.watcher.close()
            await super().shutdown(sockets=sockets)

    return Server(config)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _refused(what: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=NAME, kept="no server was started", do=do)
