"""The form in which a bad row is kept."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import example, given

from spark_ext import masking
from spark_ext.bad_rows.limits import BadRowLimits
from spark_ext.bad_rows.row import COLLECTED, MOST_RAW, BadRow, table_of
from spark_ext.bad_rows.sift import text_of


def kept(raw: str | bytes | None) -> tuple[str | None, bytes | None]:
    [row] = table_of("c", [BadRow(1, "why", raw)]).to_pylist()
    return row["raw"], row["raw_bytes"]


@given(st.text())
def test_a_text_is_kept_as_it_is(text: str) -> None:
    assert kept(text) == kept(text.encode()) == (text, None)


@given(st.binary())
@example(b"\xff")
def test_bytes_that_are_no_text_are_kept_as_bytes(content: bytes) -> None:
    text, found = kept(content)
    assert (found if text is None else text.encode()) == content


@given(st.integers(MOST_RAW - 5, MOST_RAW + 5), st.sampled_from(["a", "é", "€", "𝄞"]))
def test_a_long_row_is_cut_between_two_characters(size: int, letter: str) -> None:
    whole = "x" * (size % 4) + letter * (size // len(letter.encode()) + 1)
    text, content = kept(whole)
    assert content is None and text is not None and whole.startswith(text)
    assert len(text.encode()) > min(len(whole.encode()), MOST_RAW) - 4


def test_long_bytes_are_cut_and_none_are_none() -> None:
    assert kept(b"\xff" * (MOST_RAW + 7)) == (None, b"\xff" * MOST_RAW)
    assert kept(None) == (None, None)


def test_positions_are_json_and_reasons_hide_secrets() -> None:
    masking.remember("hunter2hunter2")
    found = table_of("c", [BadRow({"b": 1, "a": [2]}, "the password hunter2hunter2 is odd", "x")])
    assert found.schema == COLLECTED
    [row] = found.to_pylist()
    assert json.loads(row["position"]) == {"a": [2], "b": 1}
    assert row["reason"] == "the password *** is odd"


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1))
def test_a_share_is_exceeded_by_one_row_more_than_it_tolerates(bad: int, good: int, share: float) -> None:
    assert (BadRowLimits(share).exceeded(bad, good) is not None) == (bad > share * (bad + good))


def test_limits() -> None:
    assert BadRowLimits().exceeded(10**9, 0) is None
    assert BadRowLimits(rows=3).exceeded(3, None) is None
    assert "4 rows are bad" in (BadRowLimits(rows=3).exceeded(4, None) or "")
    assert BadRowLimits(0.1).exceeded(5, None) is None, "a share of an unknown number is not judged"
    assert "5 of 10 rows are bad: 50.00%" in (BadRowLimits(0.1).exceeded(5, 5) or "")


def test_a_row_is_json_whatever_is_in_it() -> None:
    far = pa.array([253_402_300_800_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    row = pa.RecordBatch.from_arrays(
        [
            pa.array([1.5, float("nan")])[1:],
            far,
            pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), far),
            pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]),
            pa.array([b"\xff"]),
            pa.array([[{"a": float("-inf")}]]),
        ],
        names=["nan", "far", "list", "text", "bytes", "deep"],
    )
    found = json.loads(text_of(row))
    assert found["deep"] == [{"a": "-inf"}]
    assert found["nan"] == "nan" and found["far"] == "timestamp[us, tz=UTC] 253402300800000000"
    assert found["list"] == ["timestamp[us, tz=UTC] 253402300800000000"]
    assert found["text"] == repr(b"\xff\xfe") and found["bytes"] == repr(b"\xff")
