"""The contract kit finds what is wrong: each bug put into a right sink or source makes the tests of its line fail.

The right sink is that of the page `docs/write-a-sink.md`, which passes (see `tests/docs/test_examples.py`).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ext.model.offsets import Position
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions
from spark_ext.testing.sink_driver import beside
from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_kit import ContractViolation
from tests.support.pages import python_blocks


@dataclass(frozen=True)
class Bug:
    """A change of the right sink's code, and the tests that have to notice."""

    right: str
    wrong: str
    noticed_by: tuple[str, ...]


SINK_BUGS = {
    "does not remember the epoch": Bug(
        'db.execute("insert or replace into epochs values (?, ?)", [epoch.application, epoch.number])',
        "pass",
        ("c3_crash_between", "c4_", "c6_"),
    ),
    "takes another sink's epoch for its own": Bug(
        'where id = ?", [epoch.application]', 'order by epoch desc limit 1"', ("c10_two_jobs",)
    ),
    "does not look at the fence when it commits": Bug(
        "epoch.check_target(self._held(db), last, self._who)",
        "pass",
        ("c7_", "c11_", "i5_an_equal", "i5_an_empty", "i7_a_target_dropped_under_a_running"),
    ),
    "does not look whose the uid is": Bug("if owner and owner[0] != claim.job_id:", "if False:", ("c10_the_same_uid",)),
    "shows rows before the epoch is there": Bug(
        '            db.execute("insert or replace into epochs',
        '            db.execute("commit")\n'
        '            reach("sqlite.torn")\n'
        '            db.execute("begin immediate")\n'
        '            db.execute("insert or replace into epochs',
        ("c2_crash_at_every_step",),
    ),
    "loses a row of many": Bug("for row in rows]", "for row in rows][:99_999]", ("c9_a_huge",)),
}


LOSSY = """
from spark_ext.testing.source_contract import SourceContract
from tests.testing.test_contract_kit import CountersWorld
import pytest


class TestLossy(SourceContract):
    @pytest.fixture
    def world(self):
        return CountersWorld("first row lost")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says, in one process, of a file for each sink that is wrong, and of a source that loses a row."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "test_lossy.py").write_text(LOSSY, encoding="utf-8")
    chosen = ["(test_lossy and test_a_planner_that_dies_at_every_step)"]
    for number, bug in enumerate(SINK_BUGS.values()):
        sink, adapter, _ = python_blocks("testing")
        assert bug.right in sink
        (folder / f"sqlite_sink_{number}.py").write_text(sink.replace(bug.right, bug.wrong), encoding="utf-8")
        if "sqlite.torn" in bug.wrong:
            adapter = adapter.replace("stages = False", 'points = ("sqlite.torn",)\n    stages = False')
        adapter = adapter.replace("from sqlite_sink import", f"from sqlite_sink_{number} import")
        (folder / f"test_sink_{number}.py").write_text(adapter, encoding="utf-8")
        chosen.append(f"(test_sink_{number} and ({' or '.join(bug.noticed_by)}))")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(chosen), "."], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True, timeout=300,
        check=False,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("what", SINK_BUGS)
def test_a_sink_that(what: str, said: str) -> None:
    number = list(SINK_BUGS).index(what)
    failed = re.findall(rf"^FAILED test_sink_{number}\.py::\w+::test_(\w+)", said, re.MULTILINE)
    for line in SINK_BUGS[what].noticed_by:
        assert any(name.startswith(line) for name in failed), f"{line} has not noticed: {said[-2000:]}"


def test_a_lost_row_is_shown(said: str) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nspark_ext = "spark_ext.testing.pytest_plugin"' in project
    assert re.search(r"^E +At index 0 diff: .*'n': 1.* != .*'n': 0", said, re.MULTILINE), said


class Options(SourceOptions):
    bug: str = ""


COUNTS = {"a": 3, "b": 17, "c": 8}
_reads = 0


class Counters(ChannelSource):
    """Channels of numbers, right but for the bug that it is given."""

    options_type = Options
    options: Options

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._taken: dict[str, int] = {}

    @classmethod
    def name(cls) -> str:
        return "counters"

    def schema(self) -> str:
        return "channel string, n bigint"

    def discover(self) -> list[Channel]:
        return [Channel(name) for name in ("a", "a", "b") if self.options.bug == "ids twice"] or list(
            map(Channel, COUNTS)
        )

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        if self.options.bug == "takes away":
            start = max(start, self._taken.get(channel.id, 0))
        end = min(COUNTS[channel.id], start + (limit.rows or 100) + (self.options.bug == "past its limit"))
        self._taken[channel.id] = end
        at = (end,) if self.options.bug == "positions of tuples" else end
        return Advance(at, finished=end == COUNTS[channel.id], rows=end - start)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        global _reads
        _reads += self.options.bug == "other rows each time"
        numbers = range(start + 1, end) if self.options.bug == "first row lost" else range(start, end)
        yield pa.RecordBatch.from_pydict(
            {"channel": [channel.id] * len(numbers), "n": [n + 1000 * _reads for n in numbers]}
        )


class CountersWorld(SourceWorld):
    def __init__(self, bug: str) -> None:
        self.bug = bug

    def source(self, **options: str) -> ChannelSource:
        return Counters({"uid": "in", "bug": self.bug, **options})

    def expected(self) -> list[dict[str, Any]]:
        return [{"channel": name, "n": n} for name, count in COUNTS.items() for n in range(count)]


class TestRight(SourceContract):
    """Without a bug all is well."""

    @pytest.fixture
    def world(self) -> SourceWorld:
        return CountersWorld("")


@pytest.mark.parametrize(
    "bug",
    ["takes away", "past its limit", "positions of tuples", "other rows each time", "first row lost", "ids twice"],
)
def test_a_source_with_a_bug_is_noticed(bug: str) -> None:
    with pytest.raises((AssertionError, TypeError)):
        SourceContract().test_a_planner_that_dies_at_every_step_loses_nothing(CountersWorld(bug))


class Times(Counters):
    """One column of times, with another zone than is declared."""

    declared_as = ""
    in_batches: pa.DataType

    def schema(self) -> str:
        return f"at {self.declared_as}"

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(range(start, end), pa.int64()).cast(self.in_batches)], ["at"])


class WallClock(Times):
    declared_as = "timestamp_ntz"
    in_batches = pa.timestamp("us", tz="UTC")


class Instant(Times):
    declared_as = "timestamp"
    in_batches = pa.timestamp("us")


@pytest.mark.parametrize("kind", [WallClock, Instant])
def test_times_with_another_zone_than_declared_are_noticed(kind: type[Times]) -> None:
    class World(SourceWorld):
        def source(self, **options: str) -> ChannelSource:
            return kind({"uid": "in", **options})

        def expected(self) -> list[dict[str, Any]]:
            epoch = datetime(1970, 1, 1, tzinfo=timezone.utc if kind is Instant else None)
            return [{"at": epoch + timedelta(microseconds=n)} for count in COUNTS.values() for n in range(count)]

    with pytest.raises(ContractViolation, match=f"'at' is declared as {kind.declared_as},"):
        SourceContract().test_a_planner_that_dies_at_every_step_loses_nothing(World())


def test_two_jobs_beside_each_other_have_a_query_id_each() -> None:
    target: Any = None
    ids = [[beside(target, mine, incarnation).query_id for incarnation in (1, 2)] for mine in (0, 1)]
    assert ids[0][0] == ids[0][1] and ids[1][0] == ids[1][1]
    assert ids[0][0] != ids[1][0]
