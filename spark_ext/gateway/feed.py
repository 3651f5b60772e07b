"""A gateway that asks for events: it connects to a WebSocket feed, subscribes, and keeps each message as an event.

    <inbox>/gateways/<g>/feed.json    the cursor up to which all messages are kept, and the time
    <inbox>/gaps/<g>-<%020d>.json     a time for which messages may be missing, by when it ended, us since 1970

A feed whose messages have a cursor is continued where it was: what comes twice is found by its identity, where the
inbox has a scheme with one. Without a cursor nobody can ask for what was sent meanwhile: a gap is recorded instead,
which a job that runs reports and deletes. While none does, the newest of 100 gaps grows.

A message is read when those before it have been taken, and no more than 1,024 wait to become durable: a feed that is
faster than the inbox is slowed down by TCP.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_when_event_set, wait_random_exponential
from tenacity.nap import sleep_using_event
from websockets import exceptions
from websockets.sync.client import ClientConnection, connect

from spark_ext.errors import ConfigurationError, DataError, StateError, refused
from spark_ext.gateway import LIBRARY
from spark_ext.gateway.inbox import Inbox
from spark_ext.gateway.senders import secret
from spark_ext.ingest.description import GAPS, GATEWAYS
from spark_ext.ingest.forms import request_of
from spark_ext.ingest.identity import pointed
from spark_ext.ingest.records import Receipt, Request
from spark_ext.ingest.signatures import Rejected
from spark_ext.ingest.store import Draining, Full, Unavailable
from spark_ext.masking import logger, remember
from spark_ext.storage import Folder, Location, child, writer_of

log = logger("spark_ext.gateway")

CURSOR: Final = "{cursor}"
VERSION: Final = 1

MOST_WAITING: Final = 1024  # messages that are not durable yet; then no more is read
SAVE_EVERY: Final = 1.0  # s
LOOK_EVERY: Final = 0.2  # s
REFRESH_EVERY: Final = 2.0  # s
QUIET: Final = 30.0  # after how long without a message the feed is asked whether it is there, s
STEADY: Final = 1.0  # after how long without a message a connection counts as made, s
LONGEST: Final = 30.0  # between two attempts to connect, s
MOST_GAPS: Final = 100  # of a gateway that no job has reported

_LATER: Final = frozenset({408, 425, 429})  # refusals of a handshake that may pass, beside those of broken servers
_TOO_BIG: Final = 1009


@dataclass(frozen=True)
class Subscription:
    """A feed, and what it is asked for.

    `url`, the frames and the values of headers may be `env:NAME` or `file:PATH`, for those that hold a secret.
    """

    url: str  # ws:// or wss://; `{cursor}` in it is replaced as in `resume`
    subscribe: tuple[str, ...] = ()  # frames that are sent first
    cursor: str = ""  # JSON pointer to the cursor in a message; "": the feed has none
    resume: tuple[str, ...] = ()  # frames that are sent instead when a cursor is known, which replaces `{cursor}`
    headers: Mapping[str, str] | None = None

    def opened(self, who: str) -> Subscription:
        """With its secrets.

        Raises:
            ConfigurationError: it is not a feed, or a secret cannot be read.
        """
        url = _value(self.url, who)
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise refused("the address of the feed is not that of a WebSocket", who, "give wss://HOST/PATH")
        if parts.password:
            remember(parts.password)
        if self.cursor and not self.cursor.startswith("/"):
            raise refused(f"'{self.cursor}' is not a JSON pointer", who, "begin it with a slash, as in /id")
        asks = [self.url, *self.resume]
        if bool(self.cursor) is not any(CURSOR in one or one.startswith(("env:", "file:")) for one in asks):
            what = f"a cursor needs --cursor, and {CURSOR} in a frame of --resume or in the address"
            raise refused(what, who, "give both, or none where the feed has no cursor")
        frames = [tuple(_value(one, who) for one in given) for given in (self.subscribe, self.resume)]
        headers = {name: _value(value, who) for name, value in (self.headers or {}).items()}
        return Subscription(url, frames[0], self.cursor, frames[1], headers)

    def address(self, cursor: str) -> str:
        """The address to connect to."""
        return self.url.replace(CURSOR, quote(cursor, safe=""))

    def frames(self, cursor: str) -> tuple[str, ...]:
        """What is sent when it is connected."""
        if not cursor or not self.resume:
            return self.subscribe
        return tuple(one.replace(CURSOR, json.dumps(cursor)[1:-1]) for one in self.resume)


@dataclass
class _Waiting:
    request: Request
    cursor: str | None
    outcome: Receipt | Unavailable | None = None

    def answer(self, outcome: Receipt | Unavailable) -> None:
        """Note what became of it; for any thread."""
        self.outcome = self.outcome or outcome


class _Lost(Exception):
    """The connection is gone, or could not be made."""


class Feed:
    """Keeps what a feed sends until it is stopped, or the inbox is drained. For one thread."""

    def __init__(
        self,
        state: str,
        name: str,
        gateway: str,
        subscription: Subscription,
        *,
        wal: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._inbox = Inbox(state, name, gateway, wal, storage_options)
        self._who, self._gateway = self._inbox.operator, gateway
        self._asked_for = subscription.opened(self._who)
        self._host = urlsplit(self._asked_for.url).hostname
        self._place = Place(
            Location.of(child(state, "inboxes", name), storage_options or {}).folder, gateway, self._who
        )
        self._waiting: deque[_Waiting] = deque()
        self._saved = self._refreshed = self._heard = 0.0
        self._taking = 0  # when the message that is being taken was received, us since 1970
        self._reason = "the gateway did not run"
        self.kept = 0
        """How many messages are durable."""

    def run(self, asked: threading.Event) -> bool:
        """Keep what comes until `asked` is set, or the inbox is drained; returns whether it was drained.

        Raises:
            SparkExtError: the feed refuses the subscription, or the inbox cannot be used.
        """
        self._inbox.open()
        try:
            self._place.load()
            while not asked.is_set():
                connection, message = self._connected(asked)
                if connection is not None:
                    with connection:
                        self._read(connection, message, asked)
        except Draining:
            store = self._inbox.now.store
            while not asked.is_set():
                if store.wait_sealed(LOOK_EVERY):
                    return True
        finally:
            self._inbox.close()
            self._settle(last=True)
            self._save()
        return False

    # -- the connection -----------------------------------------------------------------------------------------------

    def _connected(self, asked: threading.Event) -> tuple[ClientConnection | None, str | bytes | None]:
        """A connection that lasts, and its first message if there was one; None if `asked` was set first."""
        attempts = Retrying(
            retry=retry_if_exception_type(_Lost),
            wait=wait_random_exponential(multiplier=0.5, max=LONGEST),
            sleep=sleep_using_event(asked),
            stop=stop_when_event_set(asked),
            before_sleep=self._say,
            retry_error_callback=lambda _: (None, None),
        )
        found: tuple[ClientConnection | None, str | bytes | None] = attempts(self._connect)
        if found[0] is not None:
            self._heard = time.monotonic()
            log.info("%s: connected to the feed at %s", self._who, self._host)
        return found

    def _connect(self) -> tuple[ClientConnection, str | bytes | None]:
        self._keep_up()
        cursor = self._place.cursor
        try:
            connection = connect(
                self._asked_for.address(cursor),
                additional_headers=self._asked_for.headers,
                max_size=self._inbox.now.description.max_body,
                logger=LIBRARY,
                close_timeout=STEADY,
                ping_interval=None,  # while nothing is read, no answer to a ping is either
            ).__enter__()  # `run` ends it
        except exceptions.InvalidStatus as problem:
            status = problem.response.status_code
            if status < 500 and status not in _LATER:
                raise self._refusal(f"the feed refuses the connection with status {status}") from None
            raise _Lost(f"status {status}") from None
        except (exceptions.InvalidURI, ssl.SSLCertVerificationError) as problem:
            raise self._refusal(f"the feed cannot be connected to: {problem}") from None
        except (exceptions.WebSocketException, OSError) as problem:
            raise _Lost(str(problem) or type(problem).__name__) from None
        try:
            for frame in self._asked_for.frames(cursor):
                connection.send(frame)
            message = self._first(connection)
            self._place.connected(self._reason)
        except exceptions.ConnectionClosed as problem:
            raise self._closed(problem) from None
        except OSError as problem:
            connection.close()
            raise _Lost(f"the place in it cannot be stored: {problem}") from None
        return connection, message

    def _first(self, connection: ClientConnection) -> str | bytes | None:
        try:
            return connection.recv(timeout=STEADY)
        except TimeoutError:
            return None

    def _closed(self, problem: Any) -> Exception:
        if problem.sent is not None and problem.sent.code == _TOO_BIG:
            return DataError(
                f"a message of the feed is larger than {self._inbox.now.description.max_body} bytes",
                operator=self._who,
                kept="everything before it",
                do="raise max_body of the inbox in the job, and start both",
            )
        return _Lost(str(problem))

    def _refusal(self, what: str) -> ConfigurationError:
        do = "check the address, the certificate, and the secrets of the subscription"
        return ConfigurationError(what, operator=self._who, kept="everything that was kept before", do=do)

    def _say(self, call: RetryCallState) -> None:
        problem = call.outcome.exception() if call.outcome is not None else None
        wait = call.next_action.sleep if call.next_action is not None else 0
        log.warning("%s: the feed at %s: %s; next attempt in %.1f s", self._who, self._host, problem, wait)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _read(self, connection: ClientConnection, message: str | bytes | None, asked: threading.Event) -> None:
        try:
            while not asked.is_set():
                if message is not None:
                    self._take(message, asked)
                    self._heard = time.monotonic()
                self._keep_up()
                try:
                    message = connection.recv(timeout=LOOK_EVERY)
                except TimeoutError:
                    message = None
                    self._ask(connection)
            self._reason = "the gateway did not run"
        except (exceptions.ConnectionClosed, _Lost) as problem:
            lost = self._closed(problem) if isinstance(problem, exceptions.ConnectionClosed) else problem
            self._reason = f"the connection was lost: {lost}"
            if not isinstance(lost, _Lost):
                raise lost from None
            log.warning("%s: the feed at %s: %s", self._who, self._host, self._reason)
        finally:
            self._place.lost(self._complete())

    def _ask(self, connection: ClientConnection) -> None:
        if time.monotonic() - self._heard > QUIET:
            if not connection.ping().wait(QUIET):
                raise _Lost(f"no answer for {2 * QUIET:.0f} s")
            self._heard = time.monotonic()

    def _take(self, message: str | bytes, asked: threading.Event) -> None:
        body = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
        cursor = pointed(body, self._asked_for.cursor) if self._asked_for.cursor else None
        kind = "application/octet-stream" if isinstance(message, bytes) else "application/json"
        at = self._taking = time.time_ns() // 1_000
        try:
            request = request_of(self._inbox.now.description, {"content-type": kind}, body, "", "", at)
        except Rejected:  # such as an answer to the subscription; whether it fits is for the job to say
            request = Request(at, body, content_type=kind)
        waiting = _Waiting(request, cursor)
        if self._hand_over(waiting, asked):
            self._waiting.append(waiting)
            self._taking = 0
        while len(self._waiting) >= MOST_WAITING and not asked.is_set():
            self._keep_up()
            asked.wait(LOOK_EVERY / 10)

    def _hand_over(self, waiting: _Waiting, asked: threading.Event) -> bool:
        """Hand it to the store, however long that takes: meanwhile nothing is read. False if `asked` was set first."""
        while not asked.is_set():
            try:
                self._inbox.now.store.take(waiting.request, waiting.answer)
                return True
            except (Full, Unavailable) as problem:
                log.warning("%s: %s", self._who, problem)
                self._keep_up()
                asked.wait(min(problem.retry_after, QUIET) if isinstance(problem, Full) else STEADY)
        return False

    def _settle(self, *, last: bool = False) -> None:
        """Move the cursor behind the messages that are durable, in the order in which they came."""
        while self._waiting and self._waiting[0].outcome is not None:
            first = self._waiting[0]
            if isinstance(first.outcome, Unavailable):
                if last:
                    return
                again = _Waiting(first.request, first.cursor)
                try:
                    self._inbox.now.store.take(again.request, again.answer)
                except (Full, Unavailable):
                    return
                self._waiting[0] = again
                continue
            self._waiting.popleft()
            self.kept += 1
            self._place.cursor = first.cursor or self._place.cursor

    def _save(self) -> None:
        try:
            self._place.save(self._complete())
        except OSError as problem:  # what comes twice then is what would come twice after a kill
            log.warning("%s: the place in the feed cannot be stored: %s", self._who, problem)

    def _complete(self) -> int:
        """Up to when every message is durable, us since 1970, while the feed is connected."""
        return self._waiting[0].request.at if self._waiting else self._taking or time.time_ns() // 1_000

    def _keep_up(self) -> None:
        self._settle()
        now = time.monotonic()
        if now - self._refreshed > REFRESH_EVERY:
            self._inbox.refresh()
            self._refreshed = now
        if now - self._saved > SAVE_EVERY:
            self._saved = now
            self._save()
        if self._inbox.now.store.wait_sealed(0):
            raise Draining


class Place:
    """Where a feed is: its cursor, and when it was last connected."""

    def __init__(self, inbox: Folder, gateway: str, who: str) -> None:
        self._inbox, self._gateway, self._who = inbox, gateway, who
        self._name = f"{GATEWAYS}/{gateway}/feed.json"
        self.cursor = ""
        self._at = 0  # up to when all was kept, us since 1970; 0: it was never connected
        self._connected = False
        self._stored = ("", 0)

    def load(self) -> None:
        """Read what an earlier process has left."""
        text = self._inbox.find(self._name)
        if text is None:
            return
        try:
            found = json.loads(text)
            self.cursor, self._at = str(found["cursor"]), int(found["at"])
            version = found["version"]
        except (ValueError, KeyError, TypeError):
            version = None
        if version != VERSION:
            what = "is damaged" if version is None else f"has version {version}; this release reads version {VERSION}"
            raise StateError(
                f"the file {self._name} of the feed {what}",
                operator=self._who,
                kept="the inbox is unchanged; nothing was read from the feed",
                do="restore it from a backup; if it is deleted, the feed is read as if for the first time",
            )

    def connected(self, reason: str) -> None:
        """The feed is connected: what was sent since the last time may be missing, unless it has a cursor."""
        now = time.time_ns() // 1_000
        if self._at and not self.cursor:
            self._missed(now, reason)
            log.error("%s: messages of %.1f s may be missing: %s", self._who, (now - self._at) / 1e6, reason)
        self._connected = True
        self.save(now)

    def _missed(self, to: int, reason: str) -> None:
        gap = {"version": VERSION, "from": self._at, "to": to, "reason": reason}
        gaps = self._inbox.below(GAPS)
        own = [one for one in gaps.names() if one.rpartition("-")[0] == self._gateway and writer_of(one) is None]
        newest = max(own) if len(own) >= MOST_GAPS else ""
        if newest and (text := gaps.find(newest)) is not None:
            gap["from"] = json.loads(text)["from"]
        gaps.write(f"{self._gateway}-{to:020}.json", json.dumps(gap), durable=True)
        if newest:
            gaps.delete(newest)

    def lost(self, at: int) -> None:
        """The feed is not connected any more, and what it sent was kept up to a time."""
        if self._connected:
            self._at, self._connected = at, False

    def save(self, at: int) -> None:
        """Store the cursor, and up to when all is kept while it is connected; the next start continues here."""
        if self._connected:
            self._at = at
        wanted = (self.cursor, 0 if self.cursor else self._at)  # with a cursor the time does not matter
        if self._at and self._stored != wanted:
            content = {"version": VERSION, "cursor": self.cursor, "at": self._at}
            self._inbox.write(self._name, json.dumps(content), durable=True)
            self._stored = wanted


def _value(given: str, who: str) -> str:
    return secret(given, who) if given.startswith(("env:", "file:")) else given
