"""Where lines end: at LF, at CR LF, and at a CR alone, as for Spark's own readers of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCAN = 1024 * 1024  # bytes scanned at a time to count lines or to find the end of a line
BOM = b"\xef\xbb\xbf"

LONGEST_HEADER = 16 * 1024  # bytes after which a first line with an open quote is taken for one that is never closed
_LF, _CR = 10, 13


def ends_of(block: bytes | memoryview | pa.Buffer) -> NDArray[np.int64]:
    """The positions after each line end in a block. A CR that is the last byte ends a line."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _LF)
    returns = np.flatnonzero(data == _CR)
    if len(returns):
        followed = data[np.minimum(returns + 1, len(data) - 1)] == _LF
        ends = np.sort(np.concatenate([ends, returns[~followed]]))
    return ends + 1


def pieces(raw: pa.NativeFile, at: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The bytes [at, end) of a file that stands at `at`, each piece with its position, never cut between CR and LF."""
    while end is None or at < end:
        data = raw.read(SCAN if end is None else min(SCAN, end - at))
        if not data:
            return
        while data.endswith(b"\r") and at + len(data) != end and (more := raw.read(1)):
            data += more
        yield at, data
        at += len(data)


def line_end(raw: pa.NativeFile, at: int, end: int) -> int:
    """The beginning of the first line that begins after byte `at`; at most `end`."""
    raw.seek(at)
    for position, data in pieces(raw, at, end):
        found = ends_of(data)
        if len(found):
            return min(end, position + int(found[0]))
    return end


def last_end(data: bytes) -> int:
    """The end of the last line that ends in a block; 0 if none does. A CR as the last byte may belong to a LF."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1


def after_lines(raw: pa.NativeFile, at: int, end: int, lines: int) -> tuple[int, int]:
    """The end of `lines` lines from `at`, at most `end`, and how many there were."""
    raw.seek(at)
    after, seen = _lines_in(pieces(raw, at, end), lines)
    return (after if seen == lines else end), seen


def leading_lines(raw: pa.NativeFile, lines: int) -> tuple[int, int]:
    """The byte after the first `lines` lines of a text, or after all that it has, and how many these are."""
    return _lines_in(pieces(raw, 0), lines)


def _lines_in(pieces: Iterator[tuple[int, bytes]], lines: int) -> tuple[int, int]:
    at, seen, unfinished = 0, 0, False
    for position, data in pieces:
        found = ends_of(data)
        if seen + len(found) >= lines:
            return position + int(found[lines - seen - 1]), lines
        at, seen = position + len(data), seen + len(found)
        unfinished = not len(found) or int(found[-1]) < len(data)
    return at, seen + unfinished


def count_lines(raw: pa.NativeFile, upto: int) -> int:
    """The number of lines of a text, from its beginning, that end before a byte."""
    return sum(len(ends_of(data)) for _, data in pieces(raw, 0, upto))


def filled_lines(block: pa.Buffer, blank: bytes) -> int:
    """The number of lines of a block that have more than blank characters."""
    data = np.frombuffer(block, np.uint8)
    if not len(data):
        return 0
    starts = np.concatenate([[0], ends_of(block)])
    filled = np.ones(256, np.bool_)
    filled[list(blank)] = False
    return int(np.count_nonzero(np.logical_or.reduceat(filled[data], starts[starts < len(data)])))


def first_line(
    raw: pa.NativeFile, complete: Callable[[bytes], bool], skipped: Callable[[bytes], bool] = lambda _: False
) -> tuple[bytes, int]:
    """The first line that is not empty and not `skipped`, without its end, and the byte after it."""
    # A line that is not `complete` continues with the next one.
    data, more, base = b"", True, 0
    while True:
        begin = base or (len(BOM) if data.startswith(BOM) else 0)
        begin += len(data[begin:]) - len(data[begin:].lstrip(b"\r\n"))
        for end in ends_of(data[begin:]).tolist():
            # A CR at the end of what is known may be followed by a LF.
            if more and begin + end == len(data) and data.endswith(b"\r"):
                break
            line = data[begin : begin + end].rstrip(b"\r\n")
            if skipped(line):
                base = begin + end
                break
            if complete(line) or len(line) > LONGEST_HEADER:
                return line, begin + end
        if base > begin:
            continue
        if not more:
            rest = data[begin:].rstrip(b"\r\n")
            return (b"" if skipped(rest) else rest), len(data)
        more = bool(piece := raw.read(64 * 1024))
        data += piece


def without_lines(block: pa.Buffer, first: int) -> pa.Buffer:
    """A block without the lines whose first byte this is."""
    data = np.frombuffer(block, np.uint8)
    if not len(data) or not (data == first).any():
        return block
    ends = ends_of(block)
    starts = np.concatenate([[0], ends])
    starts = starts[starts < len(data)]
    kept = np.repeat(data[starts] != first, np.diff(np.append(starts, len(data))))
    return pa.py_buffer(data[kept].tobytes())
