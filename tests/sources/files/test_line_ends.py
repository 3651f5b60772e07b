"""Where lines end, for any mixture of LF, CR LF and CR, in pieces of any size."""

from __future__ import annotations

import io
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.sources.files import line_ends

texts = st.text(st.sampled_from("ab\r\n"), max_size=40).map(str.encode)


def lines_of(text: bytes) -> list[bytes]:
    """The lines with their ends, by a regular expression."""
    return re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)


@pytest.fixture(params=[1, 3, 1024])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(line_ends, "SCAN", request.param)
    return int(request.param)


@given(text=texts)
def test_ends_are_those_of_the_lines(text: bytes) -> None:
    ends, at = [], 0
    for line in lines_of(text):
        at += len(line)
        ends += [at] if line.endswith((b"\r", b"\n")) else []
    assert line_ends.ends_of(text).tolist() == ends
    filled = sum(bool(line.strip(b"\r\n")) for line in lines_of(text))
    assert line_ends.filled_lines(pa.py_buffer(text), b"\r\n") == filled


@pytest.mark.usefixtures("piece")
def test_lines_are_counted_alike_in_pieces_of_any_size() -> None:
    @given(text=texts, count=st.integers(1, 12))
    @settings(max_examples=80, deadline=None)
    def check(text: bytes, count: int) -> None:
        lines, raw = lines_of(text), pa.BufferReader(text)
        first = lines[:count]
        assert line_ends.after_lines(raw, 0, len(text), count) == (sum(map(len, first)), len(first))
        assert line_ends.count_lines(raw, len(text)) == len(line_ends.ends_of(text))
        starts = [sum(map(len, lines[:index])) for index in range(len(lines))]
        for at in starts:
            later = next((start for start in starts if start > at), len(text))
            assert line_ends.line_end(raw, at, len(text)) == later

    check()


@given(text=texts)
def test_the_first_line_is_the_first_that_is_not_empty(text: bytes) -> None:
    lines = lines_of(text)
    wanted = next((index for index, line in enumerate(lines) if line.strip()), None)
    line, end = line_ends.first_line(io.BytesIO(line_ends.BOM + text), lambda _: True)
    if wanted is None:
        assert (line, end) == (b"", len(line_ends.BOM) + len(text))
    else:
        assert (line, end) == (lines[wanted].rstrip(b"\r\n"), len(line_ends.BOM) + sum(map(len, lines[: wanted + 1])))
