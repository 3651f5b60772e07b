"""The write-ahead log of a gateway: requests on a local volume, from their acknowledgement until a segment has them.

    owner.json                  the gateway that it belongs to, and which process has claimed its log
    00000000010000000003.wal    requests; see `scan`

Requests are written in groups, one write and one sync each, and a group is whole or does not count. A group is written
only after the one before it was synced. So a bad group at the end of a file was never acknowledged, as a crash or a
power failure leaves it, but one with a good group behind it was, and is damage that nothing may pass over.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_ext.errors import JobRunningError, StateError
from spark_ext.ingest.description import VERSION
from spark_ext.ingest.records import Request
from spark_ext.storage import GrowingFile, LocalFolder

OWNER: Final = "owner.json"
FILES: Final = 10**10
"""How many files each incarnation may have: the numbers of a newer one are higher than all of the older ones."""

_MAGIC: Final = b"\xf7WG\x01"
_HEAD: Final = struct.Struct(">4sIIQ")  # magic, length of the content, CRC-32 of the rest, sequence of the first event
_LENGTH: Final = struct.Struct(">I")
_CRC: Final = struct.Struct(">IQ")


def framed(sequence: int, requests: Sequence[bytes]) -> bytes:
    """A group of encoded requests, as a file has it."""
    parts: list[bytes] = []
    for one in requests:
        parts += _LENGTH.pack(len(one)), one
    content = b"".join(parts)
    return _HEAD.pack(_MAGIC, len(content), _crc(sequence, content), sequence) + content


@dataclass(frozen=True)
class Scan:
    """What a file has."""

    groups: tuple[tuple[int, tuple[bytes, ...]], ...]  # sequences of the first event, and encoded requests
    end: int  # bytes before the first bad group
    torn: bool = False  # whether other bytes than a group follow there
    damaged: bool = False  # whether a good group follows behind them, so that they were one


def scan(content: bytes) -> Scan:
    """Read all good groups of a file."""
    groups: list[tuple[int, tuple[bytes, ...]]] = []
    view, place, end, damaged = memoryview(content), 0, 0, False
    while place >= 0:
        while (found := _group(view, place)) is not None:
            sequence, body = found
            groups.append((sequence, tuple(_requests(body))))
            damaged = damaged or place > end
            place += _HEAD.size + len(body)
            end = end if damaged else place
        place = content.find(_MAGIC, place + 1)
    return Scan(tuple(groups), end, end < len(content), damaged)


def _group(view: memoryview, at: int) -> tuple[int, memoryview] | None:
    if len(view) - at < _HEAD.size:
        return None
    magic, length, crc, sequence = _HEAD.unpack_from(view, at)
    body = view[at + _HEAD.size : at + _HEAD.size + length]
    good = magic == _MAGIC and len(body) == length and length and _crc(sequence, body) == crc
    return (sequence, body) if good else None


def _crc(sequence: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(_CRC.pack(len(content), sequence)))


def _requests(body: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        yield bytes(body[at : at + length])
        at += length


class WriteAheadLog:
    """See the module. Its folder is locked until `close`."""

    def __init__(self, folder: LocalFolder, operator: str) -> None:
        self._folder, self._who = folder, operator
        folder.make(durable=True)
        self._lock = os.open(folder.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise JobRunningError(
                f"another process has opened the write-ahead log {folder.path}",
                operator=operator,
                kept="the write-ahead log is unchanged; nothing was started",
                do="start one process for each gateway, or stop the other one first",
            ) from None

    def close(self) -> None:
        """Let another process open it."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def owner(self) -> str | None:
        """The id of the gateway whose log it is; None if it is new."""
        return str(self._owner()["gateway"]) if self._folder.has(OWNER) else None

    def belong(self, gateway: str) -> None:
        """Let a new log belong to a gateway."""
        self._folder.write(OWNER, json.dumps({"version": VERSION, "gateway": gateway}), durable=True)

    def claim(self, *starts: str) -> None:
        """Note which processes may have claimed the gateway's log last."""
        self._folder.write(OWNER, json.dumps({**self._owner(), "starts": starts}), durable=True)

    def claimed(self, start: str) -> bool:
        """Whether a process may have done so."""
        return start in self._owner().get("starts", [start])

    def _owner(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._folder.read(OWNER))
            return {**found, "gateway": found["gateway"]}
        except (ValueError, KeyError, TypeError):
            raise self._damaged(OWNER, "it is empty or truncated") from None

    def numbers(self) -> list[int]:
        """The numbers of the files, in order."""
        found = (name.removesuffix(".wal") for name in self._folder.names() if name.endswith(".wal"))
        return sorted(int(name) for name in found if name.isdigit())

    def create(self, number: int) -> GrowingFile:
        """Begin a file."""
        return self._folder.grown(_name(number))

    def delete(self, number: int) -> None:
        """Delete a file whose requests are in a segment."""
        self._folder.delete(_name(number))

    def read(self, numbers: Sequence[int], first: int, *, synced: bool) -> Iterator[tuple[int, list[Request]]]:
        """The requests of some files in order, from the event with the sequence `first`, by number of the file.

        A group whose sequence a later file repeats was not acknowledged: its sync had failed. With `synced` a damaged
        or missing group is an error, which names the file; else it is left out.
        """
        held: tuple[int, Scan] | None = None
        for number in numbers:
            found = scan(self._folder.read(_name(number)))
            if found.damaged and synced:
                raise self._damaged(number, f"the group at byte {found.end} is damaged, and a good one follows it")
            if found.groups:
                if held is not None:
                    requests = self._decoded(*held, first, found.groups[0][0], synced)
                    first += sum(one.events for one in requests)
                    if requests:
                        yield held[0], requests
                held = number, found
        if held is not None:
            yield held[0], self._decoded(*held, first, None, synced)

    def _decoded(self, number: int, found: Scan, expected: int, upto: int | None, synced: bool) -> list[Request]:
        requests: list[Request] = []
        for sequence, contents in found.groups:
            if upto is not None and sequence >= upto:
                break
            if sequence != expected and synced:
                raise self._damaged(number, f"it continues with event {sequence}, but event {expected} is not there")
            try:
                decoded = [Request.decode(one) for one in contents]
            except (ValueError, TypeError):
                raise self._damaged(number, "it has a request that this release cannot read") from None
            requests += decoded
            expected = sequence + sum(one.events for one in decoded)
        if upto is not None and expected != upto and synced:
            raise self._damaged(number, f"the next file continues with event {upto}, but event {expected} is not there")
        return requests

    def _damaged(self, file: int | str, what: str) -> StateError:
        name = _name(file) if isinstance(file, int) else file
        return StateError(
            f"the file {self._folder.path / name} of the write-ahead log cannot be used: {what}",
            operator=self._who,
            kept="all files are unchanged; nothing was acknowledged",
            do="restore the volume from a snapshot, or save what can be read and accept the loss: "
            "spark-ext ingest seal --accept-loss",
        )


def _name(number: int) -> str:
    return f"{number:020}.wal"
