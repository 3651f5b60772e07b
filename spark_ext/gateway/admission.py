"""Who may send: names of the gateway, tokens, and how many requests a sender may send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_ext.gateway.answers import Refused
from spark_ext.gateway.routes import Route
from spark_ext.gateway.senders import Senders
from spark_ext.server.guard import Hosts
from spark_ext.server.limits import Buckets, Limits, retry_after
from spark_ext.server.tokens import Token

SCOPE: Final = "ingest"
SIGNED: Final = "signed"  # for whom requests with a valid signature count
_FINE: Final = 1_000  # names that are remembered


class Admission:
    """Refuses requests of strangers, and too many of others. For the event loop."""

    def __init__(self, hosts: Hosts, limits: Limits) -> None:
        self._hosts = hosts
        self._rate = Buckets(limits.rate, limits.burst)
        self._refused_rate = Buckets(limits.refused_rate, limits.refused_burst)
        self._fine: set[tuple[str, str]] = set()

    def check(self, scheme: str, headers: Mapping[str, str]) -> None:
        """Refuse a request for another server, or from a page of another site."""
        name = scheme, headers.get("host", "")
        if "origin" not in headers and name in self._fine:
            return
        given = [(one.encode(), headers[one].encode()) for one in ("host", "origin") if one in headers]
        self._hosts.check(scheme, given)
        if len(self._fine) < _FINE:
            self._fine.add(name)

    def token(self, senders: Senders, presented: str) -> Token:
        """The token that was presented, if it may send; its request counts."""
        token = senders.find(presented) if presented else None
        if token is None:
            raise Refused(
                401,
                "unauthorized",
                "missing or invalid token",
                "send the header Authorization: Bearer TOKEN, or use the address with /t/TOKEN behind the inbox's name",
                headers={"WWW-Authenticate": 'Bearer realm="spark-ext"'},
            )
        self.count(token.name)
        if SCOPE not in token.scopes:
            raise Refused(
                403,
                "forbidden",
                f"the token '{token.name}' does not have the scope {SCOPE}",
                f"use a token with the scope {SCOPE}",
                headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{SCOPE}"'},
            )
        return token

    def count(self, sender: str) -> None:
        """Count a request of a token, or one with a valid signature."""
        self._take(self._rate, sender)

    def refused(self, address: str) -> None:
        """Count a request that was refused because its sender is not known."""
        self._take(self._refused_rate, address)

    def _take(self, buckets: Buckets, key: str) -> None:
        seconds = buckets.take(key)
        if seconds:
            raise Refused(
                429,
                "rate",
                "rate limit exceeded",
                f"retry after {seconds:.2f} s, with fewer requests per second",
                headers={"Retry-After": retry_after(seconds)},
            )


def presented(route: Route, headers: Mapping[str, str]) -> str:
    """The token of a request, in its path or header; "" without one."""
    if route.token is not None:
        return route.token
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
