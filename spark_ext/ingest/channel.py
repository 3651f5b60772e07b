"""A channel of an inbox that this process owns: what it makes durable, and how that gets into the channel's log.

A channel is the log of one gateway, from its first start until it is sealed. A gateway that starts again after that
gets another channel, `g1~2` after `g1`, because a job that has read a channel to its end does not look into it again.

A process that opens a channel claims its log first, and reads the write-ahead log then. So what an older process has
synced before the claim is recovered, and what it syncs after the claim it does not acknowledge: it looks at the log
after each sync.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ingest.forms import explode
from spark_ext.ingest.log import Entry, EntryKind, InboxLog, LogState
from spark_ext.ingest.records import Request
from spark_ext.ingest.seen import SeenNumbers
from spark_ext.ingest.wal import FILES, WriteAheadLog, framed
from spark_ext.storage import Folder, GrowingFile

SEGMENT: Final = 8 << 20
"""At how many bytes in the write-ahead log a segment is made of them, earlier than after a second."""

PRODUCERS: Final = 1_000
"""The numbers of how many producers are known, and the newest ones are in the log."""


@dataclass
class _Closed:
    """Requests that wait for their segment."""

    number: int  # of their file in the write-ahead log; 0 without one
    size: int
    requests: list[Request] | None  # None: they have to be read from the file
    trusted: bool  # whether the file can be read again, because no write to it has failed


class OwnedChannel:
    """See the module. Once it is open, one thread may `commit` while another one calls all other methods."""

    def __init__(
        self, folder: Folder, name: str, inbox: str, ahead: WriteAheadLog | None, who: str, synced: bool
    ) -> None:
        self.folder, self.name = folder, name
        self.log = InboxLog(folder, who)
        self.state = LogState()
        self.broken = False
        """Whether a commit has failed: nothing is committed until `mend` has succeeded."""
        self.committed = 0
        """Sequence of the next event."""
        self.read = 0
        """Sequence of the first event that no reader has released, approximately: whole entries are."""
        self.producers = OrderedDict[str, SeenNumbers]()
        """The committed numbers of producers that number their events; of earlier processes the newest one alone."""
        self.producers_read: Mapping[str, int] = {}
        """The newest numbers that are released; empty until a release that this process has seen."""
        self._inbox, self._ahead, self._who, self._synced = inbox, ahead, who, synced
        self._writing = threading.Lock()
        self._active: GrowingFile | None = None
        self._file = 0  # its number
        self._requests: list[Request] = []  # those in the active file
        self._closed: deque[_Closed] = deque()
        self._below = -1  # entries below are deleted
        self._oldest = 0  # when the first event that is not released was received, us; 0: none is in a segment
        # Bytes, each counted by one thread: appended, the same up to the active file, gone from there, and released.
        self._appended, self._before, self._gone, self._read_bytes = 0, 0, 0, 0

    def claim(self, *, accept_loss: bool = False) -> None:
        """Become the owner: older ones acknowledge nothing from here on."""
        before = self.log.look()
        start, at = secrets.token_hex(8), time.time_ns() // 1_000_000
        if self._ahead is not None:
            if not (accept_loss or self._ahead.claimed(before.start)):
                raise self._copied("the gateway's log was not claimed last by a process with this write-ahead log")
            self._ahead.claim(before.start, start)
        claim = Entry(EntryKind.CLAIM, start, before.incarnation + 1, at, before.total, before.stored, before.wal)
        reach(FailPoint.INGEST_BEFORE_CLAIM)
        self.state = self.log.append(replace(claim, producers=before.producers), before)
        reach(FailPoint.INGEST_CLAIMED)
        if self._ahead is not None:
            self._ahead.claim(start)

    def recover(self, *, accept_loss: bool = False) -> None:
        """Bring what is in the write-ahead log into the log, and begin a new file."""
        if self._ahead is not None:
            found = self._ahead.numbers()
            self._refuse_copy(max(found, default=0), accept_loss)
            first = self.state.incarnation * FILES
            self._file = first + 1
            self._active = self._ahead.create(self._file)
            tail = [number for number in found if self.state.wal < number < first]
            read = self._ahead.read(tail, self.state.total, synced=self._synced and not accept_loss)
            for wal, requests in _last_under(first, read):
                self._write(requests, wal)
                reach(FailPoint.INGEST_ENTRY)
            for number in found:
                self._ahead.delete(number)
        self.committed = self.state.total
        self.producers.update({name: SeenNumbers(0, last, last + 1) for name, last in self.state.producers.items()})
        self._measure(self.log.released())

    def _refuse_copy(self, newest: int, accept_loss: bool) -> None:
        if self.state.wal and newest <= self.state.wal and not accept_loss:
            raise self._copied(
                f"the gateway's log contains file {self.state.wal} of its write-ahead log, which ends with file "
                f"{newest} here"
            )

    def _copied(self, what: str) -> StateError:
        return StateError(
            f"{what}: one of them is a copy, or was restored from a backup",
            operator=self._who,
            kept="everything is unchanged; nothing was acknowledged",
            do="start the gateway with the folder and the volume that it used last; if one is lost, accept the loss: "
            "spark-ext ingest seal --accept-loss",
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    def commit(self, requests: Sequence[Request]) -> int:
        """Make requests durable, in the write-ahead log, or without one in a segment.

        Returns:
            The sequence of the first event.

        Raises:
            OSError: it failed, and `broken` is true. They may be found to be durable all the same.
            FencedError: another process owns the channel.
        """
        with self._writing:
            if self.broken:
                raise OSError("an earlier write has failed")
            first = self.committed
            try:
                if self._ahead is None:
                    self._closed.append(_Closed(0, 0, list(requests), False))
                    self.roll()
                else:
                    self._append(first, requests)
            except BaseException:
                self.broken = True
                raise
            self.committed = first + sum([one.events for one in requests])
            for one in requests:
                if one.producer:
                    self._number(one)
            return first

    def _number(self, request: Request) -> None:
        name, end = request.producer, request.first + request.events
        if (seen := self.producers.get(name)) is not None:
            seen.add(request.first, end)
            self.producers.move_to_end(name)
        else:
            self.producers[name] = SeenNumbers(0, request.first, end)
            if len(self.producers) > PRODUCERS:
                self.producers.popitem(last=False)

    def _append(self, first: int, requests: Sequence[Request]) -> None:
        assert self._active is not None
        content = framed(first, [one.encode() for one in requests])
        reach(FailPoint.INGEST_BEFORE_SYNC)
        self._active.append(content, sync=self._synced)
        reach(FailPoint.INGEST_SYNCED)
        state = self.state
        while self.log.overtaken(state):
            if self.state is state:
                raise self.log.fenced(state.incarnation)
            state = self.state  # this process itself has added to the log, and deleted what was released
        self._requests += requests
        self._appended += len(content)

    def switch(self) -> None:
        """Let what is in the active file of the write-ahead log get into a segment, and begin a new file."""
        if self._ahead is None or not (self._requests or self.broken):
            return
        # The next number may be taken: the folder could not be synced when the file was made. Higher ones may be those
        # of a newer owner.
        taken = self._ahead.numbers()
        number = next(number for number in count(self._file + 1) if number not in taken)
        file = self._ahead.create(number)
        with self._writing:
            closed, self._active = self._active, file
            size = self._appended - self._before
            self._closed.append(_Closed(self._file, size, self._requests, not self.broken))
            # A failed group in the closed file is passed over, because the new one begins with its sequence.
            self._file, self._requests, self._before, self.broken = number, [], self._appended, False
        if closed is not None:
            closed.close()

    def mend(self) -> None:
        """Make it possible to commit again after a failure, if what has failed works again."""
        if self._ahead is not None:
            self.switch()
        elif self.broken:
            with self._writing:
                while self.roll():
                    pass
                self.committed, self.broken = self.state.total, False

    def roll(self) -> bool:
        """Make a segment and an entry of the oldest requests that wait for it. Returns whether there were any."""
        if not self._closed:
            return False
        oldest = self._closed[0]
        try:
            requests = oldest.requests
            if requests is None:
                assert self._ahead is not None
                (requests,) = (found for _, found in self._ahead.read([oldest.number], self.state.total, synced=False))
            if requests:
                self._write(requests, oldest.number or self.state.wal)
        except OSError:
            # It may take long, and memory is not for that.
            for one in self._closed:
                one.requests = None if one.trusted and one.requests else one.requests
            raise
        self._closed.popleft()
        self._gone += oldest.size
        reach(FailPoint.INGEST_ENTRY)
        if self._ahead is not None:
            self._ahead.delete(oldest.number)
        return True

    def _write(self, requests: Sequence[Request], wal: int) -> None:
        state = self.state
        batch = explode(requests, self._inbox, state.total)
        rows, expected = batch.num_rows, sum(one.events for one in requests)
        if rows != expected:
            raise StateError(
                f"requests with {expected} events from sequence {state.total} on have {rows} rows",
                operator=self._who,
                kept="they are in the write-ahead log",
                do="report this as a bug of spark-ext",
            )
        newest = _newest(requests, state.producers)
        others = [(name, number) for name, number in state.producers.items() if name not in newest]
        reach(FailPoint.INGEST_BEFORE_SEGMENT)
        name, size = self.log.write_segment(state.last + 1, state.start, batch)
        entry = Entry(
            EntryKind.SEGMENT,
            state.start,
            state.incarnation,
            at=requests[-1].at // 1000,  # the same in each attempt
            total=state.total + rows,
            stored=state.stored + size,
            wal=wal,
            name=name,
            rows=rows,
            bytes=size,
            first_at=requests[0].at,
            last_at=requests[-1].at,
            producers=dict([*others, *newest.items()][-PRODUCERS:]),
        )
        reach(FailPoint.INGEST_BEFORE_ENTRY)
        self.state = self.log.append(entry, state)
        self._oldest = self._oldest or entry.first_at

    # -- what readers have done ---------------------------------------------------------------------------------------

    def release(self) -> None:
        """Delete what no reader needs again."""
        self._measure(self.log.released())
        kept = self.log.kept()
        if kept > self._below:
            reach(FailPoint.INGEST_BEFORE_DELETING)
            self.log.delete(kept)
            reach(FailPoint.INGEST_DELETED)
            self._below = kept

    def _measure(self, below: int) -> None:
        state = self.state
        for number in range(below, state.last + 1):
            entry = self.log.entry(number)
            if entry is not None and entry.rows:
                self.read, self._read_bytes = entry.first, entry.stored - entry.bytes
                self._oldest = entry.first_at
                before = self.log.entry(number - 1)
                self.producers_read = self.producers_read if before is None else before.producers
                return
        self.read, self._read_bytes, self._oldest = state.total, state.stored, 0
        self.producers_read = state.producers

    @property
    def held(self) -> int:
        """Bytes of events that are not released, in the write-ahead log and in segments."""
        return self._appended - self._gone + self.state.stored - self._read_bytes

    @property
    def active_bytes(self) -> int:
        """Bytes in the active file of the write-ahead log."""
        return self._appended - self._before

    def oldest(self) -> int:
        """When the oldest event that is not released was received, us since 1970 UTC; 0: none."""
        waiting = (*(one.requests for one in (*self._closed,)), self._requests)
        return self._oldest or next((requests[0].at for requests in waiting if requests), 0)

    # -- the end ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring all that is committed into the log."""
        try:
            self.mend()
        finally:  # a full disk has room again once segments are made of what is closed
            while self._ahead is not None and self.roll():
                pass

    def seal(self, *, lost: bool = False) -> None:
        """End the log, after `settle`; `lost`: what was acknowledged after its last row may be lost."""
        state = self.state
        entry = Entry(
            EntryKind.SEAL,
            state.start,
            state.incarnation,
            total=state.total,
            stored=state.stored,
            wal=state.wal,
            producers=state.producers,
            lost_after=state.total - 1 if lost else None,
        )
        reach(FailPoint.INGEST_BEFORE_SEAL)
        self.state = self.log.append(entry, state)
        reach(FailPoint.INGEST_SEALED)

    def close(self) -> None:
        """Let another process open it."""
        if self._active is not None:
            self._active.close()
        if self._ahead is not None:
            self._ahead.close()


def _newest(requests: Sequence[Request], before: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in requests:
        if one.producer:
            known = found.get(one.producer, before.get(one.producer, 0))
            found[one.producer] = max(known, one.first + one.events - 1)
    return found


def _last_under(number: int, read: Iterator[tuple[int, list[Request]]]) -> Iterator[tuple[int, list[Request]]]:
    """The requests of files; the last ones under a number that is above all files that an older owner may still add."""
    last: list[Request] | None = None
    under = number
    for found, requests in read:
        if last is not None:
            yield under, last
        under, last = found, requests
    if last is not None:
        yield number, last
