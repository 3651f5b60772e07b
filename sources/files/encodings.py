"""The encodings of text files.

Positions in a file are bytes. In most encodings the bytes of CR and LF stand for nothing else, so that a file is cut at
them before it is decoded. The others (UTF-16, UTF-32) are decoded from their beginning: such a file is one step.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import pyarrow as pa

_BY_LINE = frozenset(  # names of Python's codecs in which no character but CR and LF has a byte 0D or 0A
    {"utf-8", "ascii", "iso8859-1", "mac-roman", "koi8-r", "koi8-u"}
    | {f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)}
    | {f"cp{page}" for page in (437, 720, 737, 775, 850, 852, 855, 857, 858, 860, 861, 862, 863, 865, 866, 869, 874)}
    | {f"cp{page}" for page in range(1250, 1259)}
    | {"shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "gb2312", "gbk", "gb18030", "big5", "big5hkscs", "cp950"}
)
_AT_ONCE = frozenset({"utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"})

_MARKS = {  # byte order marks; those of UTF-32 begin as those of UTF-16 do
    "utf-8": codecs.BOM_UTF8,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
MARK = 4


@dataclass(frozen=True)
class Encoding:
    """An encoding."""

    name: str

    @classmethod
    def of(cls, text: str) -> Encoding:
        """The encoding of a name, under any of the names that Python knows."""
        try:
            name = codecs.lookup(text.strip()).name
        except (LookupError, ValueError):
            name = ""
        name = {"utf-8-sig": "utf-8"}.get(name, name)
        if name not in _BY_LINE | _AT_ONCE:
            raise ValueError(
                f"{text!r} is not an encoding that is supported: utf-8, utf-16, utf-32, latin-1, iso8859-2 to "
                "iso8859-16, cp1250 to cp1258, cp437 and its like, koi8-r, shift_jis, euc_jp, euc_kr, gbk, gb18030 "
                "or big5"
            )
        return cls(name)

    @property
    def is_utf8(self) -> bool:
        """Whether nothing has to be converted."""
        return self.name == "utf-8"

    @property
    def by_line(self) -> bool:
        """Whether a file can be cut at lines before it is decoded."""
        return self.name in _BY_LINE

    def check(self, begin: bytes) -> None:
        """Check the first bytes of a file: at least `MARK`, or the whole file."""
        found = next((name for name, mark in _MARKS.items() if begin.startswith(mark)), None)
        either = self.name in ("utf-16", "utf-32")
        if found is not None and found != self.name and not (either and found.startswith(self.name)):
            raise ValueError(f"it begins with the byte order mark of {found}, and the option 'encoding' is {self.name}")
        if either and begin and found is None:
            raise ValueError(
                f"it has no byte order mark: set the option 'encoding' to {self.name}-le or {self.name}-be"
            )

    def to_utf8(self, block: bytes | pa.Buffer) -> pa.Buffer:
        """Whole lines in UTF-8."""
        if self.is_utf8:
            return pa.py_buffer(block)
        try:
            return pa.py_buffer(bytes(block).decode(self.name).encode())
        except UnicodeError as problem:
            raise pa.ArrowInvalid(f"it is not valid {self.name}: {problem}") from None

    def stream(self, raw: pa.NativeFile) -> pa.NativeFile:
        """A file from its beginning, in UTF-8; bytes that the encoding does not have are no UTF-8 in it either."""
        if self.is_utf8:
            return raw
        decoder = codecs.getincrementaldecoder(self.name)("spark_ext.surrogates")

        def decoded(piece: pa.Buffer) -> bytes:  # an empty one is the end
            return decoder.decode(bytes(piece), final=not len(piece)).encode("utf-8", "surrogatepass")

        return pa.TransformInputStream(raw, decoded)


def _surrogates(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeDecodeError)
    return "".join(chr(0xDC00 + byte) for byte in problem.object[problem.start : problem.end]), problem.end


codecs.register_error("spark_ext.surrogates", _surrogates)
