"""The log of an exchange in a topic of one partition: what a process has read of it; `order.py` has the rules."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from secrets import token_hex
from typing import Final

from spark_ext.errors import StateError
from spark_ext.exchange.contract import Decide, ExchangeLog
from spark_ext.exchange.entries import Entry, LogState, not_empty, overtaken
from spark_ext.exchange.kafka.order import LogOrder, Record
from spark_ext.exchange.kafka.topics import TopicNames, Topics

SPAN: Final = 100  # entries between two stored states
ROUNDS: Final = 40  # how often an entry is decided again, before the caller's back-off takes over


class KafkaLog(ExchangeLog):
    """See the module. The threads of a process may share one."""

    def __init__(self, topics: Topics, who: str, span: int = SPAN) -> None:
        self._topics, self._who, self._span = topics, who, span
        self._one = threading.RLock()
        self._forget(None)

    def _forget(self, names: TopicNames | None) -> None:
        self._names, self._order, self._at = names, LogOrder(self._who, whole=True), -1

    def look(self) -> LogState:
        """See `ExchangeLog.look`."""
        return self.order().state

    def entry(self, number: int) -> Entry | None:
        """See `ExchangeLog.entry`."""
        with self._one:
            if number > self._order.state.last:
                self.look()
            return self._order.entries.get(number)

    def order(self) -> LogOrder:
        """What all records come to now."""
        with self._one:
            names = self._topics.found()
            if names != self._names:  # it was made or put back, or is gone
                if names is not None:
                    self._topics.check(names)
                self._forget(names)
            if names is None:
                return self._order
            low, high = self._topics.ends(names.log, 0)
            if self._at > high:
                raise self._shorter(high)
            if self._at < low or self._at < 0:
                self._order, self._at = LogOrder(self._who, whole=low == 0), low
            self._read(high)
            self._order.check()
            return self._order

    def _read(self, end: int) -> str:
        """Read up to an offset; the id of the last record if it counts."""
        assert self._names is not None
        last = ""
        if self._at < end:
            for offset, _, value in self._topics.read(self._names.log, 0, self._at, end):
                record = Record.from_bytes(value, self._who)
                last = record.id if self._order.take(offset, record) else ""
                self._at = offset + 1
        return last

    def append(self, decide: Decide, writer: str) -> LogState | None:
        """See `ExchangeLog.append`."""
        with self._one:
            for _ in range(ROUNDS):
                state = self.look()
                entry = decide(state)
                if entry is None:
                    return None
                names = self._names or self._topics.required()
                proposal = Record("entry", state.last + 1, token_hex(8), entry.to_json())
                counts = self._send(names, proposal)
                if self._topics.found() != names:
                    continue  # another exchange is in its place, and what was written is not in that one
                self._topics.check(names)
                if counts:
                    if (proposal.number + 1) % self._span == 0:
                        self.store_state()
                    return self._order.state
        raise overtaken(ROUNDS, self._who)

    def _send(self, names: TopicNames, record: Record) -> bool:
        """Write a record and read on to it; whether it counts."""
        (offset,) = self._topics.send(names.log, 0, [(record.kind.encode(), record.to_bytes())])
        return self._read(offset + 1) == record.id

    def store_state(self) -> None:
        """Store the state of the last look, from which others may begin."""
        with self._one:
            state = self._order.state
            if self._names is not None and self._order.newest_stored < state.last:
                self._send(self._names, Record("state", state.last, token_hex(8), state.to_json()))

    def seed(self, state: LogState, entries: Mapping[int, Entry], writer: str) -> None:
        """See `ExchangeLog.seed`."""
        with self._one:
            names, last = self._topics.required(), max(entries)
            there = self.look().last
            if there >= 0:
                if there < last or self.entry(last) not in (None, entries[last]):
                    raise not_empty(there, self._who)
                return
            id = token_hex(8)
            records = [Record("seed", number, id, entries[number].to_json()) for number in sorted(entries)]
            records.append(Record("seeded", last, id, state.to_json()))
            self._topics.send(names.log, 0, [(one.kind.encode(), one.to_bytes()) for one in records])

    def _shorter(self, high: int) -> StateError:
        return StateError(
            f"the topic of its log ends at offset {high}, and was read up to {self._at}: its newest records are lost",
            operator=self._who,
            kept="nothing was read or written",
            do="restore the job from a savepoint; see that no out-of-sync replica may become the leader of the topic",
        )
