"""A gateway without a job, senders that sign by the documents of their vendors, and what was stored."""

import base64
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext.gateway.server import LIMITS, GatewayServer
from spark_ext.ingest.description import ABOUT, SIGNED, InboxDescription, new_id
from spark_ext.ingest.log import InboxLog, channels
from spark_ext.storage import LocalFolder
from tests.ingest.senders import SIGN

SECRETS = {
    "standard": "whsec_" + base64.b64encode(b"a key of thirty-two random bytes").decode(),
    "stripe": "whsec_stripe-secret",
    "github": "github-secret",
    "shopify": "shopify-secret",
    "slack": "slack-secret",
}
VARIABLE = "SPARK_EXT_TEST_SECRET"
NAME = "orders"
NONE: Mapping[str, Any] = {}


def describe(state: Path, scheme: str = "", **more: Any) -> InboxDescription:
    """Write the description of an inbox, as a job does."""
    found = InboxDescription(NAME, new_id(), "a job", scheme=scheme, **more)
    if scheme in SIGNED:
        found = replace(found, secrets=(f"env:{VARIABLE}",))
    LocalFolder(state / "inboxes" / NAME).write(ABOUT, found.to_json())
    return found


def stored(state: Path) -> list[dict[str, Any]]:
    """All events that are in the logs of the gateways, which do not run."""
    inbox = LocalFolder(state / "inboxes" / NAME)
    rows = []
    for channel in sorted(channels(inbox)):
        log = InboxLog(inbox.below(f"gateways/{channel}"), "a test")
        for number in range(log.look().last + 1):
            entry = log.entry(number)
            if entry is not None and entry.rows:
                rows += log.read_segment(entry.name, 0, entry.rows).to_pylist()
    return rows


def signed(scheme: str, body: bytes, secret: str = "", at: float | None = None, **more: str) -> dict[str, str]:
    """The headers with which a vendor sends a body."""
    moment = int(time.time() if at is None else at)
    about = {"id": more.pop("id")} if "id" in more else {}
    headers = SIGN[scheme](secret or SECRETS[scheme], body, moment, **about)
    return {"Content-Type": "application/json", **headers, **more}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    problem: dict[str, Any] = field(default_factory=dict)


class Client:
    """Speaks HTTP to one port; each request has a connection of its own."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port, self.token = port, token

    def ask(self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None and "Authorization" not in named and "/t/" not in path:
            named["Authorization"] = f"Bearer {self.token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name: value for name, value in named.items() if value})
            got = connection.getresponse()
            content = got.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in got.getheaders()}
        is_problem = found.get("content-type") == "application/problem+json" and content
        return Answer(got.status, found, content, json.loads(content) if is_problem else {})

    def post(self, body: bytes, rest: str = "", **headers: str) -> Answer:
        return self.ask("POST", f"/v1/inboxes/{NAME}{rest}", body, **headers)


class Served:
    """A gateway in this process."""

    def __init__(self, state: Path, server: GatewayServer) -> None:
        self.state, self.server = state, server
        self.port = int(server.url.split(":")[2].partition("/")[0])
        self.client = Client(self.port, server.token)
        self.post, self.ask = self.client.post, self.client.ask

    @property
    def accepted(self) -> int:
        return self.server.figures().accepted


@contextmanager
def serving(
    state: Path, scheme: str = "", *, limits: Mapping[str, Any] = NONE, about: Mapping[str, Any] = NONE, **more: Any
) -> Iterator[Served]:
    describe(state, scheme, **about)
    with pytest.MonkeyPatch.context() as given:
        given.setenv(VARIABLE, SECRETS.get(scheme, ""))
        with GatewayServer(str(state), NAME, "g1", limits=replace(LIMITS, **limits), **more) as server:
            yield Served(state, server)
