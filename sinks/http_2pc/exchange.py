"""One request and its answer, within a limit of time and a limit of bytes, whatever the receiver sends.

httpcore follows no redirects, keeps no cookies and decodes no bodies. Its time limits hold for one operation of a
socket, so a receiver could prolong an answer byte by byte: `_Bounded` puts the limits of the whole exchange around
each.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpcore

if TYPE_CHECKING:
    from spark_ext.sinks.http_2pc.tls import Proxy


MOST_READ = 64 * 1024  # Bytes of an answer's body that are read; after a longer one the connection is closed
MOST_RECEIVED = 1024 * 1024  # Bytes received in an exchange: headers, interim answers and framing included
PIECE = 16 * 1024  # How many bytes are sent between two looks at the time
IDLE = 5.0  # How long an unused connection is kept, s


@dataclass(frozen=True)
class Answer:
    """What the receiver has answered."""

    status: int
    headers: Mapping[str, str]  # Names in lower case
    text: str  # The beginning of the body; "" if it is encoded


@dataclass
class _Limits:
    seconds: float
    ends: float  # By `time.monotonic`
    bytes: int = MOST_RECEIVED

    def left(self, problem: type[Exception]) -> float:
        """Seconds that are left."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise problem(f"the request and its answer were not complete after {self.seconds:g} s")
        return left


_limits: ContextVar[_Limits] = ContextVar("limits of the current exchange")


def exchange(
    pool: httpcore.ConnectionPool, method: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float
) -> Answer:
    """Send a request and read the answer."""
    sent = [(name.encode(), value.encode()) for name, value in {**_DEFAULTS, **_cased(headers)}.items()]
    reset = _limits.set(_Limits(seconds, time.monotonic() + seconds))
    try:
        with pool.stream(method, _address(url), headers=sent, content=body) as answer:
            received = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
            beginning = _beginning(answer.iter_stream())
    except UnicodeError as problem:  # of a name that cannot be resolved
        raise httpcore.ConnectError(f"the host's name is not valid: {problem.__class__.__name__}") from None
    finally:
        _limits.reset(reset)
    plain = received.get("content-encoding", "identity").lower() == "identity"
    return Answer(answer.status, received, beginning.decode(errors="replace") if plain else "")


# Of every request; `identity`, because a small encoded body may be a large decoded one.
_DEFAULTS = {"User-Agent": "spark-ext", "Accept": "*/*", "Accept-Encoding": "identity"}


def _cased(headers: Mapping[str, str]) -> dict[str, str]:
    """With the names of the defaults in their case: the user's take their place."""
    known = {name.lower(): name for name in _DEFAULTS}
    return {known.get(name.lower(), name): value for name, value in headers.items()}


def _beginning(parts: Iterable[bytes]) -> bytes:
    taken = b""
    for part in parts:
        taken += part
        if len(taken) >= MOST_READ:
            break
    return taken[:MOST_READ]


def _address(url: str) -> httpcore.URL:
    parts = urlsplit(url)
    assert parts.hostname is not None
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        target += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~[]")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    return httpcore.URL(scheme=parts.scheme.encode(), host=host.encode(), port=parts.port, target=target.encode())


def connections(trust: ssl.SSLContext | None, proxy: Proxy | None) -> httpcore.ConnectionPool:
    """Connections to receivers, kept for `IDLE` seconds; without `trust` by OpenSSL's certificates of the system."""
    common: dict[str, Any] = {
        "ssl_context": trust or ssl.create_default_context(),
        "keepalive_expiry": IDLE,
        "network_backend": _Backend(),
    }
    if proxy is None:
        return httpcore.ConnectionPool(**common)
    return httpcore.HTTPProxy(proxy_url=proxy.url, proxy_auth=proxy.credentials, **common)


class _Backend(httpcore.NetworkBackend):
    """Sockets, within the limits of the exchange."""

    def __init__(self) -> None:
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        """Connect to any address of the host; all of them together have the time that is left."""
        import socket

        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise httpcore.ConnectError(str(problem)) from problem
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for number, address in enumerate(addresses):
            left = _limits.get().left(httpcore.ConnectTimeout)
            try:
                # The rest is divided among those that are still to be tried.
                made = self._sockets.connect_tcp(
                    address, port, left / (len(addresses) - number), local_address, socket_options
                )
                return _Bounded(made)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses) - 1:
                    raise
        raise httpcore.ConnectError(f"the name {host} has no address")


class _Bounded(httpcore.NetworkStream):
    """A connection, within the limits of the exchange."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what is there."""
        limits = _limits.get()
        if limits.bytes <= 0:
            raise httpcore.RemoteProtocolError(f"the answer is longer than {MOST_RECEIVED} bytes")
        found = self._stream.read(min(max_bytes, limits.bytes), limits.left(httpcore.ReadTimeout))
        limits.bytes -= len(found)
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of it, in pieces: the limit of each is what the ones before have left."""
        limits = _limits.get()
        for start in range(0, len(buffer), PIECE):
            self._stream.write(buffer[start : start + PIECE], limits.left(httpcore.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Begin TLS."""
        left = _limits.get().left(httpcore.ConnectTimeout)
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, left))

    def close(self) -> None:
        """Close it."""
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for."""
        return self._stream.get_extra_info(info)
