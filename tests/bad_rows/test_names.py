"""Names of files of bad rows, which of them count, and the form in which a row is kept."""

import json
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import example, given

from spark_ext import masking
from spark_ext.bad_rows.names import Again, EpochName, PendingFile, chosen, key_of, range_name, rules_of
from spark_ext.bad_rows.options import BadRowLimits
from spark_ext.bad_rows.row import COLLECTED, MOST_RAW, BadRow, table_of
from spark_ext.bad_rows.sift import text_of
from spark_ext.model.offsets import Running, SourceOffset

OLD, NEW = "0" * 16, "1" * 16
EPOCH = EpochName(3, 1, key_of(SourceOffset("s", 1)))
END = SourceOffset("s", 1, {"a": Running(10, {"size": 3}), "b": Running([1, 2])})


def cut(bounds: list[int]) -> list[tuple[int, int]]:
    return list(pairwise([0, *sorted(bounds), 100]))


def files(bad: frozenset[int], bounds: list[int], start: int, left_out: frozenset[int]) -> list[PendingFile]:
    """What a start has written that did not come to all parts of a range."""
    found = []
    for number, (low, high) in enumerate(cut(bounds)):
        rows = len([n for n in bad if low <= n < high])
        if rows and number not in left_out:
            found.append(PendingFile(EPOCH, start, range_name("c", low, high), rows))
    return found


starts = st.lists(
    st.tuples(st.sets(st.integers(1, 99), max_size=5).map(sorted), st.frozensets(st.integers(0, 5))), max_size=4
)


@given(
    st.frozensets(st.integers(0, 99), min_size=1), starts, st.integers(0, 4), st.lists(st.integers(1, 99), unique=True)
)
def test_a_start_that_read_everything_counts_wherever_it_comes(
    bad: frozenset[int], others: list[tuple[list[int], frozenset[int]]], place: int, bounds: list[int]
) -> None:
    """Each start cuts ranges in its own way; one of them has committed the epoch, so it has read all of it."""
    attempts = [*others[:place], (bounds, frozenset[int]()), *others[place:]]
    found = [file for start, (cuts, without) in enumerate(attempts) for file in files(bad, list(cuts), start, without)]
    [(epoch, counted)] = chosen(found).items()
    assert epoch == EPOCH and sum(file.rows for file in counted) == len(bad)
    assert len({file.incarnation for file in counted}) == 1


@given(
    st.frozensets(st.integers(0, 99)),
    starts,
    st.lists(st.tuples(st.frozensets(st.integers(0, 99)), st.frozensets(st.integers(0, 5))), max_size=3),
)
def test_by_other_rules_only_what_later_starts_find_counts(
    bad: frozenset[int],
    before: list[tuple[list[int], frozenset[int]]],
    wrong: list[tuple[frozenset[int], frozenset[int]]],
) -> None:
    found = [replace(file, rules=OLD) for start, one in enumerate(wrong) for file in files(one[0], [50], start, one[1])]
    again = [Again(EPOCH, start, OLD) for start, _ in enumerate(wrong) if start]
    begin = len(wrong)
    for start, (cuts, without) in enumerate([*before, ([20, 40], frozenset[int]())], begin):
        found += [replace(file, rules=NEW) for file in files(bad, list(cuts), start, without)]
        again += [Again(EPOCH, start, NEW)] if start else []
    counted = chosen(found, again).get(EPOCH, ())
    assert sum(file.rows for file in counted) == len(bad) and {file.rules for file in counted} <= {NEW}


def test_rules_are_the_options_that_decide() -> None:
    given = {"uid": "s", "path": "/in", "timestamp_format": "yyyy", "max_bad_rows": 2}
    same = rules_of({**given, "uid": "t", "max_bad_rows": None, "readers": 3}, "n bigint")
    assert rules_of(given, "n bigint") == same
    assert len({same, rules_of({**given, "timestamp_format": "yy"}, "n bigint"), rules_of(given, "n int")}) == 3


@given(
    st.integers(0, 10**12), st.integers(0, 99), st.integers(0, 99), st.integers(1, 10**9), st.sampled_from(["", NEW])
)
def test_a_name_is_read_back(number: int, lineage: int, incarnation: int, rows: int, rules: str) -> None:
    epoch = EpochName(number, lineage, key_of(END))
    file = PendingFile(epoch, incarnation, range_name("c", 1, [2]), rows, rules)
    assert PendingFile.parse(file.name) == file and Again.parse(file.name) is None
    note = Again(epoch, incarnation, NEW)
    assert Again.parse(note.name) == note and PendingFile.parse(note.name) is None


def test_other_files_are_none() -> None:
    name = PendingFile(EPOCH, 1, range_name("c", 1, 2), 1).name
    for other in ("", "x", ".draft-1", f"{name}.crc", f"x/{name}", name.replace("/1/", "/x/"), name.rpartition("/")[0]):
        assert PendingFile.parse(other) is None


def test_an_epoch_is_named_by_its_end_and_a_range_by_both() -> None:
    assert key_of(SourceOffset.from_json(END.to_json())) == key_of(END)
    changed = [replace(END, lineage=2), replace(END, control=1), replace(END, running={"a": Running(11, {"size": 3})})]
    assert len({key_of(one) for one in (END, *changed)}) == 4
    ranges = [("c", 0, 1), ("c", 0, 2), ("c", 1, 2), ("d", 0, 1), ("c", {"a": 1, "b": 2}, 3)]
    assert len({range_name(*one) for one in ranges}) == len(ranges)
    assert range_name("c", {"a": 1, "b": 2}, 3) == range_name("c", {"b": 2, "a": 1}, 3)


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
    near = pa.array([1_500_000, 0], pa.timestamp("us", "Europe/Berlin")), pa.array([0, 0], pa.timestamp("us"))
    times = text_of(pa.RecordBatch.from_arrays(list(near), names=["at", "local"]).slice(0, 1))
    assert times == '{"at": "1970-01-01T00:00:01.500000+00:00", "local": "1970-01-01T00:00:00"}'
