"""A text of CSV for Arrow's reader, which loses line ends in quotes, and closes a quote that is never closed."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import csv

_WORD = "\0end of the file\0"


class Ended:
    """A stream with a line of its own behind the end of a text, by which an open quote at the end is found.

    Arrow silently closes such a quote. It also passes over an LF at the beginning of a piece behind a CR, even in
    quotes, so that no piece ends with a CR here.

    The line has one column more than the others, so that Arrow asks what to do about it. It is part of a value, and
    Arrow does not ask, if a quote is open.
    """

    closed = False

    def __init__(self, raw: pa.NativeFile, separators: bytes) -> None:
        self._raw = raw
        self._line = _WORD.encode() + separators
        self._held = b""
        self._rest: bytes | None = None
        self.found = False
        """Whether the line was a line."""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is not."""
        return False

    def read(self, size: int) -> bytes:
        """Up to so many bytes."""
        if self._rest is None:
            data = self._held + (more := bytes(self._raw.read(size - len(self._held))))
            self._held = b"\r" if data.endswith(b"\r") and more and len(data) > 1 else b""
            if data:
                return data[: len(data) - len(self._held)]
            self._rest = b"\n" + self._line + b"\n"
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def close(self) -> None:
        """Nothing: whoever has opened the text closes it."""

    def odd_row(self, row: csv.InvalidRow) -> str:
        """What is done about a row with another number of columns."""
        if row.text is None or row.text.encode() != self._line:
            return "error"
        self.found = True
        return "skip"
