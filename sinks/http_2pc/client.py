"""Requests of `http_2pc`: one at a time; the answer to each is classified as taken, again, fenced or refused.

Waits that the receiver asks for are flow control and count against a time limit. Any other temporary failure is a
`TransientError`, which the base of all sinks retries.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_ext import masking
from spark_ext.clients.library import load
from spark_ext.errors import CommitError, ConfigurationError, DataError, FencedError, TransientError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.http_2pc import credentials
from spark_ext.sinks.http_2pc.tls import Tls, is_refused_client, proxy_for

if TYPE_CHECKING:
    import httpcore

    from spark_ext.model.token_bucket import TokenBucket
    from spark_ext.sinks.http_2pc.addresses import Allowed
    from spark_ext.sinks.http_2pc.exchange import Answer
    from spark_ext.sinks.http_2pc.outbox_pieces import Chunk
    from spark_ext.sinks.http_2pc.tls import Proxy

SHOWN = 300  # Maximum number of characters of an answer that an error shows
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 507})  # Statuses after which the same request may succeed
_TOO_LARGE = 413  # The division into requests is recorded: only the receiver can change
_ACCESS = frozenset({401, 403, 404, 405, 407, 410, 501, 505})  # The address, method or credentials are wrong
# Statuses with which `on_bad_row=quarantine` puts the rows of a request aside, if they are final: 409 only where the
# option `conflict` says `refuse`. Others say nothing of rows: what is to be corrected is the address, the credentials
# or the receiver.
OF_ROWS = frozenset({400, 404, 409, 410, 413, 414, 422})
_UNAUTHORIZED = 401

FENCED = 412  # Precondition Failed: the receiver has seen a newer incarnation


class Verdict(Enum):
    """What an answer means for the request."""

    TAKEN = "taken"
    AGAIN = "again"
    FENCED = "fenced"
    REFUSED = "refused"


def verdict(status: int, conflict: str) -> Verdict:
    """What a status means; `conflict` says it of 409: `retry`, `done` or `refuse`."""
    if 200 <= status < 300:
        return Verdict.TAKEN
    if status == 409:
        return {"retry": Verdict.AGAIN, "done": Verdict.TAKEN, "refuse": Verdict.REFUSED}[conflict]
    if status == FENCED:
        return Verdict.FENCED
    return Verdict.AGAIN if status in _PASSING else Verdict.REFUSED


def retry_after(value: str | None, now: datetime) -> float | None:
    """A header `Retry-After` as seconds from now, at least 0; None if it is absent or invalid."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - now).total_seconds())


@dataclass(frozen=True)
class Wire:
    """Where and how requests are sent. Contains secrets: never shown."""

    url: str
    method: str
    headers: Mapping[str, str]  # Of every request, including credentials
    secrets: tuple[str, ...]  # Texts that no message may contain
    timeout: float  # Limit for a request and its whole answer, seconds
    patience: float  # Limit for the delay of one request by `Retry-After`, seconds
    conflict: str
    compress: bool
    tls: Tls
    redact: bool
    allowed: Allowed  # To where requests with addresses of their own may go
    grant: credentials.Grant | None = None  # For tokens; None: the headers have all credentials
    pace: TokenBucket | None = None  # One token per request; None: they are sent as fast as they are answered


# Open connections of this process: sink objects are created again for each epoch.
_pools: dict[tuple[Tls, tuple[tuple[str, int], ...], Proxy | None], httpcore.ConnectionPool] = {}
_KEPT = "the epoch is recorded in the outbox; requests that have succeeded are not undone"


def library(who: str) -> Any:
    """The module `httpcore`."""
    return load("httpcore", "http", who)


