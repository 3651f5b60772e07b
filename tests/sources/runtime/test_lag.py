"""How many rows a source has still to read, as far as it knows, with each plan and between two of them."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given

from spark_ext.model.offsets import Position, SourceOffset
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.sources.runtime import planner as planner_module
from spark_ext.sources.runtime.live_lag import LiveLag
from spark_ext.sources.runtime.planner import MOST_ASKED, NoLedger, Planner
from spark_ext.sources.runtime.reader import report_of
from spark_ext.spark.session import lag_notes, registry
from tests.sources.memory import FakeLedger, Log, Memory, Store, memory, registration
from tests.support.waiting import until


class Telling(Memory):
    """Knows its rows; not those of a channel whose name begins with a question mark."""

    def lag(self, channel: Channel, at: Position) -> int | None:
        if channel.id.startswith("!"):
            raise OSError("out of reach")
        return None if channel.id.startswith("?") else self.store.rows[channel.id] - (at or 0)


def planner(store: Store, **options: int) -> Planner:
    source = memory(store, bounded=True, **options)
    source.__class__ = Telling
    return Planner(source, None, NoLedger())


def epochs(source: ChannelSource | Planner) -> list[int | None]:
    made = source if isinstance(source, Planner) else Planner(source, None, NoLedger())
    log, found = Log(), []
    log.offsets = [SourceOffset(made._source.options.uid)]
    while log.plan(made) is not None:
        found.append(made.lag(log.offsets[-1]))
    return found


@given(rows=st.lists(st.integers(0, 20), max_size=5), limit=st.integers(1, 9), readers=st.integers(1, 3))
def test_after_each_epoch_it_is_what_later_ones_read(rows: list[int], limit: int, readers: int) -> None:
    made, log = planner(Store({str(n): count for n, count in enumerate(rows)}), max_rows_per_epoch=limit), Log()
    lags = []
    while log.plan(made) is not None:
        lags.append(made.lag(log.offsets[-1]))
    sizes = [sum(piece.end - piece.start for piece in epoch) for epoch in log.read()]
    assert lags == [sum(sizes[number + 1 :]) for number in range(len(sizes))]


def test_one_channel_that_does_not_know_leaves_the_whole_unknown() -> None:
    assert epochs(Planner(memory(Store({"a": 4}), max_rows_per_epoch=2), None, NoLedger())) == [None, 0]
    # The last epoch ends the source: nothing is left, whoever knows.
    assert epochs(planner(Store({"a": 4, "?": 3}), max_rows_per_epoch=2))[0] is None
    assert epochs(planner(Store({"a": 4, "?": 3})))[-1] == 0


def test_the_cost_does_not_grow_with_the_number_of_channels() -> None:
    store = Store({str(number): 1 for number in range(MOST_ASKED + 2)})
    made, log = planner(store, max_rows_per_epoch=1), Log()
    log.plan(made)
    assert made.lag(log.offsets[-1]) is None


def test_a_failure_leaves_it_unknown_and_the_source_running() -> None:
    made, log = planner(Store({"!": 4}), max_rows_per_epoch=2), Log()
    log.plan(made)
    assert report_of("s", made, log.offsets[-1]) == {"uid": "s", "waiting": 0, "rows": 2}


def test_what_waits_is_reported_with_the_lag() -> None:
    made, log = planner(Store({"a": 4, "b": 5}), max_rows_per_epoch=2, readers=1), Log()
    log.plan(made)
    before = time.time()
    found = report_of("s", made, log.offsets[-1])
    assert before - 0.001 <= found.pop("at") <= time.time() + 0.001, "when it was so"
    assert found == {"uid": "s", "waiting": 1, "rows": 2, "lag": 7}


def test_datagen_knows_its_end_or_its_pace() -> None:
    assert epochs(DataGen({"uid": "s", "rows": "10", "channels": "2", "max_rows_per_epoch": "4"}))[:2] == [6, 2]
    assert DataGen({"uid": "s"}).lag(Channel("0"), 5) is None
    paced = DataGen({"uid": "s", "rows_per_second": "10"})
    paced.clock = lambda: 100.0
    assert paced.lag(Channel("0", None, {"start": 90_000}), 30) == 70


def test_delta_snapshot_knows_it_from_the_log(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for first in (0, 10):
        write_deltalake(table, pa.table({"id": pa.array(range(first, first + 10), pa.int64())}), mode="append")
    source = DeltaSnapshot({"uid": "s", "path": str(table), "max_rows_per_epoch": "6", "readers": "1"})
    source.declared = source.schema()
    assert epochs(source) == [14, 8, 2, 0]


def test_hybrid_knows_that_of_its_last_stage_alone() -> None:
    given: dict[str, Any] = {"uid": "s", "stages": "old,new", "max_rows_per_epoch": "4"}
    for stage, rows in (("old", 6), ("new", 5)):
        given |= {f"{stage}.format": "datagen", f"{stage}.rows": str(rows), f"{stage}.channels": "1"}
    found = epochs(Hybrid(given))
    assert found[0] is None and found[-2:] == [1, 0]


AT = SourceOffset("s")


class Asked:
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


def test_in_a_long_epoch_it_is_never_older_than_the_interval(asked: Asked) -> None:
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


def test_a_plan_that_takes_long_says_how_far_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second, and not at all if it is short; of one start of the job."""
    now, seen = [0.0], list[str]()

    class Slow(Memory):
        channels_name = "files"

        def discover(self) -> Iterator[Channel]:  # type: ignore[override]
            for channel in super().discover():
                now[0] += self.store.step or 0
                yield channel

        def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
            now[0] += 0.4
            found = registry.noted_plan(tmp_path, ["s"], 3)
            seen.extend([found] if found and found not in seen else [])
            return super().advance(channel, start, limit)

    monkeypatch.setattr(planner_module, "folder", lambda: tmp_path)
    (tmp_path / "s.json").touch()
    for files, step in ((2, 0), (1_500, 1)):
        source = memory(Store({str(n): 1 for n in range(files)}, step=step or None), readers=2_000)
        source.__class__ = Slow
        planned = Log().plan(Planner(source, registration(start=3), FakeLedger(), clock=lambda: now[0]))
        assert planned is not None and bool(seen) == (files > 2)
    assert seen[0] == "1,500 files found" and seen[1:3] == ["1,500 files, 3 planned", "1,500 files, 6 planned"]
    assert registry.noted_plan(tmp_path, ["s"], 4) == "", "of another start"
