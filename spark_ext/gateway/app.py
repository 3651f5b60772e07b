"""The application of a gateway: what an HTTP request is answered. Raw ASGI: each event passes it.

Nothing is stored of a request before its sender is known and its body is complete and within the limits.
"""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import unquote

from spark_ext.gateway.admission import SIGNED, Admission, presented
from spark_ext.gateway.answers import PERHAPS, Refused, Response
from spark_ext.gateway.reception import Reception
from spark_ext.gateway.routes import ALLOWED, Kind, Route, Routes, shown
from spark_ext.ingest.forms import decompress
from spark_ext.ingest.identity import Answer, handshake
from spark_ext.ingest.signatures import Rejected, headers_of, verify
from spark_ext.ingest.store import Unavailable
from spark_ext.masking import logger, mask
from spark_ext.server.bodies import DRAINED
from spark_ext.server.guard import ADMITTED, COMPLETE, Receive, Scope, Send
from spark_ext.server.limits import Buckets, Limits
from spark_ext.server.problems import Problem
from spark_ext.server.tokens import hide

log = logger("spark_ext.gateway")


class Gone(Exception):
    """The client has gone before its request was complete."""


class Gateway:
    """An ASGI application."""

    def __init__(self, reception: Reception, admission: Admission, limits: Limits) -> None:
        self._reception, self._admission, self._limits = reception, admission, limits
        self._routes = Routes(reception.inbox.name)
        self._said = Buckets(1.0, 10)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        try:
            response = await self._answered(scope, receive)
        except Gone:
            return
        except Exception as error:
            response = Response.of_problem(self.refusal(scope, error))
        await response.send(send)

    def refusal(self, scope: Scope, error: Exception) -> Problem:
        """The refusal of a request that failed, which is also logged, now and then."""
        refused = Refused.of(error)
        address = scope["client"][0] if scope.get("client") else ""
        if refused.status in (401, 403, 404):
            try:
                self._admission.refused(address)
            except Refused as too_many:
                refused = too_many
        problem = refused.problem(self._reception.inbox.operator)
        self._reception.inbox.reject(problem.status)
        if problem.status == 500:
            log.error("a request failed: %s", mask(f"{type(error).__name__}: {error}"), exc_info=error)
        elif not self._said.take(""):
            what = hide(problem.what)
            log.warning("%d for %s %s of %s: %s", problem.status, scope["method"], shown(_path(scope)), address, what)
        return problem

    def route(self, scope: Scope, headers: dict[str, str]) -> Route:
        """What a request asks for."""
        self._admission.check(scope.get("scheme", "http"), headers)
        route = self._routes.find(_path(scope))
        if route.kind is Kind.NONE:
            raise Refused(404, "not_found", "nothing is at this address", "send events to /v1/inboxes/NAME")
        return route

    async def _answered(self, scope: Scope, receive: Receive) -> Response:
        headers = headers_of(scope["headers"])
        route = self.route(scope, headers)
        method = scope["method"]
        if route.kind is Kind.HEALTH and method in ("GET", "HEAD"):
            self._reception.opened()
            return Response.of_json(b'{"status":"ok"}')
        if method == "POST" and route.kind is not Kind.HEALTH:
            return await self._posted(scope, route, headers, receive)
        if method == "OPTIONS" and route.kind is not Kind.HEALTH:
            return self._permitted(route, headers)
        if method in ("GET", "HEAD") and route.kind in (Kind.PRODUCER, Kind.RECEIPT):
            return self._asked(scope, route, headers)
        raise Refused(
            405,
            "method",
            "the method is not allowed at this address",
            f"use one of: {ALLOWED[route.kind]}",
            headers={"Allow": ALLOWED[route.kind]},
        )

    async def _posted(self, scope: Scope, route: Route, headers: dict[str, str], receive: Receive) -> Response:
        opened = self._reception.opened()
        senders = opened.senders
        if not senders.scheme or route.token is not None:
            self._admission.token(senders, presented(route, headers))
            scope.get(ADMITTED, _nothing)()
        body = await self._body(scope, headers, receive, opened.description.max_body)
        if senders.scheme:
            verify(senders.scheme, senders.secrets, headers, body, time.time())
            scope.get(ADMITTED, _nothing)()
            if route.token is None:
                self._admission.count(SIGNED)
        if "content-encoding" in headers:
            body = decompress(body, headers["content-encoding"], opened.description.max_body)
        answer = handshake(opened.description, "POST", headers, body)
        if answer is not None:
            return Response.of_handshake(answer)
        if route.token is not None:
            headers = without(headers, route.token)
        query = scope["query_string"]
        request = self._reception.request(opened, headers, body, route.rest, query.decode("latin-1"))
        waiting = self._reception.submit(opened, request)
        try:
            receipt = await waiting
        except Unavailable as error:  # a sync has failed, or the gateway ends before the table has them
            raise Refused.of(error, PERHAPS) from None
        return Response.of_receipt(receipt, opened.description.scheme)

    def _permitted(self, route: Route, headers: dict[str, str]) -> Response:
        opened = self._reception.opened()
        if route.token is not None:
            self._admission.token(opened.senders, route.token)
        answer = handshake(opened.description, "OPTIONS", headers, b"")
        return Response.of_handshake(answer or Answer(204, {"allow": ALLOWED[route.kind]}))

    def _asked(self, scope: Scope, route: Route, headers: dict[str, str]) -> Response:
        opened = self._reception.opened()
        self._admission.token(opened.senders, presented(route, headers))
        scope.get(ADMITTED, _nothing)()
        store = opened.store
        if route.kind is Kind.PRODUCER:
            acknowledged, committed = store.producer(route.name)
            found = {"producer": route.name, "acknowledged": acknowledged, "committed": committed}
        else:
            found = {"receipt": route.name, "in_table": store.committed(route.name)}
        return Response.of_json(json.dumps(found).encode())

    async def _body(self, scope: Scope, headers: dict[str, str], receive: Receive, most: int) -> bytes:
        """The body as it was sent, complete.

        Of one that is too large some more is read: a client that is still sending would not see the answer.
        """
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most and headers.get("expect", "").lower() == "100-continue":
            raise _too_large(most)
        if scope.get(COMPLETE):  # as for most, which need no timer
            return await _received(receive, most)
        return await self._slow_body(receive, most)

    async def _slow_body(self, receive: Receive, most: int) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        late = False

        def end() -> None:
            nonlocal late
            late = True
            task.cancel()

        due = asyncio.get_running_loop().call_later(self._limits.body_seconds, end)
        try:
            return await _received(receive, most)
        except asyncio.CancelledError:
            if late:
                raise Rejected(408, "the body did not arrive in time") from None
            raise
        finally:
            due.cancel()


async def _received(receive: Receive, most: int) -> bytes:
    parts, size, more = [], 0, True
    while more and size <= most * DRAINED:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        size, more = size + len(message["body"]), message["more_body"]
        if size <= most:
            parts.append(message["body"])
    if size > most:
        raise _too_large(most)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _path(scope: Scope) -> bytes:
    found: bytes = scope["raw_path"]
    return found


def _nothing() -> None:
    pass


def _too_large(most: int) -> Rejected:
    return Rejected(413, f"the body has more than {most} bytes")


def without(headers: dict[str, str], token: str) -> dict[str, str]:
    """Headers without those in which a proxy repeats the address, and with it the token."""
    return {name: value for name, value in headers.items() if token not in value and token not in unquote(value)}
