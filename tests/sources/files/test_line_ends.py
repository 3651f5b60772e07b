"""Where lines end, for any mixture of LF, CR LF and CR, in pieces of any size; and how a range is cut."""

import io
import re
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.sources.files import line_ends
from spark_ext.sources.files.row_groups import even_cuts, parts_between

texts = st.text(st.sampled_from("ab\r\n"), max_size=40).map(str.encode)


def lines_of(text: bytes) -> list[bytes]:
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
        assert line_ends.leading_lines(pa.BufferReader(text), count) == (sum(map(len, first)), len(first))
        assert line_ends.count_lines(pa.BufferReader(text), len(text)) == len(line_ends.ends_of(text))
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


@given(start=st.integers(0, 50), length=st.integers(0, 50), cuts=st.lists(st.integers(-5, 110)))
def test_the_parts_are_the_range_whatever_the_cuts_are(start: int, length: int, cuts: list[int]) -> None:
    end = start + length
    parts = parts_between(start, end, cuts)
    assert (parts[0][0], parts[-1][1]) == (start, end)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert parts == [(start, end)] or all(low < high for low, high in parts)
    assert {low for low, _ in parts[1:]} <= set(cuts)


def test_cuts_at_equal_distances() -> None:
    assert even_cuts(10, 20, 3) == [13, 16]
    assert even_cuts(10, 20, 1) == even_cuts(10, 20, 0) == []
    assert parts_between(10, 20, even_cuts(10, 20, 3)) == [(10, 13), (13, 16), (16, 20)]
