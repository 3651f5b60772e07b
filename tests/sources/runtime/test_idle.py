"""Idle queries: their planners look less often, and the epochs of a busy query are not delayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.reader import PATIENCE, PERIOD, ChannelReader, Idle
from spark_ext.spark.session import registry
from tests.sources.memory import Store, memory

BETWEEN = 0.01
"""What Spark waits between two questions, s."""


class Asked:
    """A reader over a store that Spark asks for its end every 10 ms."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.arrives = 0
        """Rows that arrive in the next pause."""
        self.store = Store({"a": 3}, ends=False)
        self.reader = ChannelReader(memory(self.store, bounded=False), StructType())
        self.reader._idle = Idle(self._pause, lambda: self.now)
        self.at = self.reader.initialOffset()

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(round(seconds, 6))
        self.store.rows["a"] += self.arrives
        self.arrives = 0

    def __call__(self, after: float = BETWEEN) -> int:
        """Where the epoch ends."""
        self.now += after
        self.at = self.reader.latestOffset(self.at, ReadAllAvailable())
        return int(SourceOffset.from_json(self.at, "s").running["a"].at)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "none"))
    return Asked()


def test_rows_that_arrive_during_a_pause_are_in_the_answer(asked: Asked) -> None:
    assert asked() == 3
    for rows in (3, 5):
        assert [asked() for _ in range(PATIENCE)] == [rows] * PATIENCE
        assert asked.pauses == [], "the query was not idle yet"
        asked.arrives = 2
        assert asked() == rows + 2
        assert asked.pauses == [round(PERIOD - BETWEEN, 6)]
        asked.pauses.clear()


def test_a_source_that_was_not_asked_for_long_answers_at_once(asked: Asked) -> None:
    """Another source of the query has waited, or the query has an interval."""
    for _ in range(PATIENCE + 1):
        asked()
    for _ in range(5):
        asked(after=PERIOD)
    assert asked.pauses == []


def test_a_source_without_rows_does_not_delay_the_epochs_of_another_one(asked: Asked) -> None:
    """Spark tells all sources of a query of each of its epochs: see `tests/sources/test_in_spark.py`."""
    for _ in range(3 * PATIENCE):
        assert asked() == 3
        asked.reader.commit(asked.at)
    assert asked.pauses == []
