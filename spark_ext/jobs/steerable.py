"""The part of a job's face that changes it while it runs: `job.control`, and `job.serve()` for others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.control.client import LocalClient
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.jobs.restorable import Restorable
from spark_ext.jobs.serving import Serving
from spark_ext.ledger import Ledger
from spark_ext.steering.control import Control
from spark_ext.steering.reach import Reach

if TYPE_CHECKING:
    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.queries.context import JobContext
    from spark_ext.server.server import Tls


class Steerable(Restorable):
    """What a job offers to whoever wants to change it; base of `Job`."""

    _context: JobContext | None
    _metrics: JobMetrics | None

    @cached_property
    def control(self) -> Control:
        """Changes the job: `job.control.pause()`, `.rate_limit("source:orders", 5000)`, `.set("threshold", 0.8)` ...

        Works before, during and after a run, once the job has been started for the first time: what stands is in force
        from its next start on. During a run a request is refused once a newer start owns the job (`FencedError`).
        """
        client = JobClient(self.state_directory, self._running)
        return Control.over(Reach(client, self.state_directory, Ledger(self.state_directory)))

    def _running(self) -> JobContext | None:
        coordinator = self._coordinator
        return None if coordinator is None or coordinator.done.is_set() else self._context

    @cached_property
    def _serving(self) -> list[Serving]:
        return []

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tokens: str | Path | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
        show_token: bool = False,
    ) -> Serving:
        """Serve the job's control events over HTTP, from a thread of this process, until the run has ended.

        Call it before `start` or `run`, or during a run. Each job of a process has a server of its own; to serve many
        with one, or whether they run or not, use `spark-ext serve`.

        Args:
            host: address to which it is bound. Other than loopback, it needs `tls`, or `insecure`.
            port: 0: any free one.
            tokens: a token file, see `spark-ext token create`; None: one new token, which is valid for this server.
            tls: a certificate.
            insecure: whether an address other than loopback is allowed without TLS: tokens are then sent in the clear.
            allowed_hosts: further names under which it is called, such as that of a proxy.
            show_token: whether a new token, which allows everything, is printed on standard error, once.

        Returns:
            Its `url`, its `token` and `stop()`.

        Raises:
            ConfigurationError: the address or the token file cannot be used, or the address needs TLS.
            EnvironmentProblem: the extra `server` is not installed.
        """
        serving = Serving(
            self.name,
            self.state_directory,
            metrics=lambda: self._metrics,
            host=host,
            port=port,
            tokens=tokens,
            tls=tls,
            insecure=insecure,
            allowed_hosts=allowed_hosts,
        )
        if show_token and serving.token is not None:
            print(f"job '{self.name}' is served at {serving.url}; token: {serving.token}", file=sys.stderr)
        self._serving.append(serving)
        if self._running() is not None and self._coordinator is not None:
            serving.end_with(self._coordinator.done)
        return serving

    def _serve_this(self, coordinator: Coordinator) -> None:
        """The job has been started: its servers end with this run."""
        for serving in self._serving:
            serving.end_with(coordinator.done)


class JobClient(LocalClient):
    """Accepts events on behalf of the running incarnation, else as any process does.

    Args:
        state: the job's state directory.
        running: returns what the parts of the running job share; None when it does not run.
    """

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
