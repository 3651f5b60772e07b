"""Identities and the files that hold them, without a folder: looked up exactly, merged in ranges that nest."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ext.errors import StateError
from spark_ext.ingest import parts as stored
from spark_ext.ingest.parts import Found, Part, Skips, Span, mergeable, merged, missing, outermost
from spark_ext.ingest.seen import NEVER, Identities, in_order, look_up, numbers_of, seconds_of

# Few values in each half, so that identities share one of them, as hashes hardly ever do.
HALVES = st.sampled_from([0, 1, 1 << 32, (1 << 63) + 5, (1 << 64) - 1])
KEYS = st.tuples(HALVES, HALVES)
SEEN = st.dictionaries(KEYS, st.tuples(st.integers(0, 9), st.integers(0, (1 << 32) - 1)), max_size=12)


def columns(keys: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([high for high, _ in keys], np.uint64), np.array([low for _, low in keys], np.uint64)


def identities(known: dict[tuple[int, int], tuple[int, int]]) -> Identities:
    keys = sorted(known)
    values = np.array([known[key] for key in keys], np.int64).reshape(-1, 2)
    return Identities.of(*columns(keys), values[:, 0], values[:, 1])


def found(parts: list[Identities], keys: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    times, bodies = look_up(parts, *columns(keys))
    return {
        key: (int(body), int(at)) for key, at, body in zip(keys, times, bodies, strict=True) if at != NEVER
    }  # fmt: skip


@given(st.lists(SEEN, max_size=4), st.lists(KEYS, max_size=20))
def test_what_was_seen_is_found_and_nothing_else(seen: list[dict[Any, Any]], wanted: list[Any]) -> None:
    latest: dict[Any, Any] = {}
    for one in seen:
        for key, value in one.items():
            if key not in latest or value[1] > latest[key][1]:
                latest[key] = value
    assert found([identities(one) for one in seen], wanted) == {key: latest[key] for key in wanted if key in latest}


@given(st.lists(SEEN, min_size=1, max_size=4), st.integers(0, 1 << 32))
def test_of_merged_parts_the_last_counts_and_what_is_old_is_gone(seen: list[dict[Any, Any]], since: int) -> None:
    last = {key: value for one in seen for key, value in one.items() if value[1] >= since}
    got = Identities.merged([identities(one) for one in seen], since)
    assert len(got) == len(last)
    assert found([got], sorted({key for one in seen for key in one})) == last


@given(st.lists(KEYS))
@example([(1, 5), (1, 3), (1, 5)])
def test_equal_identities_stay_in_the_order_of_arrival(keys: list[tuple[int, int]]) -> None:
    assert in_order(*columns(keys)).tolist() == sorted(range(len(keys)), key=lambda at: keys[at])


def test_the_filter_lets_few_others_pass() -> None:
    draw = np.random.default_rng(1)
    high, low, others = (
        np.sort(draw.integers(0, 1 << 64, 100_000, np.uint64)),
        *draw.integers(0, 1 << 64, (2, 100_000), np.uint64),
    )
    known = Identities.of(high, low, np.zeros(len(high)), np.ones(len(high)))
    assert np.count_nonzero(look_up([known], high, low)[0] == 1) == len(high)
    places = ((others >> np.uint64(32)) * np.uint64(len(known.words))) >> np.uint64(32)
    mask = sum((np.uint64(1) << ((low[::-1] >> np.uint64(s)) & np.uint64(63))) for s in (0, 6, 12, 18))
    assert np.count_nonzero((known.words[places] & mask) == mask) < 3_000
    assert known.words.nbytes < 2 * len(high)


def test_columns_that_are_slices_of_others_are_read_in_place() -> None:
    raw = [bytes(range(n, n + 16)) for n in range(4)]
    column = pa.array([raw[0], None, raw[2], raw[3]], pa.binary(16)).slice(2)
    high, low = numbers_of(column)
    assert [int(n).to_bytes(8, "big") for pair in zip(high, low, strict=True) for n in pair] == [
        raw[2][:8], raw[2][8:], raw[3][:8], raw[3][8:]
    ]  # fmt: skip
    assert [len(half) for half in numbers_of(pa.nulls(3, pa.binary(16)))] == [3, 3]
    times = pa.array([-5, 1_999_999, 1 << 60], pa.timestamp("us", "UTC"))
    assert seconds_of(times).tolist() == [0, 1, (1 << 32) - 1], "a wrong clock does no harm"


PART = Part(
    Span(8, 16),
    identities({(1, 2): (3, 4), (5, 6): (7, 8)}),
    {("g", 7): Skips((1, 2), (5,)), ("h~2", 0): Skips()},
    {"p": [0, 7, 12]},
    {"g": 3},
    8,
    Found(20, 10, 5),
)


def read(content: bytes, span: Span = PART.span) -> Part:
    return Part.decode(pa.py_buffer(content), span, "inbox 'orders'")


def test_a_file_gives_back_what_was_put_into_it() -> None:
    got = read(PART.encode())
    for name in ("span", "skips", "producers", "floors", "newest", "found"):
        assert getattr(got, name) == getattr(PART, name), name
    assert found([got.identities], [(1, 2), (5, 6), (1, 6)]) == {(1, 2): (3, 4), (5, 6): (7, 8)}


def test_a_file_with_any_byte_changed_or_missing_is_refused_by_name() -> None:
    content = PART.encode()
    changed = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    for broken in (*changed, *(content[:end] for end in range(len(content))), content + b"\0"):
        with pytest.raises(StateError, match=rf"{PART.span.name} of its decisions (is damaged|has version)") as refused:
            read(broken)
        assert refused.value.operator == "inbox 'orders'"


def test_a_file_of_another_version_or_name_is_refused() -> None:
    content = bytearray(PART.encode())
    content[8:12] = (2).to_bytes(4, "little")
    with pytest.raises(StateError, match="has version 2; this release reads version 1"):
        read(bytes(content))
    with pytest.raises(StateError, match="holds other decisions than its name says"):
        read(PART.encode(), Span(0, 8))


def test_merging_forgets_the_skips_of_deleted_entries_and_keeps_the_rest() -> None:
    older = Part(Span(0, 8), Identities.none(), {}, {"p": [0, 7, 8], "q": [0, 0, 1]}, newest=4)
    other = Part(Span(16, 24), Identities.none(), {("g", 8): Skips((4,))}, {"q": [0, 0, 2]}, {}, 6, Found(21, 11, 5))
    got = merged([older, PART, other], {"g": 8}, 5)
    assert (got.span, got.skips) == (Span(0, 24), {("h~2", 0): Skips(), ("g", 8): Skips((4,))})
    assert (got.producers, got.floors) == ({"p": [0, 7, 12], "q": [0, 0, 2]}, {"g": 8})
    assert (got.newest, got.found, len(got.identities)) == (8, (21, 11, 5), 1)


def test_a_wider_file_replaces_those_that_it_holds() -> None:
    names = [Span(*pair).name for pair in ((8, 9), (0, 8), (3, 4), (0, 1), (9, 10))]
    read, replaced = outermost([*names, ".draft-0-ab", "other"])
    assert read == [Span(0, 8), Span(8, 9), Span(9, 10)]
    assert sorted(replaced) == [Span(0, 1).name, Span(3, 4).name]
    assert missing(read, 10) is None
    assert (missing(read, 11), missing(read[1:], 0), missing([read[0], read[2]], 0)) == (10, 0, 8)
    assert (missing([], 0), missing([], 1)) == (None, 0)


def test_eight_files_become_one_and_a_small_one_costs_no_large_one() -> None:
    """Each identity is rewritten once for every eightfold growth, whichever planner merges."""
    files: list[tuple[Span, int]] = []
    rewritten = 0
    for number in range(4096):
        files.append((Span(number, number + 1), 10))
        while (wide := mergeable(files)) is not None:
            inside = [one for one in files if wide.holds(one[0])]
            rewritten += sum(count for _, count in inside)
            at = files.index(inside[0])
            files[at : at + len(inside)] = [(wide, sum(count for _, count in inside))]
        assert len(files) <= 4 * 7 + 1
    assert files == [(Span(0, 4096), 40_960)]
    assert rewritten <= 40_960 * 4


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100), st.integers(1, 3))
def test_files_are_no_larger_than_allowed_and_always_nest(sizes: list[int], planners: int) -> None:
    """Also where planners that see other sizes, and merge later, have merged the same decisions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "MOST", 20)
        every: set[Span] = set()
        for step in range(planners):
            files: list[tuple[Span, int]] = []
            for number, size in enumerate(sizes):
                files.append((Span(number, number + 1), max(0, size - step)))
                while (number % (step + 1) == 0) and (wide := mergeable(files)) is not None:
                    inside = [one for one in files if wide.holds(one[0])]
                    assert [inside[0][0].begin, inside[-1][0].end] == [wide.begin, wide.end]
                    at = files.index(inside[0])
                    files[at : at + len(inside)] = [(wide, sum(count for _, count in inside))]
                    assert len(inside) > 1
                    assert files[at][1] <= 20
            assert missing([span for span, _ in files], len(sizes)) is None
            every.update(span for span, _ in files)
        apart = [(a, b) for a in every for b in every if a.begin < b.end and b.begin < a.end]
        assert all(a.holds(b) or b.holds(a) for a, b in apart)
