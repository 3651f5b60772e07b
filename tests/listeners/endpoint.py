"""A real HTTP endpoint for tests: answers as it is asked to, and keeps what it got."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.servers.handler import Handler, InThread


@dataclass
class Endpoint:
    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # headers in lower case, and the body
    paths: list[str] = field(default_factory=list)


class Hook(Handler):
    endpoint: Endpoint
    left: list[int]
    content: bytes
    lock: threading.Lock

    def do_POST(self) -> None:
        body = self.body()
        with self.lock:
            self.endpoint.paths.append(self.path)
            self.endpoint.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            status = self.left.pop(0) if self.left else 204
        elsewhere = {"Location": self.endpoint.url + "elsewhere"} if status == 302 else None
        self.answer(status, b"" if status == 204 else self.content, elsewhere)


@contextmanager
def serving(statuses: Sequence[int] = (), answer: bytes = b"") -> Iterator[Endpoint]:
    """A server on loopback that answers with these statuses in turn, and then with 204."""
    endpoint = Endpoint()
    with InThread(Hook, endpoint=endpoint, left=list(statuses), content=answer, lock=threading.Lock()) as there:
        endpoint.url = f"http://127.0.0.1:{there.server.server_port}/hooks/"
        yield endpoint
