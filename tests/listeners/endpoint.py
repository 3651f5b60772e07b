"""A real HTTP endpoint for tests: answers as it is asked to, and keeps what it got."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Endpoint:
    """What a server was sent."""

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # headers in lower case, and the body
    paths: list[str] = field(default_factory=list)


@contextmanager
def serving(statuses: Sequence[int] = (), answer: bytes = b"") -> Iterator[Endpoint]:
    """A server on loopback that answers with these statuses in turn, and then with 204."""
    endpoint, left, lock = Endpoint(), list(statuses), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                endpoint.paths.append(self.path)
                endpoint.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = left.pop(0) if left else 204
            self.send_response(status)
            if status == 302:
                self.send_header("Location", endpoint.url + "elsewhere")
            self.send_header("Content-Length", str(0 if status == 204 else len(answer)))
            self.end_headers()
            if status != 204:
                self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/hooks/"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
