"""What the guard does by itself, without a server."""

import asyncio
from typing import Any

import pytest

from spark_ext.ledger.schema import ControlRequestRow
from spark_ext.server.guard import Guard, Hosts, Message, Receive, Scope, Send
from spark_ext.server.limits import Limits
from spark_ext.server.tokens import SCOPES, Token, Tokens, hashed


class Calls:
    """Requests with one token to an application that accepts all that it gets."""

    def __init__(self, **limits: Any) -> None:
        self.audited: list[ControlRequestRow] = []
        tokens = Tokens(given=[Token("ann", frozenset(SCOPES), hashed("secret"))])
        self._guard = Guard(
            self._accept, tokens, Hosts("127.0.0.1"), Limits(**limits), lambda _, row: self.audited.append(row)
        )

    @staticmethod
    async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def __call__(self, method: str, scheme: str = "http", address: str = "127.0.0.1", **headers: str) -> int:
        """Send a request; returns the status of the answer."""
        headers = {"host": "127.0.0.1", "authorization": "Bearer secret", **headers}
        found: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        scope = {
            "type": "http", "scheme": scheme, "method": method, "path": "/v1/jobs/orders/control",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": (address, 1),
        }  # fmt: skip
        await self._guard(scope, receive, send)
        (status,) = found
        return status


def test_what_changes_something_has_a_limit_of_its_own() -> None:
    async def run() -> None:
        calls = Calls(change_rate=1e-6, change_burst=2, refusal_seconds=0)
        assert [await calls("POST") for _ in range(3)] == [202, 202, 429]
        assert await calls("GET") == 202
        assert [row.status for row in calls.audited] == [202, 202, 429]

    asyncio.run(run())


def test_the_answer_429_is_held_back_while_there_is_room() -> None:
    async def run() -> None:
        calls = Calls(rate=1e-6, burst=1, refusal_seconds=3600, refusals_held=2)
        assert await calls("GET") == 202
        held = [asyncio.create_task(calls("GET")) for _ in range(2)]
        await asyncio.sleep(0)
        assert await calls("GET") == 429
        assert not any(one.done() for one in held)
        held[0].cancel()
        await asyncio.wait(held[:1])
        # Whoever does not wait for the answer gives the room back.
        another = asyncio.create_task(calls("GET"))
        await asyncio.sleep(0)
        assert await calls("GET") == 429 and not another.done()
        for one in (held[1], another):
            one.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("headers", [{"host": "evil.test"}, {"origin": "http://evil.test"}, {"authorization": ""}])
def test_strangers_fill_neither_the_processor_nor_the_ledger(headers: dict[str, str]) -> None:
    async def run() -> None:
        calls = Calls(refused_rate=1e-6, refused_burst=3, refusal_seconds=0)
        own = [await calls("GET", **headers) for _ in range(50)]
        assert own.index(429) == 3 and set(own[3:]) == {429}
        for number in range(50):
            await calls("GET", address=f"10.0.0.{number}", **headers)
        assert len(calls.audited) <= 10
        assert await calls("GET") == 202

    asyncio.run(run())


@pytest.mark.parametrize(
    ("scheme", "origin", "status"),
    [
        ("http", "http://127.0.0.1", 202),
        ("http", "https://127.0.0.1", 202),  # of a page that came through a proxy
        ("https", "https://127.0.0.1", 202),
        ("https", "http://127.0.0.1", 403),
        ("http", "ftp://127.0.0.1", 403),
        ("http", "127.0.0.1", 403),
    ],
)
def test_an_origin_has_a_scheme(scheme: str, origin: str, status: int) -> None:
    assert asyncio.run(Calls()("GET", scheme, origin=origin)) == status
