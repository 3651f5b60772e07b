"""An endpoint `/metrics` of the driver: one for each address, shared by all jobs of the process that name it.

It stays as long as the process, as is usual for Prometheus: the last figures of a job that has ended can be scraped.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from spark_ext.clients.library import load
from spark_ext.clients.listener import Listener
from spark_ext.errors import refused
from spark_ext.masking import logger
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.prometheus import EXTRA, Exposition

log = logger("spark_ext.metrics")

CONNECTIONS: Final = 32
"""Connections of an endpoint at once, each on a thread of its own; a further one replaces the oldest."""


class Endpoint:
    """An HTTP server on threads of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._jobs: dict[str, JobMetrics] = {}
        self._lock = threading.Lock()
        client = load("prometheus_client", EXTRA, "metrics")
        self._server: Any
        self._server, self._thread = client.start_http_server(port, host, registry=Exposition(self.jobs).registry)
        self._server.socket = Listener(self._server.socket, CONNECTIONS)
        self._server.socket.listen(CONNECTIONS)

    def jobs(self) -> list[JobMetrics]:
        """The jobs that it shows."""
        with self._lock:
            return list(self._jobs.values())

    def show(self, metrics: JobMetrics) -> None:
        """Show a run; it replaces an earlier one of a job of the same name."""
        with self._lock:
            self._jobs[metrics.job] = metrics

    def hide(self, metrics: JobMetrics) -> None:
        """Show a run no longer."""
        with self._lock:
            if self._jobs.get(metrics.job) is metrics:
                del self._jobs[metrics.job]

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_open: Final[dict[tuple[str, int], Endpoint]] = {}
_lock: Final = threading.Lock()


def at(host: str, port: int, who: str) -> Endpoint:
    """The endpoint of this process at an address; made if it is not there."""
    with _lock:
        if (host, port) not in _open:
            try:
                _open[host, port] = Endpoint(host, port)
            except (OSError, OverflowError) as problem:
                raise refused(
                    f"metrics cannot be served at {host}:{port}: {problem}",
                    who,
                    "use another metrics_port, or metrics_host; metrics_port=0 switches it off",
                    kept="nothing was started",
                ) from None
            log.info("metrics are served at http://%s:%d/metrics", host, port)
        return _open[host, port]


def close_all() -> None:
    """Close all endpoints of this process."""
    with _lock:
        while _open:
            _open.popitem()[1].close()
