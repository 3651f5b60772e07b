"""Requests of `http_2pc`: one at a time, each told apart by its answer into taken, again, fenced or refused.

What an answer means is a pure function (`verdict`); waiting and sending are in `Sender`. Waits that the receiver asks
for are flow control and count against a limit of time. Everything else that may pass is a `TransientError`, which the
base of all sinks tries again with its own back-off and limit.
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

from spark_ext.errors import ConfigurationError, DataError, EnvironmentProblem, FencedError, TransientError
from spark_ext.failpoints import reach

if TYPE_CHECKING:
    import httpx

    from spark_ext.sinks.http_2pc.chunks import Chunk

SHOWN = 300
"""Characters of an answer that an error shows."""

MOST_READ = 64 * 1024
"""Bytes of an answer that are read; the connection of a longer one is given up."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
"""Statuses after which the same request may succeed."""

_TOO_LARGE = 413
"""The request is larger than the receiver takes. Its division into requests is recorded: only the receiver can help."""

_ACCESS = frozenset({401, 403, 404, 405, 407, 410, 501, 505})
"""Statuses that say that address, method or credentials are wrong, not the rows."""

FENCED = 412
"""Precondition Failed: the receiver has seen a newer incarnation."""


class Verdict(Enum):
    """What an answer means for the request."""

    TAKEN = "taken"
    AGAIN = "again"
    FENCED = "fenced"
    REFUSED = "refused"


def verdict(status: int, conflict: str) -> Verdict:
    """What a status means.

    Args:
        status: of the answer.
        conflict: what 409 means: `retry`, `done` or `refuse`.
    """
    if 200 <= status < 300:
        return Verdict.TAKEN
    if status == 409:
        return {"retry": Verdict.AGAIN, "done": Verdict.TAKEN, "refuse": Verdict.REFUSED}[conflict]
    if status == FENCED:
        return Verdict.FENCED
    return Verdict.AGAIN if status in _PASSING else Verdict.REFUSED


def retry_after(value: str | None, now: datetime) -> float | None:
    """A header `Retry-After` as seconds from now, at least 0; None when there is none, or it makes no sense."""
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
    """Where and how requests go. Holds secrets: never shown."""

    url: str
    method: str
    headers: Mapping[str, str]
    """Of every request; credentials among them."""
    secrets: tuple[str, ...]
    """Texts that no message may hold."""
    timeout: float
    """Seconds for connecting, and for each wait for the receiver."""
    patience: float
    """Seconds that one request may be put off by `Retry-After`."""
    conflict: str
    compress: bool
    ca_file: str | None
    redact: bool


_clients: dict[tuple[float, str | None], httpx.Client] = {}
"""Open connections of this process: sinks are built anew for each epoch."""


