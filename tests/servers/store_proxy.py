"""A real HTTP server before an object store: it passes requests on, and answers some itself, late, or not at all.

with StoreProxy(store.port) as proxy:
    proxy.behave(Fault(method="PUT", path="/state/", status=503, times=5), Fault(path="/commits/", delay=2.0))
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_OWN = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length", "date", "server"})
"""Headers that each connection has for itself."""


@dataclass(frozen=True)
class Fault:
    """What is done with some of the requests."""

    path: str = ""
    """A pattern that is looked for in the path with its query."""
    method: str = ""
    """Only requests of this method; "": of all."""
    status: int = 0
    """Answered with this status, without effect; 0: passed on."""
    delay: float = 0.0
    """Waits so long before that, s."""
    lost: bool = False
    """Passed on, with its effect, and the connection is closed instead of answered."""
    times: int | None = None
    """For so many requests; None: for all."""

    def meets(self, method: str, path: str) -> bool:
        """Whether a request is one of these."""
        return self.method in ("", method) and re.search(self.path, path) is not None


class StoreProxy:
    """The server, on loopback, in threads of this process.

    Args:
        port: of the store.
    """

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._met: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        """Requests by method."""
        self.faulty = 0
        """Requests that met a fault."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Quiet."""

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                fault = proxy._fault(self.command, self.path)
                if fault is not None:
                    time.sleep(fault.delay)
                    if fault.status:
                        self._refuse(fault.status)
                        return
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _OWN:
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                if fault is not None and fault.lost:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _OWN:
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            def _refuse(self, status: int) -> None:
                code = {403: "AccessDenied", 503: "SlowDown"}.get(status, "InternalError")
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a test</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StoreProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def behave(self, *faults: Fault) -> None:
        """From now on, what is done with requests; without faults all are passed on."""
        with self._lock:
            self._faults = list(faults)
            self._met.clear()

    def _fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen[method] += 1
            for number, fault in enumerate(self._faults):
                if fault.meets(method, path) and (fault.times is None or self._met[number] < fault.times):
                    self._met[number] += 1
                    self.faulty += 1
                    return fault
        return None
