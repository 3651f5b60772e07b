"""What stands before all routes: Host and Origin, the token and its scopes, limits, headers, and the audit.

DNS rebinding makes a browser send requests for a foreign name to a local server; so only names of this server count. A
foreign Origin is refused whatever else is right: pages of others have no business here.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from spark_ext.ledger.schema import ControlRequestRow
from spark_ext.server import assets
from spark_ext.server.limits import Buckets, Limits, Slots, retry_after
from spark_ext.server.problems import Problem
from spark_ext.server.tokens import Token, Tokens

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN: Final = frozenset({"/health"}) | assets.paths()  # paths that need no token: the files of the page contain no data
CALLER: Final = "spark_ext.caller"  # where a route finds who calls
ADMITTED: Final = "spark_ext.admitted"  # where a connection leaves what to call once a request has shown a valid token
COMPLETE: Final = "spark_ext.complete"  # where a connection notes that the body has arrived
HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
NO_CONTENT: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""For all but the files of the page, which have a policy of their own."""


@dataclass
class Caller:
    """Who sends a request, and what the audit says of it beside the answer."""

    token: Token | None
    address: str
    event_id: str | None = None
    reason: str = ""
    control: bool = field(default=False)  # whether it asks for a change

    @property
    def name(self) -> str:
        """Of the token; "" without one."""
        return "" if self.token is None else self.token.name


class Hosts:
    """The names under which the server may be called."""

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        self._names = LOOPBACK | {_bare(name) for name in (bound, *allowed)}
        # Bound to all addresses: an address is never rebound, only a name is.
        self._addresses = _bare(bound) in ("", "0.0.0.0", "::")

    def allow(self, host: str) -> bool:
        """Whether a Host header is that of this server."""
        name = _bare(host)
        return name in self._names or (self._addresses and _is_address(name))

    def check(self, scheme: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a request for another server, or from a page of another site."""
        hosts, origins = _all(headers, b"host"), _all(headers, b"origin")
        if len(hosts) != 1 or not self.allow(hosts[0]):
            raise Problem(
                403,
                "foreign_host",
                "the header Host is not a name of this server",
                "use the address that the server was started with, or start it with this name as an allowed host",
            )
        # A proxy that ends TLS hands on a page's requests without it.
        own = {f"{one}://{hosts[0].strip().lower()}" for one in (scheme, "https")}
        if any(origin.strip().lower() not in own for origin in origins):
            raise Problem(403, "foreign_origin", "the request comes from a page of another site", "send it without one")


def _bare(host: str) -> str:
    """Without port, brackets and the dot at the end, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI application in front of another one.

    `audit` gets the row of each request that asks for a change or is refused, with the job that its path names.
    """

    def __init__(
        self, app: App, tokens: Tokens, hosts: Hosts, limits: Limits, audit: Callable[[str, ControlRequestRow], None]
    ) -> None:
        self._app, self._tokens, self._hosts, self._limits = app, tokens, hosts, limits
        self._audit = audit
        self._rate = Buckets(limits.rate, limits.burst)
        self._change_rate = Buckets(limits.change_rate, limits.change_burst)
        self._refused_rate = Buckets(limits.refused_rate, limits.refused_burst)
        self._held = Slots(limits.refusals_held, limits.refusals_held)
        self._reported = Buckets(1.0, 5)
        """Refusals for too many requests are audited now and then only: they are the flood that is refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        client = scope.get("client")
        caller = Caller(None, str(client[0]) if client else "")
        caller.control = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        scope[CALLER] = caller
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = any(name.lower() == NO_CONTENT[0] for name, _ in message["headers"])
                added = HEADERS if own else (*HEADERS, NO_CONTENT)
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            try:
                self._admit(scope, caller)
            except Problem as problem:
                caller.reason = problem.what
                if problem.status == 429:
                    await self._hold_back()
                await problem.response()(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._report(scope, caller, status)

    def _admit(self, scope: Scope, caller: Caller) -> None:
        """Let a request pass."""
        headers = scope["headers"]
        try:
            self._hosts.check(scope.get("scheme", "http"), headers)
        except Problem:
            self._take(self._refused_rate, f"address:{caller.address}")
            raise
        presented = _all(headers, b"authorization")
        caller.token = self._token(presented) if scope["path"] not in OPEN or presented else None
        if scope["path"] in OPEN:
            self._take(self._rate, f"address:{caller.address}")
        elif caller.token is None:
            self._take(self._refused_rate, f"address:{caller.address}")
            raise Problem(
                401,
                "unauthorized",
                "missing or invalid bearer token",
                "send the header Authorization: Bearer TOKEN; tokens in addresses are not accepted",
                headers={"WWW-Authenticate": 'Bearer realm="spark-ext"'},
            )
        else:
            scope.get(ADMITTED, lambda: None)()
            self._take(self._rate, f"token:{caller.token.name}")
            needed = "control" if caller.control else "read"
            if needed not in caller.token.scopes:
                raise Problem(
                    403,
                    "forbidden",
                    f"the token '{caller.name}' does not have the scope {needed}",
                    f"use a token with the scope {needed}",
                    headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{needed}"'},
                )
            if caller.control:
                self._take(self._change_rate, f"token:{caller.token.name}")

    def _token(self, presented: list[str]) -> Token | None:
        if len(presented) != 1:
            return None
        scheme, _, token = presented[0].strip().partition(" ")
        return self._tokens.find(token.strip()) if scheme.lower() == "bearer" and token.strip() else None

    async def _hold_back(self) -> None:
        """Let a client wait for its refusal, while there is room for another one that waits."""
        with self._held.taken("") as taken:
            if taken:
                await asyncio.sleep(self._limits.refusal_seconds)

    def _take(self, buckets: Buckets, key: str) -> None:
        seconds = buckets.take(key)
        if seconds:
            raise Problem(
                429,
                "rate",
                "rate limit exceeded",
                f"retry after {seconds:.2f} s, with fewer requests per second",
                headers={"Retry-After": retry_after(seconds)},
            )

    def _report(self, scope: Scope, caller: Caller, status: int) -> None:
        if not (caller.control or status >= 400) or scope["path"] in OPEN:
            return
        if status == 429 and self._reported.take(caller.name or caller.address):
            return
        if caller.token is None and self._refused_rate.take(""):
            return  # anybody can have it refused, from any number of addresses
        parts = scope["path"].split("/")
        self._audit(
            parts[3] if parts[:3] == ["", "v1", "jobs"] and len(parts) > 3 else "",
            ControlRequestRow(
                at=datetime.now(timezone.utc),
                requested_by=caller.name,
                origin=caller.address,
                method=scope["method"],
                path=scope["path"],
                status=status or 499,
                event_id=caller.event_id,
                reason=caller.reason,
            ),
        )


def _all(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def caller_of(scope: Scope) -> Caller:
    """Who sends the request."""
    found = scope[CALLER]
    assert isinstance(found, Caller)
    return found
