"""When the lag of a source is asked for between two plans, and who has the source then."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.live_lag import LiveLag
from spark_ext.spark.session import lag_notes, registry
from tests.sources.memory import registration
from tests.support.waiting import until

AT = SourceOffset("s")


class Asked:
    """A source's lag, a clock, and the registry's folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.now = 1_000.0
        self.lag: int | None = 10
        self.takes = 0.0
        self.times: list[float] = []
        registry.publish([registration()], place)
        self.live = LiveLag("s", place, 5.0, self.ask, lambda: self.now, lambda: self.now + 1e9)

    def ask(self, at: SourceOffset) -> int | None:
        assert self.live.turn.locked() and at is AT
        self.times.append(self.now)
        self.now += self.takes
        if self.lag == -1:
            raise OSError("no broker")
        return self.lag

    def sleep(self, until_: float) -> None:
        """Do what the thread does until a time."""
        while self.now < until_:
            self.now = min(until_, self.now + max(0.01, self.live.poll()))

    @property
    def noted(self) -> tuple[int | None, float | None] | None:
        note = lag_notes.read(self.place, "s")
        return None if note is None else (note.lag_rows, note.at)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    found = Asked(tmp_path / "registry")
    found.live.planned(AT)
    return found


def test_short_epochs_never_make_it_ask(asked: Asked) -> None:
    for _ in range(20):
        asked.sleep(asked.now + 4)
        asked.live.planned(AT)
    assert asked.times == [] and asked.noted is None


def test_during_a_long_epoch_the_figure_is_never_older_than_the_interval(asked: Asked) -> None:
    asked.sleep(1_000 + 4.9)
    assert asked.times == []
    for number in range(1, 6):
        asked.lag = 100 * number
        asked.sleep(1_000 + 5 * number + 0.1)
        assert asked.noted == (100 * number, 1e9 + 1_000 + 5 * number)
    assert len(asked.times) == 5


def test_a_source_that_answers_slowly_is_asked_less_often(asked: Asked) -> None:
    asked.takes = 2.0
    asked.sleep(1_000 + 1_000)
    assert 20 <= len(asked.times) <= 25, "a twentieth of the time, at most"


@pytest.mark.parametrize("lag", [None, -1], ids=["it does not know", "it fails"])
def test_what_is_unknown_is_not_noted_and_the_next_answer_is(asked: Asked, lag: int | None) -> None:
    asked.sleep(1_005.1)
    asked.lag = lag
    asked.sleep(1_010.1)
    assert asked.noted == (10, 1e9 + 1_005), "as it was then"
    asked.lag = 30
    asked.sleep(1_015.1)
    assert asked.noted == (30, 1e9 + 1_015)


def test_it_ends_with_the_registration(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path / "r")
    live = LiveLag("s", tmp_path / "r", 0.01, lambda at: 3)
    live.planned(AT)
    live.start()
    until(lambda: lag_notes.read(tmp_path / "r", "s"), "it has asked")
    registry.withdraw(["s"], tmp_path / "r")
    until(lambda: not any(one.name == "spark-ext-lag-s" for one in threading.enumerate()), "the thread has ended")


def test_it_waits_while_spark_uses_the_source(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    busy: list[bool] = []
    using = threading.Event()

    def ask(at: SourceOffset) -> int:
        busy.append(using.is_set())
        return 1

    live = LiveLag("s", tmp_path, 0.001, ask)
    live.planned(AT)
    live.start()
    for _ in range(50):
        with live.turn:
            using.set()
            live.planned(AT)
            threading.Event().wait(0.002)
            using.clear()
        threading.Event().wait(0.002)
    until(lambda: len(busy) > 3, "it was asked some times")
    assert not any(busy)
    registry.withdraw(["s"], tmp_path)
