"""The server, on a thread of its own: in a job's driver, or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.clients.library import load
from spark_ext.control.service import ControlService
from spark_ext.errors import ConfigurationError
from spark_ext.masking import logger
from spark_ext.server.endpoint import Endpoint
from spark_ext.server.endpoint import Tls as Tls
from spark_ext.server.limits import Limits
from spark_ext.server.tokens import OF_JOBS, Token, Tokens, generate, hashed

if TYPE_CHECKING:
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.server.served import ServedJobs

log = logger("spark_ext.server")

NAME = "the server of control events"


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
        self._limits = limits or Limits()
        self._endpoint = Endpoint(NAME, self._limits, host=host, port=port, tls=tls, insecure=insecure)
        self._states = [states] if isinstance(states, str) else [str(state) for state in states]
        if not self._states:
            raise ConfigurationError(
                "no state directory is given", operator=NAME, kept="no server was started", do="give at least one"
            )
        self.token: str | None = None
        """The token, when no file was given: show it once. It has all scopes, and is valid as long as this object."""
        if tokens is None:
            self.token = generate()
            self._tokens = Tokens(given=[Token("local", frozenset(OF_JOBS), hashed(self.token))])
        else:
            self._tokens = Tokens(tokens)
        self._allowed, self._options = tuple(allowed_hosts), storage_options
        self._services = {str(state).rstrip("/"): service for state, service in (services or {}).items()}
        self._metrics = metrics
        self._jobs: ServedJobs | None = None

    @property
    def url(self) -> str:
        """Where it is reached; after `start`."""
        return self._endpoint.url

    def start(self) -> tuple[str, int]:
        """Start answering requests; returns the address to which it is bound, and the port."""
        if not self._endpoint.started:
            from spark_ext.server.app import create_app
            from spark_ext.server.guard import Guard, Hosts
            from spark_ext.server.served import ServedJob, ServedJobs

            jobs = ServedJobs(
                [ServedJob(state, self._options, self._services.get(state.rstrip("/"))) for state in self._states]
            )
            app = create_app(jobs, self._limits, version("spark-ext"), self._metrics)
            guard = Guard(app, self._tokens, Hosts(self._endpoint.host, self._allowed), self._limits, jobs.record)

            def closing() -> None:  # ends long polls and streams
                for job in jobs.all:
                    job.watcher.close()

            self._endpoint.start(guard, closing)
            self._jobs = jobs
            log.info("control events are served at %s", self.url)
        return self._endpoint.host, self._endpoint.port

    def stop(self) -> None:
        """Stop: requests that wait for their commit are answered, long polls and streams end. Idempotent."""
        self._endpoint.stop()
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.close()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is stopped, or for `seconds`; returns whether it runs."""
        return self._endpoint.wait(seconds)

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