class Sender:
    """Sends chunks and acts on the answers."""

    def __init__(self, wire: Wire, who: str) -> None:
        self._wire, self._who = wire, who
        self._secrets = wire.secrets
        self._httpcore = library(who)

    def send(self, chunk: Chunk, headers: Mapping[str, str], *, aside: bool = False) -> str | None:
        """Send a chunk until the receiver has taken it, waiting as long as it asks for; None then.

        With `aside`, rows that it refuses for good are put aside: its answer is returned.
        """
        import tenacity

        who = self._operator(chunk)
        url = self._address(chunk, who)
        body = gzip.compress(chunk.body, mtime=0) if self._wire.compress else chunk.body
        given_up = time.monotonic() + self._wire.patience
        renewed = False
        while True:
            token = self._token(given_up, who)
            bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
            self._keep_pace()
            reach(FailPoint.HTTP_BEFORE_REQUEST)
            answer = self._request(self._wire.method, url, body, {**self._wire.headers, **headers, **bearer}, who)
            reach(FailPoint.HTTP_ANSWERED)
            if answer.status == _UNAUTHORIZED and token is not None and not renewed:
                assert self._wire.grant is not None
                credentials.drop(self._wire.grant, token)
                renewed = True
                continue
            meaning = verdict(answer.status, self._wire.conflict)
            wait = retry_after(answer.headers.get("retry-after"), datetime.now(timezone.utc))
            if meaning is Verdict.TAKEN:
                return None
            if aside and meaning is Verdict.REFUSED and answer.status in OF_ROWS:
                return f"the receiver refused the request: status {answer.status}{self._shown(answer.text)}"
            if meaning is Verdict.AGAIN and wait is not None and time.monotonic() + wait <= given_up:
                tenacity.nap.sleep(wait)
                continue
            raise self._error(meaning, answer.status, answer.text, wait, chunk)

    def authorize(self) -> None:
        """Ask for a token, if tokens are used, without waiting for it."""
        self._token(0.0, self._who)

    def _address(self, chunk: Chunk, who: str) -> str:
        """Where a chunk is sent: as recorded, if it was recorded, and still allowed."""
        if chunk.url is None:
            return self._wire.url
        try:
            self._wire.allowed.check(chunk.url)
        except ValueError as problem:
            raise refused(
                f"a request is recorded for an address to which nothing may be sent now: {problem}",
                who,
                "name the host in 'allowed_hosts' until the recorded epoch is sent, or put 'url' back; "
                "job.reset discards the recorded epoch",
                kept=_KEPT,
            ) from None
        return chunk.url

    def _keep_pace(self) -> None:
        if (pace := self._wire.pace) is None:
            return
        pace.fill(time.monotonic())
        pace.use(1)
        if (wait := pace.wait_s) > 0:
            import tenacity

            tenacity.nap.sleep(wait)

    def _token(self, given_up: float, who: str) -> str | None:
        """The token for the next request; a new one if it is missing or about to expire."""
        import tenacity

        grant = self._wire.grant
        if grant is None:
            return None
        while (text := credentials.kept(grant, time.monotonic())) is None:
            asked = time.monotonic()
            headers, body = grant.request()
            answer = self._request("POST", grant.url, body, headers, who)
            wait = retry_after(answer.headers.get("retry-after"), datetime.now(timezone.utc))
            meaning = verdict(answer.status, "refuse")
            if meaning is Verdict.AGAIN and wait is not None and asked + wait <= given_up:
                tenacity.nap.sleep(wait)
                continue
            if meaning is not Verdict.TAKEN:
                raise self._no_token(meaning, answer, who)
            try:
                credentials.keep(grant, credentials.token_of(answer.text, asked))
            except ValueError as problem:
                raise refused(
                    f"the answer of the token endpoint {shown(grant.url)} has no token that can be used: {problem}",
                    who,
                    "check 'oauth2_token_url'",
                    kept=_KEPT,
                ) from None
        self._secrets = (*self._wire.secrets, text)
        return text

    def _no_token(self, meaning: Verdict, answer: Answer, who: str) -> ConfigurationError | TransientError:
        said = credentials.reason_of(answer.text)
        what = f"the token endpoint {shown(self._wire.grant.url if self._wire.grant else '')} gave no token: status "
        what += f"{answer.status}" + (f": {self._clean(masking.mask(said))[:SHOWN]}" if said else "")
        if meaning is Verdict.AGAIN:
            return TransientError(
                what, operator=who, kept=_KEPT, do="check the endpoint; it will be asked again, with back-off"
            )
        return refused(
            what,
            who,
            "correct 'oauth2_token_url', 'oauth2_client_id', its secret, 'oauth2_scope' or 'oauth2_auth', and start "
            "again: a recorded epoch is sent first",
            kept=_KEPT,
        )

    def _request(self, method: str, url: str, body: bytes, headers: Mapping[str, str], who: str) -> Answer:
        from spark_ext.sinks.http_2pc.exchange import exchange

        wire, client = self._wire, self._httpcore
        failures = (client.TimeoutException, client.NetworkError, client.ProtocolError, client.ProxyError)
        try:
            return exchange(self._pool(url), method, url, headers, body, wire.timeout)
        except failures as problem:
            # Not chained: the library quotes what it was given, headers included.
            raise self._no_answer(problem, url, who) from None

    def _pool(self, url: str) -> httpcore.ConnectionPool:
        from spark_ext.sinks.http_2pc.exchange import connections

        tls = self._wire.tls
        key = (tls, tls.stamp, proxy_for(url, self._who))
        if key not in _pools:
            made = connections(tls.context(self._who), key[2])
            for old in [one for one in _pools if one[0] == tls and one[1] != key[1]]:
                # Its files have been replaced since.
                _pools.pop(old).close()
            _pools[key] = made
        return _pools[key]

    def _no_answer(self, problem: Exception, url: str, who: str) -> ConfigurationError | TransientError:
        reason = self._clean(f"{type(problem).__name__}: {problem}")
        if self._wire.grant is not None and url == self._wire.grant.url:
            who = f"{who}, token endpoint {shown(url)}"
        wrong: tuple[str, str] | None = None
        if isinstance(problem, self._httpcore.ProxyError) and str(problem).startswith("407"):
            do = "correct the user and password in HTTPS_PROXY or ALL_PROXY, with special characters percent-encoded"
            wrong = "the proxy did not accept the credentials", do
        elif "CERTIFICATE_VERIFY_FAILED" in str(problem):
            do = "check the certificate, or name its authority with the option 'ca_file'"
            wrong = "the receiver's certificate was not accepted", do
        elif is_refused_client(str(problem)):
            do = "set 'tls_client_cert' and 'tls_client_key' to a certificate that the receiver knows"
            wrong = "the receiver did not accept the sink's certificate, or wants one", do
        if wrong is not None:
            kept = "the epoch is recorded in the outbox; nothing was sent"
            return refused(f"{wrong[0]}: {reason}", who, wrong[1], kept)
        return TransientError(
            f"there was no answer: {reason}",
            operator=who,
            kept="the epoch is recorded in the outbox; only the receiver knows, by the key, whether this request took "
            "effect",
            do="make sure that the receiver is reachable; the same request will be sent again",
        )

    def _error(
        self, meaning: Verdict, status: int, text: str, wait: float | None, chunk: Chunk
    ) -> ConfigurationError | DataError | FencedError | TransientError:
        answer = f"status {status}" + self._shown(text)
        kept, who = _KEPT, self._operator(chunk)
        if meaning is Verdict.FENCED:
            return FencedError(
                f"the receiver has seen a newer incarnation of the job: {answer}",
                operator=who,
                kept=kept,
                do="nothing: the newer start of the job continues; make sure that only one is started",
            )
        if meaning is Verdict.AGAIN and wait is not None:
            late = CommitError(
                f"the receiver did not take the request: {answer}; it asks to wait {wait:.0f} s, more than the option "
                "'patience' allows",
                operator=who,
                kept=kept,
                do="check the receiver, or raise 'patience'; the same request will be sent again when the query runs "
                "again",
            )
            late.retry_now = False
            return late
        if meaning is Verdict.AGAIN:
            return TransientError(
                f"the receiver did not take the request: {answer}",
                operator=who,
                kept=kept,
                do="check the receiver; the same request will be sent again",
            )
        if status in _ACCESS or 300 <= status < 400:
            return refused(
                f"the receiver refused the request: {answer}",
                who,
                "correct 'method', 'token', 'oauth2_...' or 'headers', and start again: the recorded epoch is sent "
                "first. Redirects are not followed; a corrected 'url' is another target, and needs job.add(..., "
                "accept=('<uid>.url',))",
                kept=kept,
            )
        limit = "raise the receiver's limit (for later epochs, lower 'batch_bytes' or 'batch_rows')"
        fix = limit if status == _TOO_LARGE else "correct the receiver"
        return DataError(
            f"the receiver refused these {chunk.rows} rows: {answer}",
            operator=who,
            kept=kept,
            do=f"{fix}, and start again: the recorded epoch is sent first, with the same keys; "
            "on_bad_row=quarantine puts such rows aside",
        )

    def _shown(self, text: str) -> str:
        if self._wire.redact or not text.strip():
            return ""
        # Cleaned before it is truncated: a part of a secret would not be recognised.
        clean = self._clean(text)
        return f": {clean[:SHOWN]}" + ("..." if len(clean) > SHOWN else "")

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _operator(self, chunk: Chunk) -> str:
        where = f" to {shown(chunk.url)}" if chunk.url and not self._wire.redact else ""
        return f"{self._who}, request {chunk.number}{where}"


def shown(url: str) -> str:
    """An address without the parts that may be secret: query and user."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
