"""What a gateway keeps: requests from their arrival until they are in its log, and the answers that depend on it.

    take ─> waiting ─> a group, one sync ─> receipts ─> a segment and an entry, each second or 8 MB, or earlier

Two threads do the work. One commits what is waiting, a group at a time. The other one makes segments, deletes what is
released, writes the lease, and looks for a drain.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from spark_ext.errors import FencedError
from spark_ext.ingest.channel import SEGMENT, OwnedChannel
from spark_ext.ingest.description import DRAIN, InboxDescription
from spark_ext.ingest.log import LEASE, Lease, lease_of
from spark_ext.ingest.opening import open_channel
from spark_ext.ingest.opening import seal as seal
from spark_ext.ingest.records import Receipt, Request
from spark_ext.masking import logger
from spark_ext.storage import Folder, local_path

log = logger("spark_ext.ingest")

LINGER: Final = 0.002  # how long the first request of a group waits for others, s
GROUP: Final = 4 << 20  # bytes of a group
TICK: Final = 1.0  # between two segments, s; a quarter of it in a local folder whose reader keeps up
LATE: Final = 10.0  # how old the oldest event is if the reader does not, s
ASK: Final = 0.1  # between two looks whether the job asks for what is kept in memory, s
LEASE_EVERY: Final = 5.0  # s
LEASES: Final = 12  # whose waits are told: those of a minute
_WAITS: Final = 24  # classes of them; the last one begins at 70 minutes

RECENT: Final = 50_000  # requests in a generation; the current one and the one before it are remembered

_REQUEST: Final = 256  # bytes that a request takes beside its body, about
_RELEASES: Final = 20  # from which the rate is measured
_UNKNOWN: Final = 5  # s until a sender may try again if nothing has been released yet
_LONGEST: Final = 60


class Full(Exception):
    """The jobs have not read what is there, and more than `max_bytes` is not kept."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the inbox is full; try again in {retry_after} s")
        self.retry_after = retry_after  # s


class Forgotten(Exception):
    """Whether the number of a producer was seen is not known any more: it may be a repeat, or late."""

    def __init__(self, number: int, floor: int) -> None:
        super().__init__(f"the producer's number {number} is below {floor}, and many gaps are behind that")


class Unavailable(Exception):
    """Nothing can be kept now; the text says why."""


class Draining(Exception):
    """The job ends, and takes nothing more."""

    def __init__(self) -> None:
        super().__init__("the job of this inbox ends")


Answer: TypeAlias = Callable[[Receipt | Unavailable], None]
"""Tells who waits what became of a request, from any thread; after the first one it counts no more."""


@dataclass(frozen=True)
class StoreFigures:
    """What a gateway has done since its log began, and what it holds."""

    accepted: int  # events
    acknowledged: int
    bytes_held: int  # that no job has read
    max_bytes: int
    oldest_unread_s: float  # age of the oldest event that no job has read
    draining: bool
    rejected: Mapping[str, int]  # requests, by status


class _Waiting(NamedTuple):
    request: Request
    answer: Answer
    size: int


