"""A server of a state directory without Spark, and what the tests ask of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from spark_ext.server.server import ControlServer
from tests.control.states import State

JOB = "/v1/jobs/orders"


def client(server: ControlServer, token: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=120)


class Served:
    def __init__(self, state: State, server: ControlServer) -> None:
        self.state, self.server = state, server
        self.token = server.token or ""
        self.http = client(server, self.token)

    def post(self, kind: str, target: str = "job", value: Any = None, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        body = {"kind": kind, "target": target, "value": value, **more}
        return self.http.post(f"{JOB}/control", json=body, headers=headers)

    def set_key(self, value: Any, **more: Any) -> httpx.Response:
        return self.post("set_config", value={"key": "k", "value": value}, **more)


@contextmanager
def serving(state: State, **options: Any) -> Iterator[Served]:
    with ControlServer(state.path, **options) as server:
        found = Served(state, server)
        try:
            yield found
        finally:
            found.http.close()
