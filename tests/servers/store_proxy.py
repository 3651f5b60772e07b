"""A real HTTP server before an object store: it passes requests on, and answers some itself, late, or not at all."""

import http.client
import json
import re
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.servers.handler import Handler, Server, end_with_parent
from tests.servers.ports import free_ports
from tests.support.processes import Tree
from tests.support.waiting import until

# Headers that each connection has for itself.
_OWN = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length", "date", "server"})
CONTROL = "/-/faults"  # the path under which the tests say what is done


@dataclass(frozen=True)
class Fault:
    path: str = ""  # a pattern that is looked for in the path with its query
    method: str = ""  # only requests of this method; "": of all
    status: int = 0  # answered with this status, without effect; 0: passed on
    delay: float = 0.0  # waits so long before that, s
    lost: bool = False  # passed on, with its effect, and the connection is closed instead of answered
    times: int | None = None  # for that many requests; None: for all

    def meets(self, method: str, path: str) -> bool:
        return self.method in ("", method) and re.search(self.path, path) is not None


class ProxyHandler(Handler):
    store = 0
    lock = threading.Lock()
    faults: list[Fault] = []
    met: Counter[int] = Counter()
    seen: Counter[str] = Counter()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _pass(self) -> None:
        body = self.body()
        if self.path == CONTROL:
            self._control(body)
            return
        fault = self._fault()
        if fault is not None:
            time.sleep(fault.delay)
            if fault.status:
                self._refuse(fault.status)
                return
        connection = http.client.HTTPConnection("127.0.0.1", self.store, timeout=60)
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

    def body(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return super().body()
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _control(self, body: bytes) -> None:
        with ProxyHandler.lock:
            if self.command == "PUT":
                ProxyHandler.faults = [Fault(**one) for one in json.loads(body)]
                ProxyHandler.met.clear()
            content = json.dumps(dict(ProxyHandler.seen)).encode()
        self.answer(200, content)

    def _refuse(self, status: int) -> None:
        code = {403: "AccessDenied", 503: "SlowDown"}.get(status, "InternalError")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a test</Message></Error>"
        self.answer(status, b"" if self.command == "HEAD" else text.encode(), {"Content-Type": "application/xml"})

    def _fault(self) -> Fault | None:
        with ProxyHandler.lock:
            ProxyHandler.seen[self.command] += 1
            for number, fault in enumerate(ProxyHandler.faults):
                due = fault.times is None or ProxyHandler.met[number] < fault.times
                if due and fault.meets(self.command, self.path):
                    ProxyHandler.met[number] += 1
                    ProxyHandler.seen["faulty"] += 1
                    return fault
        return None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass


def serve(store: int, port: int) -> None:
    ProxyHandler.store = store
    end_with_parent()
    Server(("127.0.0.1", port), ProxyHandler).serve_forever()


class StoreProxy:
    def __init__(self, store: int, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.port = free_ports(1)[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "StoreProxy":
        given = [str(self._store), str(self.port)]
        self._tree = Tree([sys.executable, "-m", "tests.servers.store_proxy", *given], self._folder / "proxy.log")
        until(self._answers, "the proxy answers")
        return self

    def __exit__(self, *error: object) -> None:
        self._tree.kill_all()

    def _answers(self) -> bool:
        try:
            self.seen()
        except OSError:
            return False
        return True

    def behave(self, *faults: Fault) -> None:
        """From now on, what is done with requests; without faults all are passed on."""
        self._asked("PUT", json.dumps([asdict(fault) for fault in faults]).encode())

    def seen(self) -> dict[str, int]:
        """Requests by method; under `faulty` those that met a fault."""
        found: dict[str, int] = json.loads(self._asked("GET", b""))
        return found

    def _asked(self, method: str, body: bytes) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}", data=body or None, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