class GatewayStore:
    """The events of a gateway. `take` may be called from any thread.

    An inbox whose acknowledgement is `table` resolves receipts when its job has released the events; one that persists
    with checkpoints keeps requests in memory until the job asks for them.
    """

    def __init__(self, description: InboxDescription, inbox: Folder, wal: Path, gateway: str) -> None:
        self._description, self._inbox, self._wal, self._gateway = description, inbox, wal, gateway
        self._level, self._most = description.ack, description.max_bytes
        self._held, self._local = description.persist == "checkpoint", local_path(inbox.uri) is not None
        self._lock = threading.Lock()
        self._refusal: Callable[[], Exception] | None = lambda: Unavailable("the gateway has not started yet")
        self._channel: OwnedChannel | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._unread: deque[tuple[int, _Waiting, Receipt]] = deque()  # with the sequence behind their events
        self._wake, self._enough, self._due, self._sealed = (threading.Event() for _ in range(4))
        self._ending = self._closing = self._fenced = self._failing = False
        self._threads: list[threading.Thread] = []
        self._accepted = self._acknowledged = 0
        self._rejected = Counter[str]()
        self._waits = deque([[0] * _WAITS], maxlen=LEASES)
        self._rate, self._recent = _Rate(), _Recent(description.dedup_window * 1000)
        self._leased = float("-inf")
        self._answered = 0  # the last request of the job for what waits in memory

    # -- for the gateway ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover what an earlier process has acknowledged, and accept requests.

        Raises:
            SparkExtError: this process may not own the gateway's log, or the write-ahead log is damaged.
            OSError: the storage failed.
        """
        draining = self._inbox.has(DRAIN)
        channel = open_channel(self._description, self._inbox, self._wal, self._gateway, begin=not draining)
        if channel is None:
            self._refusal = Draining
            self._sealed.set()
            return
        self._continue_counting(channel)
        self._channel = channel
        # Asked for again once the job can see the channel: it looks for channels after it has asked for the drain.
        self._refusal = Draining if self._inbox.has(DRAIN) else None
        for work in self._commit_groups, self._upkeep:
            thread = threading.Thread(target=work, args=(channel,), name=f"gateway-{self._gateway}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, request: Request, answer: Answer) -> None:
        """Take a request. The receipt comes when its events are as safe as the inbox promises.

        Raises:
            Full, Forgotten, Unavailable, Draining: it is not taken. The answer may be an `Unavailable` as well.
        """
        channel, size = self._channel, len(request.body) + _REQUEST
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            assert channel is not None
            numbers = channel.producers.get(request.producer) if request.producer else None
            if numbers is not None and request.first < numbers.floor:
                raise Forgotten(request.first, numbers.floor)
            held = channel.held + self._waiting_bytes + size
            if held > self._most:
                raise Full(self._rate.seconds(held - self._most))
            self._waiting.append(_Waiting(request, answer, size))
            self._waiting_bytes += size
            self._accepted += request.events
            enough = self._waiting_bytes >= GROUP
        if not (self._held or self._wake.is_set()):
            self._wake.set()
        if enough:
            self._enough.set()
        if self._level == "none":
            answer(_receipt("none", request, 0, ""))

    def reject(self, status: int) -> None:
        """Count a request that was answered with a refusal; for one thread."""
        self._rejected[str(status)] += 1

    def _continue_counting(self, channel: OwnedChannel) -> None:
        before = lease_of(channel.folder)
        self._accepted = self._acknowledged = channel.committed
        if before is not None:
            # What was accepted and not kept, or acknowledged before it was, is in no log.
            self._accepted = max(before.accepted, self._accepted)
            self._acknowledged = max(before.acknowledged, self._acknowledged)
            self._rejected.update(before.rejected)

    def figures(self) -> StoreFigures:
        """What it has done so far."""
        channel = self._channel
        oldest = channel.oldest() if channel is not None else 0
        return StoreFigures(
            self._accepted,
            self._acknowledged,
            (channel.held if channel is not None else 0) + self._waiting_bytes,
            self._most,
            max(0.0, time.time() - oldest / 1e6) if oldest else 0.0,
            self._refusal is Draining,
            dict(self._rejected),
        )

    @property
    def fenced(self) -> bool:
        """Whether another process owns the gateway's log: this one keeps nothing more."""
        return self._fenced

    def committed(self, token: str) -> bool | None:
        """Whether the events of a receipt are in the table; None for a token of another gateway."""
        name, _, sequence = token.rpartition(":")
        channel = self._channel
        if channel is None or name != channel.name or not sequence.isdigit() or int(sequence) >= channel.committed:
            return None
        return int(sequence) < channel.read

    def producer(self, name: str) -> tuple[int | None, int | None]:
        """The newest numbers of a producer that are acknowledged, and that are in the table; None where not known."""
        channel = self._channel
        if channel is None:
            return None, None
        seen = channel.producers.get(name)
        return None if seen is None else seen.bounds[-1] - 1, channel.producers_read.get(name)

    def wait_sealed(self, timeout: float | None) -> bool:
        """Wait until a drain has sealed the gateway's log; returns whether it is."""
        return self._sealed.wait(timeout)

    def close(self) -> None:
        """Refuse requests, and bring what was taken into the log; the next start continues it."""
        self._refuse(lambda: Unavailable("the gateway stops"))
        self._closing = True
        self._end_commits()
        self._due.set()
        for thread in self._threads:
            thread.join()
        for _, one, _ in self._unread:
            one.answer(Unavailable("the gateway stops before the job has committed the events"))

    # -- groups -------------------------------------------------------------------------------------------------------

    def _commit_groups(self, channel: OwnedChannel) -> None:
        while not (self._ending and not self._waiting):
            self._wake.wait()
            if not self._ending:
                self._enough.wait(LINGER)
            self._commit_group(channel)
            if channel.active_bytes >= SEGMENT:
                self._due.set()

    def _commit_group(self, channel: OwnedChannel) -> None:
        group, size = self._group()
        if group:
            try:
                first = channel.commit([one.request for one in group])
            except Exception as problem:
                self._failed(problem, group)
            else:
                self._receipts(channel, group, first)
            with self._lock:
                self._waiting_bytes -= size

    def _group(self) -> tuple[list[_Waiting], int]:
        group: list[_Waiting] = []
        size, waiting = 0, self._waiting
        with self._lock:
            self._wake.clear()
            self._enough.clear()
            while waiting and (size < GROUP or self._held):
                one = waiting.popleft()
                size += one.size
                group.append(one)
            if waiting or self._ending:
                self._wake.set()
        return group, size

    def _receipts(self, channel: OwnedChannel, group: Sequence[_Waiting], first: int) -> None:
        level, name = self._level, channel.name
        for one in group:
            request = one.request
            first += request.events
            receipt = _receipt(level, request, self._recent.repeats(request), f"{name}:{first - 1}")
            if level == "table":
                self._unread.append((first, one, receipt))
            elif level != "none":
                self._resolve(one, receipt)
            self._acknowledged += request.events

    def _failed(self, problem: Exception, group: Sequence[_Waiting]) -> None:
        self._fenced, self._failing = self._fenced or isinstance(problem, FencedError), True
        reason = problem.what if isinstance(problem, FencedError) else f"requests cannot be kept: {problem}"
        log.error("gateway '%s' of %s: %s", self._gateway, self._description.operator, reason)
        self._refuse(lambda: Unavailable(reason))
        for one in group:
            one.answer(Unavailable(reason))

    def _refuse(self, refusal: Callable[[], Exception] | None) -> None:
        with self._lock:
            final = self._refusal is Draining or self._ending or self._closing or (self._fenced and refusal is None)
            self._refusal = self._refusal if final else refusal

    def _end_commits(self) -> None:
        with self._lock:
            self._ending = True
            self._refusal = self._refusal or (lambda: Unavailable("the gateway stops"))
            self._wake.set()
            self._enough.set()
        if self._threads:
            self._threads[0].join()

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def _upkeep(self, channel: OwnedChannel) -> None:
        try:
            while not (self._closing or self._fenced):
                self._turn(channel)
                self._pause(channel)
            self._end_commits()
            self._do(channel.settle)
            self._do(lambda: self._write_lease(channel, "sealed" if self._sealed.is_set() else "closed"))
        finally:
            channel.close()

    def _pause(self, channel: OwnedChannel) -> None:
        late = not self._local or 0 < channel.oldest() < (time.time() - LATE) * 1e6
        end = time.monotonic() + (TICK if late else TICK / 4)
        while (left := end - time.monotonic()) > 0 and not self._due.wait(min(left, ASK) if self._held else left):
            if self._held:
                self._do(lambda: self._answer(channel))
        self._due.clear()

    def _turn(self, channel: OwnedChannel) -> None:
        if not self._sealed.is_set():
            self._do(lambda: self._roll(channel))
        self._do(lambda: self._release(channel))
        self._do(lambda: self._look_for_drain(channel))
        self._do(lambda: self._keep_lease(channel))

    def _do(self, work: Callable[[], None]) -> None:
        """Do one thing, unless another process owns the channel; its failure does not keep others from being done."""
        if self._fenced:
            return
        try:
            work()
        except FencedError as problem:
            self._failed(problem, ())
        except Exception as problem:
            log.warning("gateway '%s' of %s: %s", self._gateway, self._description.operator, problem)

    def _roll(self, channel: OwnedChannel) -> None:
        if channel.broken:
            channel.mend()
        if self._failing:  # which is said after it is broken
            self._failing = False
            self._refuse(None)
        channel.settle()

    def _answer(self, channel: OwnedChannel) -> None:
        """Write what waits in memory, if the job has asked for it."""
        number = channel.log.requested()
        if number > self._answered:
            self._commit_group(channel)
            if not channel.broken:
                channel.log.answer(number)
                self._answered = number

    def _release(self, channel: OwnedChannel) -> None:
        before = channel.held
        channel.release()
        self._rate.add(before - channel.held)
        while self._unread and self._unread[0][0] <= channel.read:
            _, one, receipt = self._unread.popleft()
            self._resolve(one, receipt)

    def _look_for_drain(self, channel: OwnedChannel) -> None:
        if self._sealed.is_set() or not self._inbox.has(DRAIN):
            return
        self._refuse(Draining)
        self._end_commits()
        channel.mend()
        channel.settle()
        channel.seal()
        self._sealed.set()
        self._write_lease(channel, "sealed")

    def _keep_lease(self, channel: OwnedChannel) -> None:
        if time.monotonic() - self._leased >= LEASE_EVERY:
            word = "accepting" if self._refusal is None else "unavailable"
            self._write_lease(channel, "sealed" if self._sealed.is_set() else word)

    def _write_lease(self, channel: OwnedChannel, state: str) -> None:
        figures, now = self.figures(), time.time_ns() // 1_000_000
        lease = Lease(
            channel.state.incarnation,
            channel.state.start,
            now,
            socket.gethostname(),
            os.getpid(),
            state,
            figures.accepted,
            figures.acknowledged,
            figures.bytes_held,
            figures.max_bytes,
            figures.oldest_unread_s,
            figures.rejected,
            [sum(one) for one in zip(*self._waits, strict=True)],
        )
        self._waits.append([0] * _WAITS)
        channel.folder.write(LEASE, lease.to_json())
        self._leased = time.monotonic()

    def _resolve(self, waiting: _Waiting, receipt: Receipt) -> None:
        waited = max(0, time.time_ns() // 1_000 - waiting.request.at) // 1_000
        self._waits[-1][min(waited.bit_length(), _WAITS - 1)] += 1
        waiting.answer(receipt)


def _receipt(level: str, request: Request, repeats: int, token: str) -> Receipt:
    return Receipt(level, request.events, repeats, token, bool(request.scheme))


class _Recent:
    """Requests that were committed lately. They are stored again all the same: the job decides, over all gateways."""

    def __init__(self, window: int) -> None:
        self._window = window  # us
        self._newer, self._older = dict[int, int](), dict[int, int]()  # when each was received, by its hash

    def repeats(self, request: Request) -> int:
        """How many events of a request were in an earlier one; it is known from here on."""
        if not request.scheme:
            return 0
        key = hash((request.scheme, request.identity, request.producer, request.first, request.body))
        before = self._newer.get(key, self._older.get(key))
        if before is not None and request.at - before <= self._window:
            return request.events
        if len(self._newer) >= RECENT:
            self._newer, self._older = {}, self._newer
        self._newer[key] = request.at
        return 0


class _Rate:
    """How fast jobs take what a gateway holds."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, size: int) -> None:
        """Count bytes that were released just now."""
        if size > 0:
            self._taken.append((time.monotonic(), size))
            while len(self._taken) > _RELEASES:
                self._taken.popleft()

    def seconds(self, size: int) -> int:
        """After how many seconds this many bytes are released, if it continues like this."""
        (since, _), *later = self._taken
        rate = sum(taken for _, taken in later) / max(1.0, time.monotonic() - since)
        return min(_LONGEST, max(1, ceil(size / rate))) if rate else _UNKNOWN