def library(who: str) -> Any:
    """The module `httpx`.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        import httpx
    except ImportError as problem:
        raise EnvironmentProblem(
            "the sink http_2pc needs the library httpx, which is not installed",
            operator=who,
            kept="nothing was sent",
            do="pip install 'spark-ext[http]'",
        ) from problem
    return httpx


class Sender:
    """Sends chunks and settles what their answers mean.

    Args:
        wire: where and how.
        who: the sink, for messages.
    """

    def __init__(self, wire: Wire, who: str) -> None:
        self._wire, self._who = wire, who
        self._httpx = library(who)

    def send(self, chunk: Chunk, headers: Mapping[str, str]) -> None:
        """Send a chunk until the receiver has taken it, waiting as long as it asks for.

        Raises:
            TransientError: no answer, or one after which the same request may succeed.
            FencedError: the receiver has seen a newer incarnation.
            DataError: the rows were refused.
            ConfigurationError: address or credentials were refused.
        """
        import tenacity

        body = gzip.compress(chunk.body, mtime=0) if self._wire.compress else chunk.body
        given_up = time.monotonic() + self._wire.patience
        while True:
            status, text, wait = self._request(body, {**self._wire.headers, **headers}, chunk)
            meaning = verdict(status, self._wire.conflict)
            if meaning is Verdict.TAKEN:
                return
            if meaning is Verdict.AGAIN and wait is not None and time.monotonic() + wait <= given_up:
                tenacity.nap.sleep(wait)
                continue
            raise self._error(meaning, status, text, wait, chunk)

    def _request(self, body: bytes, headers: Mapping[str, str], chunk: Chunk) -> tuple[int, str, float | None]:
        reach("http.before_request")
        try:
            with self._client().stream(
                self._wire.method, self._wire.url, content=body, headers=dict(headers)
            ) as answer:
                status = int(answer.status_code)
                wait = retry_after(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
                try:
                    text = _beginning(answer)
                except self._httpx.DecodingError:
                    # The status counts; the body is for people only.
                    text = ""
        except self._httpx.TransportError as problem:
            raise self._no_answer(problem, chunk) from problem
        reach("http.answered")
        return status, text, wait

    def _client(self) -> httpx.Client:
        key = (self._wire.timeout, self._wire.ca_file)
        if key not in _clients:
            verify: Any = True
            if self._wire.ca_file is not None:
                import ssl

                try:
                    verify = ssl.create_default_context(cafile=self._wire.ca_file)
                except OSError as problem:
                    raise ConfigurationError(
                        f"the certificates of 'ca_file' could not be read: {problem}",
                        operator=self._who,
                        kept="nothing was sent",
                        do="give a readable file of PEM certificates",
                    ) from problem
            _clients[key] = self._httpx.Client(timeout=self._wire.timeout, verify=verify)
        return _clients[key]

    def _no_answer(self, problem: Exception, chunk: Chunk) -> ConfigurationError | TransientError:
        told = self._clean(f"{type(problem).__name__}: {problem}")
        if "CERTIFICATE_VERIFY_FAILED" in str(problem):
            return ConfigurationError(
                f"the receiver's certificate was not accepted: {told}",
                operator=self._operator(chunk),
                kept="the epoch is recorded in the outbox; nothing was sent",
                do="see to the certificate, or name its authority with the option 'ca_file'",
            )
        return TransientError(
            f"there was no answer: {told}",
            operator=self._operator(chunk),
            kept="the epoch is recorded in the outbox; whether this request took effect is the receiver's to know, "
            "by its key",
            do="see that the receiver is reachable; the same request is sent again",
        )

    def _error(
        self, meaning: Verdict, status: int, text: str, wait: float | None, chunk: Chunk
    ) -> ConfigurationError | DataError | FencedError | TransientError:
        told = f"status {status}" + self._shown(text)
        kept = "the epoch is recorded in the outbox; requests that were answered with success are not undone"
        who = self._operator(chunk)
        if meaning is Verdict.FENCED:
            return FencedError(
                f"the receiver has seen a newer incarnation of the job: {told}",
                operator=who,
                kept=kept,
                do="nothing: the newer start of the job goes on; see that only one is started",
            )
        if meaning is Verdict.AGAIN:
            asked = "" if wait is None else f"; it asks to wait {wait:.0f} s, beyond the option 'patience'"
            return TransientError(
                f"the receiver did not take the request: {told}{asked}",
                operator=who,
                kept=kept,
                do="see to the receiver; the same request is sent again",
            )
        if status in _ACCESS or 300 <= status < 400:
            return ConfigurationError(
                f"the receiver refused the request: {told}",
                operator=who,
                kept=kept,
                do="correct 'url' (redirects are not followed), 'method', 'token' or 'headers', and start again: the "
                "recorded epoch is sent first",
            )
        limit = "raise the receiver's limit (for later epochs, lower 'batch_bytes' or 'batch_rows')"
        mend = limit if status == _TOO_LARGE else "correct the receiver"
        return DataError(
            f"the receiver refused these {chunk.rows} rows: {told}",
            operator=who,
            kept=kept,
            do=f"{mend}, and start again: the recorded epoch is sent first, with the same keys",
        )

    def _shown(self, text: str) -> str:
        if self._wire.redact or not text.strip():
            return ""
        # Cleaned first: a secret that is cut in two is not recognised.
        told = self._clean(text)
        return f": {told[:SHOWN]}" + ("..." if len(told) > SHOWN else "")

    def _clean(self, text: str) -> str:
        for secret in self._wire.secrets:
            text = text.replace(secret, "***")
        return text

    def _operator(self, chunk: Chunk) -> str:
        return f"{self._who}, request {chunk.number}"


def shown(url: str) -> str:
    """An address without what may be secret in it: query and user."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _beginning(answer: httpx.Response) -> str:
    taken = b""
    for part in answer.iter_bytes():
        taken += part
        if len(taken) >= MOST_READ:
            break
    return taken.decode(errors="replace")
