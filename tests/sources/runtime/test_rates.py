"""Rate limits in what a planner plans: per source and channel, changed while it runs, and for old rows only."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from spark_ext.control import stamps
from spark_ext.model.configuration import Stamp
from spark_ext.model.control import Target
from spark_ext.model.offsets import Json, Position, SourceOffset
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.runtime.planner import Planner
from tests.sources.files.files_kit import opened
from tests.sources.memory import FakeLedger, Log, Memory, Store, memory, registration, rows_of

ENDLESS = 10**12


class Job:
    """A planner in a query whose epochs take a time; Spark asks every 10 ms."""

    def __init__(self, source: ChannelSource, *, epoch_s: float = 0.15, **registered: object) -> None:
        self.now = 1000.0
        self.epoch_s = epoch_s
        self.ledger = FakeLedger()
        self.source = source
        self.registered = registered
        self.log = Log()
        self.epochs: list[tuple[float, dict[str, int]]] = []
        self.restart()

    def restart(self) -> None:
        self.planner = Planner(self.source, registration(**self.registered), self.ledger, clock=lambda: self.now)

    def limit(self, value: Json, target: str = "source:s") -> None:
        self.ledger.accept("rate_limit", target, value)

    def run(self, seconds: float) -> dict[str, int]:
        end, first = self.now + seconds, len(self.epochs)
        while self.now < end:
            read = self.log.plan(self.planner)
            if read is None:
                self.now += 0.01
                continue
            self.epochs.append((self.now, {piece.channel: piece.end - piece.start for piece in read}))
            self.now += self.epoch_s
        return dict(sum((Counter(rows) for _, rows in self.epochs[first:]), Counter()))

    @property
    def stamp(self) -> Stamp:
        return stamps.read(str(registration().checkpoint), self.log.offsets[-1].stamp)


def total(rows: dict[str, int]) -> int:
    return sum(rows.values())


def job(channels: int = 3, rows: int = ENDLESS, rate: int | None = None, **options: object) -> Job:
    store = Store({f"c{number}": rows for number in range(channels)}, ends=False)
    made = Job(memory(store, bounded=False, **options))
    if rate is not None:
        made.limit({"rows_per_second": rate})
    return made


@pytest.mark.parametrize("rate", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("epoch_s", [0.0, 0.15, 2.0])
def test_a_rate_holds_on_average_and_is_shared_over_the_channels(rate: int, epoch_s: float) -> None:
    one = job()
    one.epoch_s = epoch_s
    one.limit({"rows_per_second": rate})
    one.run(6)
    found = one.run(30)
    assert total(found) == pytest.approx(rate * 30, rel=0.05 if epoch_s < 1 else 0.07)
    assert max(found.values()) - min(found.values()) <= 0.1 * total(found)


def test_a_channels_own_limit_holds_in_addition() -> None:
    one = job(3, rate=3_000)
    one.limit({"rows_per_second": 100}, "source:s/c1")
    one.run(1)
    found = one.run(30)
    assert found["c1"] == pytest.approx(100 * 30, rel=0.05)
    assert total(found) == pytest.approx(3_000 * 30, rel=0.05)
    one.limit(None, "source:s")
    one.source.options = one.source.options.model_copy(update={"max_rows_per_epoch": 100_000})
    found = one.run(10)
    assert found["c1"] == pytest.approx(100 * 10, rel=0.1)
    assert found["c0"] > 10 * 30_000


def test_a_smaller_rate_holds_from_the_next_epoch_on() -> None:
    one = job(1)
    one.epoch_s = 1.5
    one.limit({"rows_per_second": 1_000_000})
    one.run(10)
    one.limit({"rows_per_second": 1_000})
    changed = one.now
    one.run(30)
    after = [rows["c0"] for at, rows in one.epochs if at >= changed and rows]
    assert after[0] <= 1_000 * 1.6 and sum(after) <= 1_000 * 31.6
    assert sum(after) >= 1_000 * 28
    assert next(at for at, rows in one.epochs if at >= changed and rows) <= changed + 1.5 + 0.2, "no debt is waited for"


def test_a_greater_rate_is_not_held_up_by_a_debt() -> None:
    class InGroups(Memory):
        def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
            return Advance(start + 100_000, rows=100_000, whole=True)

    made = InGroups({"uid": "s"})
    made.store = Store({"c0": ENDLESS}, ends=False)
    one = Job(made)
    one.limit({"rows_per_second": 10_000})
    one.run(1)
    assert total(one.run(60)) == pytest.approx(600_000, abs=100_000), "what is beyond the limit is waited for"
    one.limit({"rows_per_second": 1_000_000})
    assert total(one.run(1)) > 0


def test_after_idle_time_one_seconds_rows_are_read_at_once() -> None:
    one = job(1, rows=0, rate=1_000)
    one.run(60)
    one.source.store.rows["c0"] = ENDLESS  # type: ignore[attr-defined]
    begin = one.now
    one.run(0.05)
    assert [rows["c0"] for at, rows in one.epochs if at >= begin] == [pytest.approx(1_000, abs=30)]


@pytest.mark.parametrize("target", ["source:s", "query:q", "job", "source:s/c0"])
def test_a_pause_is_not_made_up_for(target: str) -> None:
    one = job(1, rate=1_000)
    one.run(5)
    one.ledger.accept("pause", target)
    assert total(one.run(60)) == 0
    one.ledger.accept("resume", target)
    begin = one.now
    one.run(0.1)
    assert sum(rows["c0"] for at, rows in one.epochs if at >= begin and rows) <= 1_100
    assert total(one.run(10)) == pytest.approx(10_000, rel=0.05)


def test_rows_per_epoch_are_a_limit_of_each_epoch() -> None:
    one = job(2)
    one.limit({"rows_per_epoch": 50})
    one.run(3)
    assert {sum(rows.values()) for _, rows in one.epochs if rows} == {50}
    one.limit({"rows_per_epoch": 10}, "source:s/c1")
    begin = one.now
    one.run(3)
    assert {rows["c1"] for at, rows in one.epochs if at >= begin and rows} == {10}


def test_an_interval_is_made_up_for() -> None:
    one = Job(memory(Store({"c0": ENDLESS}, ends=False), bounded=False), interval_ms=5_000)
    one.limit({"rows_per_second": 1_000})
    one.run(10)
    assert total(one.run(60)) == pytest.approx(60_000, rel=0.1)


def test_a_source_that_does_not_count_is_read_by_its_shares() -> None:
    one = Job(memory(Store({"c0": ENDLESS, "c1": ENDLESS}, ends=False, counted=False), bounded=False))
    one.limit({"rows_per_second": 1_000})
    one.run(5)
    assert total(one.run(30)) == pytest.approx(30_000, rel=0.05)


def test_bytes_per_second() -> None:
    one = Job(DataGen({"uid": "s", "channels": "2"}))
    one.limit({"bytes_per_second": 64_000})
    one.run(5)
    assert total(one.run(30)) == pytest.approx(30_000, rel=0.05)


def test_a_plan_that_did_not_become_an_epoch_takes_nothing_out() -> None:
    one = job(1, rate=1_000)
    one.run(2)
    one.now += 1
    plans = [one.planner.next(one.log.offsets[-1]) for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0].running["c0"].at > one.log.offsets[-1].running["c0"].at


def test_a_bounded_source_ends_although_its_debt_is_large() -> None:
    class Whole(Memory):
        def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
            return Advance(100_000, rows=100_000, whole=True)

    made = Whole({"uid": "s"})
    made.store = Store({"c0": 100_000}, step=None)
    one = Job(made)
    one.limit({"rows_per_second": 1})
    one.run(3)
    assert not one.log.offsets[-1].ended
    made.store.rows.clear()
    ended = SourceOffset("s", 0, control=one.log.offsets[-1].control, stamp=one.log.offsets[-1].stamp)
    assert Planner(made, registration(), one.ledger, clock=lambda: one.now).next(ended).ended


def test_an_available_now_run_waits_for_tokens_and_reads_all() -> None:
    one = job(2, rows=300, rate=1_000)
    one.planner.prepare_available_now()
    begin = one.now
    while True:
        if one.log.plan(one.planner) is not None:
            continue
        if not one.planner.rationed_s:
            break
        one.now += one.planner.rationed_s
    assert {name: len(rows) for name, rows in rows_of(one.log.read()).items()} == {"c0": 300, "c1": 300}
    assert one.now - begin == pytest.approx(0.6, abs=0.15)


class Dated(Memory):
    knows_when_written = True

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        return (100.0 if channel.id == "old" else 9e12) < at


def test_a_limit_for_old_rows_leaves_others_alone() -> None:
    made = Dated({"uid": "s", "max_rows_per_epoch": "100000"})
    made.store, made.always_bounded = Store({"old": ENDLESS, "new": ENDLESS}, ends=False), False
    one = Job(made)
    one.limit({"rows_per_second": 100, "older_than": 3_600_000})
    one.run(1)
    found = one.run(30)
    assert found["old"] == pytest.approx(3_000, rel=0.05)
    assert found["new"] > 1_000_000


def test_files_are_as_old_as_their_last_change(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    for group in ("file", "directory"):
        made, channel = opened(tmp_path, "n bigint", group=group)
        changed = (tmp_path / "a.json").stat().st_mtime
        assert made.knows_when_written
        assert made.written_before(channel, channel.begin, changed + 1)
        assert not made.written_before(channel, channel.begin, changed - 1)
    assert made.written_before(channel, [1, 0], changed - 1), "behind its last file"


def test_paced_rows_are_as_old_as_they_are_late() -> None:
    made = DataGen({"uid": "s", "rows_per_second": "10"})
    made.clock = lambda: 1000.0
    channel = next(iter(made.discover()))
    assert made.knows_when_written and not DataGen({"uid": "s"}).knows_when_written
    assert made.written_before(channel, 9, 1001.1) and not made.written_before(channel, 11, 1001.1)


@pytest.mark.parametrize("name", ["a.json.gz", "a.csv"])
def test_a_file_read_in_one_step_is_counted_under_a_limit(tmp_path: Path, name: str) -> None:
    rows = "".join(json.dumps({"n": str(n)}) + "\n" if "json" in name else f'"{n}\n"\n' for n in range(500))
    data = rows.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    made, channel = opened(tmp_path, "n string", multiline="true")
    assert made.advance(channel, 0, Limit()).rows is None, "it is not read twice without need"
    step = made.advance(channel, 0, Limit(rows=10))
    assert (step.rows, step.whole, step.finished) == (500, True, True)


def test_limits_of_other_targets_do_not_hold_for_a_source() -> None:
    one = job(1)
    one.ledger.accept("rate_limit", "source:t", {"rows_per_second": 1})
    one.ledger.accept("rate_limit", "source:s2/c0", {"rows_per_second": 1})
    one.source.options = one.source.options.model_copy(update={"max_rows_per_epoch": 1_000})
    assert total(one.run(3)) > 10_000
    assert str(Target.parse("source:s2/c0")) == "source:s2/c0"
