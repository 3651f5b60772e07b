"""What the HTTP servers of the tests have in common."""

import os
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Answers are small and in two parts: with Nagle's algorithm each would wait for the other side's acknowledgement.
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # many connections at once, as a thousand channels would make them


class InThread:
    """A server in a thread of this process, until the end of the `with`."""

    def __init__(self, handler: type[Handler], **bound: Any) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (handler,), bound))
        # It looks that often whether it is to end.
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def end_with_parent() -> None:
    """End this process with its parent, so that a killed test process leaves nothing behind."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
