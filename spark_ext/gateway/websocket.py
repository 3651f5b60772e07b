"""Events over WebSocket: each message is the body of an event, and is answered by one message, in JSON.

    {"message": 0, "level": "disk", "events": 1, "repeats": 0, "exactly_once": true, "token": "..."}
    {"message": 1, "status": 422, "reason": "unfit", "detail": "..."}

Messages are counted from 0. A producer gives the number of its first event in the header X-Sequence of the handshake.
After a refusal of such a producer, and any that may be over later (429, 503), the connection is closed, and nothing
more of it is accepted: a producer that numbers its events sends what was refused before what follows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

from spark_ext.gateway import LIBRARY
from spark_ext.gateway.admission import Admission, presented
from spark_ext.gateway.answers import KEPT, PERHAPS, Refused, told
from spark_ext.gateway.app import Gateway, without
from spark_ext.gateway.inbox import Opened
from spark_ext.gateway.reception import Reception
from spark_ext.gateway.routes import Kind
from spark_ext.ingest.records import Receipt
from spark_ext.ingest.signatures import headers_of
from spark_ext.server.problems import Problem

if TYPE_CHECKING:
    from spark_ext.clients.listener import Listener

MOST_WAITING: Final = 256  # messages of a connection whose answers are still to come; then no more is read
PART: Final = 2048  # bytes that are parsed at once: what one read of a socket brings may be 40,000 messages
MOST_CONTROL: Final = 125  # bytes of a control frame, which the library counts as those of a message
MOST_DIGITS: Final = 20  # of the number of an event
QUIET: Final = 30.0  # after how long without a byte the client is asked whether it is there, s

_OVER: Final = frozenset({429, 500, 503})  # refusals of what may be accepted later
_FOR_GOOD: Final = frozenset({"unauthorized", "forbidden", "scheme"})  # refusals of whatever a connection sends
_ONE_EVENT: Final = ("idempotency-key", "webhook-id", "ce-id", "x-github-delivery", "x-shopify-webhook-id")
"""Headers that identify one event, and so have no meaning for a connection."""

_BY_BODY: Final = frozenset({"", "cloudevents", "pointer", "sequence"})
"""Schemes that do not depend on headers of each event."""


class WebSockets:
    """The WebSocket connections of a gateway."""

    def __init__(self, reception: Reception, admission: Admission, gateway: Gateway) -> None:
        self.reception, self.admission, self.gateway = reception, admission, gateway
        self.open: set[Connection] = set()

    def close(self) -> None:
        """Close all, each once what it waits for is answered."""
        for one in list(self.open):
            one.leave()

    def protocol(self, listener: Listener) -> Callable[..., asyncio.Protocol]:
        """What makes the protocol of a connection; uvicorn then hands the first request on to it."""
        return lambda **_: Connection(self, listener)


class Connection(asyncio.Protocol):
    """A connection, from its handshake on."""

    def __init__(self, among: WebSockets, listener: Listener) -> None:
        self._among, self._listener = among, listener
        self._protocol: Protocol | None = None  # after the handshake
        self._unparsed, self._message, self._is_text = bytearray(), bytearray(), False
        self._count = 0
        self._waiting: set[asyncio.Future[Receipt]] = set()
        self._heard, self._writable, self._ended = True, True, False
        self._farewell = b""

    def connection_made(self, transport: Any) -> None:
        """Begin; the request follows."""
        self._transport = transport
        self._number = transport.get_extra_info("socket").fileno()
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)
        self._due = asyncio.get_running_loop().call_later(QUIET, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._ended = True
        self._due.cancel()
        for one in list(self._waiting):
            one.cancel()
        self._among.open.discard(self)
        self._listener.busy.discard(self._number)

    def pause_writing(self) -> None:
        """Read nothing from a client that reads no answers."""
        self._writable = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        self._writable = True
        self._parse()

    def data_received(self, data: bytes) -> None:
        """Take the request, then frames."""
        self._heard = True
        if self._ended:
            return
        if self._protocol is None:
            self._shake_hands(data)
        else:
            self._unparsed += data
            self._parse()

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")  # as uvicorn has written them
        method, target, _ = first.decode("latin-1").split(" ")
        path, _, query = target.partition("?")
        scope = {
            "method": method,
            "scheme": "https" if self._transport.get_extra_info("ssl_object") else "http",
            "raw_path": path.encode("latin-1"),
            "client": self._client,
        }
        handshake = ServerProtocol(logger=LIBRARY)
        handshake.receive_data(data)
        try:
            answer = self._agreed(handshake, scope, query, headers_of(line.partition(b": ")[::2] for line in lines))
        except Exception as error:
            self._transport.write(_refused(self._among.gateway.refusal(scope, error)))
            self._ended = True
            self._transport.close()
        else:
            self._transport.write(answer)

    def _agreed(self, handshake: ServerProtocol, scope: dict[str, Any], query: str, headers: dict[str, str]) -> bytes:
        route = self._among.gateway.route(scope, headers)
        if route.kind is not Kind.WEBSOCKET or scope["method"] != "GET":
            raise Refused(400, "upgrade", "WebSocket is not served here", "use the address that ends in /ws")
        self._token = presented(route, headers)
        opened = self._admitted()
        if any(name in headers for name in _ONE_EVENT):
            raise _by_headers()
        answers = [handshake.accept(one) for one in handshake.events_received() if isinstance(one, Request)]
        if handshake.handshake_exc is not None:
            raise Refused(
                400,
                "handshake",
                f"the handshake is malformed: {handshake.handshake_exc}",
                "see RFC 6455",
                headers={"Sec-WebSocket-Version": "13"},
            )
        self._headers = without(headers, route.token) if route.token is not None else headers
        for name in [name for name in headers if name.startswith("sec-websocket-")] + ["connection", "upgrade"]:
            self._headers.pop(name, None)
        self._rest, self._query = route.rest, query
        self._most = opened.description.max_body
        self._protocol = Protocol(Side.SERVER, max_size=self._most + MOST_CONTROL, logger=LIBRARY)
        number = headers.get("x-sequence", "")  # of one that is none, each message is refused
        self._next = int(number) if number.isdecimal() and str(int(number[:MOST_DIGITS])) == number else None
        self._listener.busy.add(self._number)
        self._among.open.add(self)
        return answers[0].serialize()

    def _admitted(self) -> Opened:
        """The open inbox, if its description, which may have changed, lets the connection send now."""
        opened = self._among.reception.opened()
        self._among.admission.token(opened.senders, self._token)
        if opened.description.scheme not in _BY_BODY:
            raise _by_headers()
        return opened

    # -- messages ------------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Take what was received while there is room for answers, and read on when nothing of it is left."""
        protocol = self._protocol
        assert protocol is not None
        while self._unparsed and not self._ended and self._writable and len(self._waiting) < MOST_WAITING:
            part = self._unparsed[:PART]
            del self._unparsed[:PART]
            protocol.receive_data(part)
            for one in protocol.events_received():
                if isinstance(one, Frame) and not self._ended:
                    self._put(one)
            if protocol.state is State.OPEN:
                self._transport.write(b"".join(protocol.data_to_send()))  # pongs
            elif not self._ended:
                self._finish()
        if self._unparsed or not self._writable:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _put(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._message += frame.data
        if len(self._message) > self._most:
            self._end(CloseCode.MESSAGE_TOO_BIG, f"a message has more than {self._most} bytes")
        if self._ended or not frame.fin:
            return
        body, self._message = bytes(self._message), bytearray()
        try:
            if self._is_text:
                body.decode()
        except UnicodeDecodeError:
            self._end(CloseCode.INVALID_DATA, "a text message is not UTF-8")
        else:
            self._take(body)

    def _take(self, body: bytes) -> None:
        number, headers = self._count, self._headers
        self._count += 1
        if self._next is not None:
            headers = {**headers, "x-sequence": str(self._next)}
        try:
            opened = self._admitted()
            request = self._among.reception.request(opened, headers, body, self._rest, self._query)
            waiting = self._among.reception.submit(opened, request)
        except Exception as error:
            self._refuse(number, error)
            return
        if self._next is not None:
            self._next += request.events
        self._waiting.add(waiting)
        waiting.add_done_callback(lambda done: self._answer(number, done))

    def _answer(self, number: int, done: asyncio.Future[Receipt]) -> None:
        self._waiting.discard(done)
        if done.cancelled() or self._transport.is_closing():
            return
        error = done.exception()
        if error is None:
            self._say(told(done.result(), f'"message":{number},'))
        elif isinstance(error, Exception):
            self._refuse(number, error, PERHAPS)
        if self._ended:
            self._leave()
        else:
            self._parse()

    def _refuse(self, number: int, error: Exception, kept: str = KEPT) -> None:
        problem = Refused.of(error, kept).problem(self._among.reception.inbox.operator)
        self._among.reception.inbox.reject(problem.status)
        found: dict[str, Any] = {"message": number, **problem.body()}
        if "Retry-After" in problem.headers:
            found["retry_after"] = int(problem.headers["Retry-After"])
        self._say(json.dumps(found))
        if self._next is not None or problem.status in _OVER or problem.reason in _FOR_GOOD:
            later = problem.status in _OVER
            self._end(CloseCode.TRY_AGAIN_LATER if later else CloseCode.POLICY_VIOLATION, problem.what)

    def _say(self, text: str) -> None:
        if not self._transport.is_closing():
            # Not by the protocol, which sends nothing behind the answer to a close: what was taken is answered first.
            self._transport.write(Frame(Opcode.TEXT, text.encode()).serialize(mask=False))

    def leave(self) -> None:
        """Close it in order: nothing more is accepted."""
        self._end(CloseCode.GOING_AWAY, "the gateway is being stopped")

    def _end(self, code: CloseCode, why: str) -> None:
        if not self._ended and self._protocol is not None:
            self._protocol.fail(code, why.encode()[: MOST_CONTROL - 2].decode(errors="ignore"))
            self._finish()

    def _finish(self) -> None:
        """Take nothing more, and close the connection when all that was taken is answered."""
        assert self._protocol is not None
        self._ended, self._farewell = True, b"".join(self._protocol.data_to_send())
        self._unparsed.clear()
        self._leave()

    def _leave(self) -> None:
        if not self._waiting and not self._transport.is_closing():
            self._transport.write(self._farewell)
            self._transport.close()

    def _look(self) -> None:
        # A client from which nothing is read until the store has answered, or that said its last, cannot be heard.
        silent = self._waiting and self._writable and (self._unparsed or self._ended)
        if not self._heard and not silent:
            self._transport.abort()
            return
        self._heard = False
        if self._protocol is not None and not self._ended:
            self._transport.write(Frame(Opcode.PING, b"").serialize(mask=False))
        self._due = asyncio.get_running_loop().call_later(QUIET, self._look)


def _by_headers() -> Refused:
    return Refused(
        400,
        "scheme",
        "the events of a connection cannot be told apart: each needs headers of its own",
        "send them by POST, or give them an identity in the body, or X-Producer and X-Sequence",
    )


def _refused(problem: Problem) -> bytes:
    body = problem.content()
    headers = {**problem.headers, "Content-Type": "application/problem+json", "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {problem.status} Refused\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
