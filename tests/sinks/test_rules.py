"""Rules at a sink, from its tasks to the commit of an epoch, without Spark: killed at each step; refused in time."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_ext.bad_rows.rules import COLUMN, Rule, to_metadata
from spark_ext.bad_rows.settle import Settler
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.failpoints import FailPoint
from spark_ext.sinks.contract import CommitOutcome
from spark_ext.testing.children import killed_at
from spark_ext.testing.sink_bad_rows import ASIDE, BadRowsKit
from spark_ext.testing.sink_driver import NUMBERS, Driver, SinkTarget, numbered
from tests.conformance.test_commit_delta import DeltaTarget

ODD, SMALL, SEEN = (
    Rule("odd", "id % 5 > 0", "quarantine"),
    Rule("small", "id % 3 > 0", "drop"),
    Rule("seen", "x", "count"),
)
STEPS = (
    *(FailPoint.SINK_BEFORE_COMMIT, FailPoint.BAD_ROWS_KEPT, "delta.before_commit", "delta.committed"),
    *(FailPoint.BAD_ROWS_DECIDED, FailPoint.SINK_COMMITTED, FailPoint.RULES_COUNTED),
)

pytestmark = pytest.mark.usefixtures("states")


def schema(*rules: Rule) -> T.StructType:
    column = T.StructField(COLUMN, T.ArrayType(T.IntegerType()), True, to_metadata(rules))
    return T.StructType([*NUMBERS.fields, column])


def rows(start: int, end: int) -> list[dict[str, Any]]:
    """As judged by `ODD`, `SMALL` and `SEEN`, which each seventh row fails."""
    fails = [lambda n: n % 5 == 0, lambda n: n % 3 == 0, lambda n: n % 7 == 0]
    return [
        {**row, COLUMN: [number for number, one in enumerate(fails) if one(row["id"])] or None}
        for row in numbered(start, end)
    ]


def run(target: SinkTarget, incarnation: int, epoch: int, start: int, end: int) -> None:
    Driver(target, incarnation).claim()
    driver = Driver(target, incarnation, schema=schema(ODD, SMALL, SEEN), options=ASIDE)
    driver.run(epoch, rows(start, end), partitions=incarnation % 3 + 1)


class Kit(BadRowsKit):
    def __init__(self, target: SinkTarget) -> None:
        super().__init__(target)
        self.counts: list[dict[str, int]] = []

    def settle(self, epoch: int) -> None:
        commits = Path(self.state, "queries", "q", "checkpoint", "commits")
        (commits / str(epoch)).write_text("v1\n{}")
        settler = Settler("job", "job-1", self.state, "q", 0, str(commits.parent))
        self.counts += [dict(moved.failed) for moved in settler.settle_sinks()]


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(tmp_path / "out")


@pytest.mark.slow(20, "starts two drivers for each of seven steps")
def test_killed_at_each_step_rows_and_counts_are_exact(target: DeltaTarget) -> None:
    """A successor repeats the epoch, with other partitions; 21 rows an epoch, so that all rules meet."""
    kit = Kit(target)
    for number, point in enumerate(STEPS):
        start, end = number * 21, number * 21 + 21
        killed_at(point, run, target, 2 * number + 1, number, start, end)
        run(target, 2 * number + 2, number, start, end)
        kit.settle(number)
        ids = range(end)
        assert target.ids() == [n for n in ids if n % 5 and n % 3], f"killed at {point}"
        assert kit.table() == [n for n in ids if n % 5 == 0], f"killed at {point}"
        assert kit.waiting() == [], f"killed at {point}"
    epochs = [range(number * 21, number * 21 + 21) for number in range(len(STEPS))]
    assert kit.counts == [
        {name: len([n for n in ids if n % by == 0]) for name, by in (("odd", 5), ("small", 3), ("seen", 7))}
        for ids in epochs
    ]
    assert {tuple(row["rules"]) for row in kit.found()} == {("odd",), ("odd", "seen"), ("odd", "small")} | (
        {("odd", "small", "seen")} if any(n % 105 == 0 for ids in epochs for n in ids) else set()
    )


def test_an_epoch_of_which_all_rows_are_dropped_is_counted(target: DeltaTarget) -> None:
    """It is not written, as one without rows, and is counted once also when it is repeated."""
    kit = Kit(target)
    Driver(target).claim()
    driver = Driver(target, schema=schema(SMALL))
    failing = [{**row, COLUMN: [0]} for row in numbered(0, 4)]
    driver.run(0, failing)
    driver.run(0, failing, partitions=2)
    kit.settle(0)
    assert (target.ids(), driver.outcomes, kit.counts) == ([], [], [{"small": 4}])


@pytest.mark.parametrize("rule", [Rule("f", "p", "fail"), Rule("f", "p", "drop", 0.4)], ids=["fail", "share"])
def test_too_many_stop_the_epoch_before_anything_is_visible(target: DeltaTarget, rule: Rule) -> None:
    """The tasks' rows are counted together, and those of earlier epochs of the run."""
    kit = Kit(target)
    Driver(target).claim()
    driver = Driver(target, schema=schema(rule))
    driver.run(0, [{**row, COLUMN: None} for row in numbered(0, 2)])
    with pytest.raises(DataError, match=r"[34] of 6 rows fail rule 'f' \(p\)") as refused:
        failing = [{**row, COLUMN: [0] if row["id"] > 2 or rule.max_share < 1 else None} for row in numbered(2, 6)]
        driver.run(1, failing, partitions=2)
    assert 'one of them: {"id": ' in refused.value.what and "nothing of this epoch is visible" in refused.value.kept
    assert target.ids() == [0, 1] and driver.outcomes == [CommitOutcome.COMMITTED]
    kit.settle(1)
    assert kit.counts == []


def test_rules_outside_of_a_job_are_refused(target: DeltaTarget) -> None:
    with pytest.raises(ConfigurationError, match=r"rule 'seen' .* needs a job"):
        Driver(target, incarnation=0, schema=schema(SEEN)).commit([], 0)


def test_an_example_is_not_shown_where_the_sink_redacts(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(target.sink().options), "redact", True, raising=False)
    driver = Driver(target, schema=schema(Rule("f", "p", "fail"))).claim()
    with pytest.raises(DataError) as refused:
        driver.run(0, [{"id": 1, "name": json.dumps("secret"), COLUMN: [0]}])
    assert "secret" not in str(refused.value)
