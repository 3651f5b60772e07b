"""Limits of the server: how many requests a client may send, and how many may wait for something at once."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_ext.model.token_bucket import TokenBucket


@dataclass(frozen=True)
class Limits:
    """What the server allows."""

    body_bytes: int = 128 * 1024  # largest body of a request
    rate: float = 500.0  # requests per second of one token, on average
    burst: int = 1_000  # requests of one token that may come at once after a quiet time
    change_rate: float = 10.0  # control events per second of one token, on average: each may make an epoch, and is kept
    change_burst: int = 200  # control events of one token that may come at once after a quiet time
    refused_rate: float = 5.0  # requests per second of one address without a valid token, on average
    refused_burst: int = 50  # the same, at once
    refusal_seconds: float = 1.0  # how long the answer 429 is held back, s: who sends again at once takes no time
    refusals_held: int = 256  # such answers that are held back at once
    waiting: int = 64  # long polls and streams at once
    waiting_each: int = 16  # long polls and streams of one token at once
    body_seconds: float = 30.0  # how long a body may take to arrive, s
    connections: int = 256  # or a quarter of the process's descriptors; another one replaces the oldest not admitted
    header_bytes: int = 32 * 1024  # of a request, with its first line; a connection with larger ones is closed
    header_seconds: float = 10.0  # how long they may take to arrive, s
    unread_seconds: float = 60.0  # how long a client may read none of the answers that wait for it, s


class Buckets:
    """Token buckets by key: each gains `rate` per second, up to `burst`. For one thread."""

    def __init__(self, rate: float, burst: int, most: int = 10_000) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._by_key: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str, now: float | None = None) -> float:
        """Take one; returns 0.0 when there was one, else the time until there is, s."""
        now = time.monotonic() if now is None else now
        bucket = self._by_key.pop(key, None) or TokenBucket(self._rate, now, burst=self._burst, held=self._burst)
        self._by_key[key] = bucket
        if len(self._by_key) > self._most:
            self._by_key.popitem(last=False)
        if not bucket.fill(now):
            return bucket.wait_s
        bucket.use(1)
        return 0.0


class Slots:
    """Places for requests that wait. For one thread."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._taken: Counter[str] = Counter()

    def take(self, key: str) -> bool:
        """Take a slot; False if all are taken."""
        if self._taken.total() >= self._most or self._taken[key] >= self._each:
            return False
        self._taken[key] += 1
        return True

    def give(self, key: str) -> None:
        """Give a place back."""
        self._taken[key] -= 1
        if self._taken[key] <= 0:
            del self._taken[key]

    @contextmanager
    def taken(self, key: str) -> Iterator[bool]:
        """Hold a slot; False if all are taken."""
        got = self.take(key)
        try:
            yield got
        finally:
            if got:
                self.give(key)


def retry_after(seconds: float) -> str:
    """The header's value: whole seconds, at least 1."""
    return str(max(1, math.ceil(seconds)))
