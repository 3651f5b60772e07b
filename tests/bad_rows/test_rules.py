"""Rules on rows: what a task does with those that fail, against pandas; what is counted, and when it is too much."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as T

from spark_ext.bad_rows.epoch import SinkPlace
from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.rules import (
    COLUMN,
    NO_FAILURES,
    Failures,
    Judge,
    OnFail,
    Rule,
    leave_failures,
    rules_of,
    to_metadata,
    without_rules,
)
from spark_ext.bad_rows.settle import Moved
from spark_ext.errors import StorageError
from tests.bad_rows.test_sinks import World

KINDS: tuple[OnFail, ...] = ("quarantine", "drop", "fail", "count")
RULES = tuple(Rule(f"{kind}-{number}", f"n > {number}", kind) for kind in KINDS for number in (0, 1))

batches = st.lists(st.lists(st.sets(st.integers(0, len(RULES) - 1), max_size=4).map(sorted), max_size=8), max_size=5)


def judged(failing: list[list[int]], first: int) -> pa.RecordBatch:
    """Rows that fail rules, as Spark hands them over."""
    numbers = pa.array([one or None for one in failing], pa.list_(pa.int32()))
    return pa.RecordBatch.from_arrays([pa.array(range(first, first + len(failing))), numbers], names=["id", COLUMN])


@given(batches)
def test_each_row_is_written_put_aside_or_dropped_as_its_rules_say(given: list[list[list[int]]]) -> None:
    aside: list[BadRow] = []
    judge = Judge(RULES, 7, aside.append)
    firsts = [sum(map(len, given[:place])) for place in range(len(given))]
    written = [row for batch in judge.good(map(judged, given, firsts)) for row in batch.to_pylist()]

    frame = pd.DataFrame({"failing": [one for batch in given for one in batch]}, dtype=object)
    kinds = frame.failing.map(lambda numbers: {RULES[number].on_fail for number in numbers})
    put_aside = frame[kinds.map(lambda found: "quarantine" in found).astype(bool)]
    leaves = kinds.map(lambda found: bool(found & {"quarantine", "drop"}))
    assert written == [{"id": number} for number in frame.index[~leaves.astype(bool)]]
    assert [row.position for row in aside] == [{"partition": 7, "row": number} for number in put_aside.index]
    assert [row.raw for row in aside] == [f'{{"id": {number}}}' for number in put_aside.index]
    assert [row.rules for row in aside] == [tuple(RULES[n].name for n in found) for found in put_aside.failing]
    for row in aside:
        assert all(f"rule '{name}' (" in row.reason for name in row.rules)
    failed = Counter(RULES[number].name for number in frame.failing.explode().dropna())
    assert judge.failures.failed == failed and judge.failures.rows == len(frame)
    firsts_of = {name: min(i for i, found in frame.failing.items() if number_of(name) in found) for name in failed}
    assert judge.failures.examples == {name: f'{{"id": {number}}}' for name, number in firsts_of.items()}


def number_of(name: str) -> int:
    return [rule.name for rule in RULES].index(name)


counts = st.builds(Failures, st.integers(0, 9), st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)))


@given(st.lists(counts))
def test_tasks_add_up(given: list[Failures]) -> None:
    total = sum(given, NO_FAILURES)
    assert total.rows == sum(one.rows for one in given)
    assert total.failed == sum((Counter(one.failed) for one in given), Counter())


@pytest.mark.parametrize(
    ("rule", "failed", "said"),
    [
        (Rule("r", "n > 0", "drop"), 10, None),
        (Rule("r", "n > 0", "count", 0.5), 5, None),
        (Rule("r", "n > 0", "count", 0.5), 6, "6 of 10 rows fail rule 'r' (n > 0): 60.00%, more than max_share=0.5"),
        (Rule("r", "n > 0", "drop", 0.0), 1, "1 of 10 rows fail rule 'r' (n > 0): 10.00%, more than max_share=0"),
        (Rule("r", "n > 0", "fail"), 0, None),
        (Rule("r", "n > 0", "fail"), 1, "1 of 10 rows fail rule 'r' (n > 0)"),
    ],
    ids=["no limit", "at the limit", "above it", "none allowed", "fail, none", "fail, one"],
)
def test_when_rows_that_fail_are_too_many(rule: Rule, failed: int, said: str | None) -> None:
    assert rule.exceeded(failed, 10) == said


def test_rules_travel_in_the_schema() -> None:
    column = T.StructField(COLUMN, T.ArrayType(T.IntegerType()), True, to_metadata(RULES))
    plain = T.StructType([T.StructField("id", T.LongType(), True, {"comment": "c"})])
    full = T.StructType.fromJson(T.StructType([*plain.fields, column]).jsonValue())
    assert rules_of(full) == RULES and without_rules(full) == plain
    assert rules_of(plain) == () and without_rules(plain) is plain


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def counted(place: SinkPlace, *, again: bool = False, **failed: int) -> None:
    leave_failures(place, Failures(10, failed), again=again)


def test_counts_are_moved_once_spark_has_committed_their_epoch(world: World) -> None:
    """With the epoch's bad rows, or without any."""
    rows, mark = world.attempt(0, ["a"])
    rows.decide(mark, 1, 7)
    counted(world.place(0), r=2)
    counted(world.place(1), r=3, s=1)
    assert world.settle() == []
    world.commit(0)
    assert world.settle() == [Moved("out", 0, 1, f"{world.state}/bad_rows/table", "sink", (1, 7), {"r": 2})]
    world.commit(1)
    [moved] = world.settle()
    assert (moved.rows, moved.failed) == (0, {"r": 3, "s": 1})
    assert world.settle() == [] and world.waiting() == [] and world.rows() == [(0, "a")]


def test_counts_of_the_attempt_that_the_target_has_count(world: World) -> None:
    counted(world.place(0), r=2)
    counted(world.place(0), again=True, r=5)
    counted(world.place(1), again=True, r=4)  # the first attempt at it was killed right behind the target's commit
    world.commit(1)
    assert [moved.failed for moved in world.settle()] == [{"r": 2}, {"r": 4}]


def test_counts_of_an_older_lineage_do_not_count(world: World) -> None:
    counted(replace(world.place(0), lineage=0), r=2)
    world.commit(0)
    assert world.settle() == [] and world.waiting() == []


def test_counts_that_cannot_be_left_fail_the_commit(world: World) -> None:
    (Path(world.state) / "bad_rows").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        counted(world.place(0), r=2)
