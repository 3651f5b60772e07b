"""Reads from a broker's disk, as it writes it, what has become of transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ONGOING: Final = 1
DECIDED: Final = frozenset({2, 3})  # to be committed or aborted, and the end is not in all partitions yet
COMMITTED: Final = 4
ABORTED: Final = 5
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_UNCOUNTED: Final = 12  # bytes before those that a batch's length counts
_STATE: Final = struct.Struct(">hqhib")
"""Version, producer id, its epoch, time-out, state: what a value of `__transaction_state` begins with."""


def states(data: Path) -> dict[str, int]:
    """The last state of each transactional id in a broker's `log.dirs`."""
    found: dict[str, int] = {}
    for log in sorted(data.glob("__transaction_state-*/*.log")):
        for key, value in _records(log.read_bytes()):
            if value is not None:
                found[key[4:].decode()] = _STATE.unpack_from(value)[-1]
    return found


def settled(data: Path) -> bool:
    """Whether the end of each decided transaction is in all of its partitions, so that readers see it.

    Kafka answers a commit when it is decided, which is before that.
    """
    return DECIDED.isdisjoint(states(data).values())


def _records(raw: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of all records, in order; batches are not compressed."""
    at = 0
    while at + _BATCH.size <= len(raw):
        length, count = struct.unpack_from(">i", raw, at + 8)[0], _BATCH.unpack_from(raw, at)[-1]
        if length <= 0 or at + _UNCOUNTED + length > len(raw):
            return  # the empty rest of the file, or a batch that was not written to its end
        place = at + _BATCH.size
        for _ in range(count):
            size, place = _varint(raw, place)
            end, place = place + size, place + 1
            for _ in range(2):  # the differences to the batch's time and offset
                _, place = _varint(raw, place)
            key, place = _bytes(raw, place)
            value, place = _bytes(raw, place)
            yield key or b"", value
            place = end
        at += _UNCOUNTED + length


def _bytes(raw: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(raw, at)
    return (None, at) if length < 0 else (raw[at : at + length], at + length)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = raw[at]
        found, shift, at = found | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
